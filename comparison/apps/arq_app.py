# SPDX-License-Identifier: MIT
"""arq on Redis. `arq comparison.apps.arq_app.WorkerSettings`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import default_queue_name

from comparison.place import SLOTS, is_quick, store_url
from comparison.record import working
from comparison.submit import Submit


async def work(context: dict[str, Any], number: int, seconds: float) -> None:
    with working(number):
        await asyncio.sleep(seconds)


class WorkerSettings:
    """A job comes back ten seconds after the longest it may take; short of `quick`, 300 s."""

    functions = (work,)
    redis_settings = RedisSettings.from_dsn(store_url())
    max_jobs = SLOTS
    job_timeout = 10 if is_quick() else 300


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    pool = await create_pool(WorkerSettings.redis_settings)

    async def submit(number: int, seconds: float) -> object:
        return await pool.enqueue_job("work", number, seconds)

    try:
        yield submit
    finally:
        await pool.aclose()


async def held() -> int:
    pool = await create_pool(WorkerSettings.redis_settings)
    try:
        return int(await pool.zcard(default_queue_name))
    finally:
        await pool.aclose()
