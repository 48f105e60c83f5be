# SPDX-License-Identifier: MIT
"""PgQueuer on asyncpg. `python -m benchmarks.peers.pgqueuer_app` is its worker, batch 100."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_BATCH: Final = 100


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """One at a time, and its bulk submit: lists of entry points, payloads and priorities."""
    connection = await asyncpg.connect(server_url())
    queries = Queries(AsyncpgDriver(connection))
    if not await queries.schema_is_installed():
        await queries.install()

    async def many(numbers: Sequence[int]) -> object:
        count = len(numbers)
        payloads = [b"%d" % number for number in numbers]
        return await queries.enqueue(["noop"] * count, payloads, [0] * count)

    try:
        yield AsyncWays(one=lambda number: queries.enqueue("noop", b"%d" % number), many=many)
    finally:
        await connection.close()


async def work() -> None:
    """Run a worker until it is told to stop."""
    pgqueuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(server_url())))
    hit = hitter()

    @pgqueuer.entrypoint("noop")
    async def noop(job: Any) -> None:
        hit()

    await pgqueuer.run(batch_size=_BATCH)


if __name__ == "__main__":
    event_loop.run(work())
