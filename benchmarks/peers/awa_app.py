# SPDX-License-Identifier: MIT
"""awa on PostgreSQL. `python -m benchmarks.peers.awa_app` is its worker, 256 slots.

On its queue storage, its faster engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from awa import AsyncClient, Client

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays, Ways
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_SLOTS: Final = 256
_QUEUE: Final = "default"


@dataclass
class Noop:
    """The arguments of one job."""

    number: int


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """One at a time, and its bulk submit by COPY."""
    async with AsyncClient(server_url()) as client:
        await client.migrate()
        await client.install_queue_storage()

        async def many(numbers: Sequence[int]) -> object:
            return await client.enqueue_many_copy([Noop(each) for each in numbers], queue=_QUEUE)

        yield AsyncWays(one=lambda number: client.insert(Noop(number), queue=_QUEUE), many=many)


@contextmanager
def ways() -> Iterator[Ways]:
    """The same from sync code."""
    with Client(server_url()) as client:
        client.migrate()
        client.install_queue_storage()

        def many(numbers: Sequence[int]) -> object:
            return client.enqueue_many_copy([Noop(each) for each in numbers], queue=_QUEUE)

        yield Ways(one=lambda number: client.insert(Noop(number), queue=_QUEUE), many=many)


async def work() -> None:
    """Run a worker until it is ended."""
    client = AsyncClient(server_url())
    hit = hitter()

    @client.task(Noop, queue=_QUEUE)
    async def noop(job: Any) -> None:
        hit()

    await client.start([(_QUEUE, _SLOTS)])
    await asyncio.Event().wait()


if __name__ == "__main__":
    event_loop.run(work())
