# SPDX-License-Identifier: MIT
"""taskiq on Redis streams. `taskiq worker benchmarks.peers.taskiq_app:broker` is its worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq_redis import RedisStreamBroker

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays
from benchmarks.probe import hitter

broker = RedisStreamBroker(url=server_url())
_hit = hitter()


@broker.task
async def noop(number: int) -> None:
    _hit()


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """From async code, one at a time: it has no bulk submit."""
    await broker.startup()
    try:
        yield AsyncWays(one=noop.kiq)
    finally:
        await broker.shutdown()
