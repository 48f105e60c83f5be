# SPDX-License-Identifier: MIT
"""arq on Redis. `python -m benchmarks.peers.arq_app` is its worker, on uvloop; no bulk submit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool, run_worker
from arq.connections import RedisSettings

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays
from benchmarks.probe import hitter

_hit = hitter()


async def noop(context: dict[str, Any], number: int) -> None:
    _hit()


class WorkerSettings:
    """As many jobs at once as it is fast with, no results, and a short wait between two looks."""

    functions = (noop,)
    redis_settings = RedisSettings.from_dsn(server_url())
    max_jobs = 100
    keep_result = 0
    poll_delay = 0.01


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """From async code, one at a time."""
    pool = await create_pool(WorkerSettings.redis_settings)
    try:
        yield AsyncWays(one=lambda number: pool.enqueue_job("noop", number))
    finally:
        await pool.aclose()


if __name__ == "__main__":
    import uvloop

    uvloop.install()
    run_worker(WorkerSettings)
