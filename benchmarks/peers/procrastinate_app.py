# SPDX-License-Identifier: MIT
"""Procrastinate on psycopg. `python -m benchmarks.peers.procrastinate_app` is its worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from procrastinate import App, PsycopgConnector

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays, Ways
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_SLOTS: Final = 50
_CONNECTIONS: Final = 20
_hit = hitter()

app = App(connector=PsycopgConnector(conninfo=server_url(), min_size=2, max_size=_CONNECTIONS))


@app.task(name="noop", pass_context=False)
async def noop(number: int) -> None:
    _hit()


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """One at a time, and its bulk submit."""

    async def many(numbers: Sequence[int]) -> object:
        return await noop.batch_defer_async(*[{"number": number} for number in numbers])

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield AsyncWays(one=lambda number: noop.defer_async(number=number), many=many)


@contextmanager
def ways() -> Iterator[Ways]:
    """The same from sync code."""

    def many(numbers: Sequence[int]) -> object:
        return noop.batch_defer(*[{"number": number} for number in numbers])

    with app.open():
        app.schema_manager.apply_schema()
        yield Ways(one=lambda number: noop.defer(number=number), many=many)


async def work() -> None:
    """Run a worker until it is told to stop."""
    async with app.open_async():
        await app.run_worker_async(concurrency=_SLOTS)


if __name__ == "__main__":
    event_loop.run(work())
