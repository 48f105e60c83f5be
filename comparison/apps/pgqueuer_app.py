# SPDX-License-Identifier: MIT
"""PgQueuer on asyncpg. `python -m comparison.apps.pgqueuer_app` is its worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from comparison.place import SLOTS, is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

#: Its own rule: at most half of what may run at once.
_BATCH = SLOTS // 2
_HEARTBEAT = timedelta(seconds=5 if is_quick() else 30)


async def run() -> None:
    """Run a worker until it is ended."""
    pgqueuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(store_url())))

    @pgqueuer.entrypoint("work")
    async def work(job: Any) -> None:
        told = json.loads(job.payload)
        with working(told["number"]):
            await asyncio.sleep(told["seconds"])

    await pgqueuer.run(batch_size=_BATCH, max_concurrent_tasks=SLOTS, heartbeat_timeout=_HEARTBEAT)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    connection = await asyncpg.connect(store_url())
    queries = Queries(AsyncpgDriver(connection))

    async def submit(number: int, seconds: float) -> object:
        payload = json.dumps({"number": number, "seconds": seconds})
        return await queries.enqueue("work", payload.encode())

    try:
        yield submit
    finally:
        await connection.close()


async def prepare() -> None:
    connection = await asyncpg.connect(store_url())
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def held() -> int:
    connection = await asyncpg.connect(store_url())
    try:
        return int(await connection.fetchval("select count(*) from pgqueuer"))
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(run())
