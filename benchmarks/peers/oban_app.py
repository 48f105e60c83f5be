# SPDX-License-Identifier: MIT
"""Oban for Python on psycopg. `python -m benchmarks.peers.oban_app` is its worker, 100 slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from oban import Oban, job
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_SLOTS: Final = 100
_CONNECTIONS: Final = 10
_hit = hitter()


@job(queue="default")
async def noop(number: int) -> None:
    _hit()


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """One at a time, and its bulk submit."""
    async with AsyncConnectionPool(server_url(), open=False) as pool:
        await install(pool)
        oban = Oban(pool=pool)

        async def many(numbers: Sequence[int]) -> object:
            return await oban.enqueue_many(*[noop.new(number) for number in numbers])

        yield AsyncWays(one=lambda number: oban.enqueue(noop.new(number)), many=many)


async def work() -> None:
    """Run a worker until it is ended."""
    async with (
        AsyncConnectionPool(server_url(), open=False, max_size=_CONNECTIONS) as pool,
        Oban(pool=pool, queues={"default": _SLOTS}),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    event_loop.run(work())
