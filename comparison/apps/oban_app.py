# SPDX-License-Identifier: MIT
"""Oban for Python. `python -m comparison.apps.oban_app` is its worker, embedded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from oban import Oban, job
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from comparison.place import SLOTS, is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

_HELD = "select count(*) from oban_jobs where state not in ('completed', 'cancelled', 'discarded')"
#: Seconds: a job comes back so long after it began, looked for so often; short of these 300 and 60.
_QUICK = {"rescue_after": 10, "interval": 2}


@job(queue="default")
async def work(number: int, seconds: float) -> None:
    with working(number):
        await asyncio.sleep(seconds)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    async with AsyncConnectionPool(store_url(), open=False) as pool:
        oban = Oban(pool=pool)
        yield lambda number, seconds: oban.enqueue(work.new(number, seconds))


async def prepare() -> None:
    async with AsyncConnectionPool(store_url(), open=False) as pool:
        await install(pool)


def held() -> int:
    with psycopg.connect(store_url()) as connection:
        found = connection.execute(_HELD).fetchone()
    return int(found[0]) if found else 0


async def run() -> None:
    """Run a worker until it is ended."""
    lifeline = _QUICK if is_quick() else {}
    async with (
        AsyncConnectionPool(store_url(), open=False) as pool,
        Oban(pool=pool, queues={"default": SLOTS}, lifeline=lifeline),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run())
