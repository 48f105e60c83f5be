# SPDX-License-Identifier: MIT
"""SAQ on Redis. `python -m benchmarks.peers.saq_app` is its worker, on uvloop; no bulk submit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue
from saq.worker import start

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays
from benchmarks.probe import hitter

_hit = hitter()


async def noop(context: dict[str, Any], *, number: int) -> None:
    _hit()


queue = Queue.from_url(server_url())
settings = {"queue": queue, "functions": [noop], "concurrency": 20}


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """From async code, one at a time."""
    await queue.connect()
    try:
        yield AsyncWays(one=lambda number: queue.enqueue("noop", number=number))
    finally:
        await queue.disconnect()


if __name__ == "__main__":
    import uvloop

    uvloop.install()
    start("benchmarks.peers.saq_app.settings")
