# SPDX-License-Identifier: MIT
"""Procrastinate. `procrastinate --app comparison.apps.procrastinate_app.app worker`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector

from comparison.place import SLOTS, is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

_HELD = (
    "select count(*) from procrastinate_jobs "
    "where task_name = 'work' and status in ('todo', 'doing')"
)
#: How often stalled jobs are looked for: as its documentation shows, or every five seconds.
_CRON = "* * * * * */5" if is_quick() else "*/10 * * * *"
#: Seconds without a heartbeat after which a worker counts as gone.
_GONE_SECONDS = 10 if is_quick() else 30
_HEARTBEAT_SECONDS = 2 if is_quick() else 10

app = App(
    connector=PsycopgConnector(conninfo=store_url()),
    worker_defaults={
        "concurrency": SLOTS,
        "update_heartbeat_interval": _HEARTBEAT_SECONDS,
        "stalled_worker_timeout": _GONE_SECONDS,
    },
)


@app.task(name="work")
async def work(number: int, seconds: float) -> None:
    with working(number):
        await asyncio.sleep(seconds)


@app.periodic(cron=_CRON)
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
    """The recipe of its documentation: without it such jobs stay as they are."""
    stalled = await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=_GONE_SECONDS)
    for job in stalled:
        await app.job_manager.retry_job(job)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    async def submit(number: int, seconds: float) -> object:
        return await work.defer_async(number=number, seconds=seconds)

    async with app.open_async():
        yield submit


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def held() -> int:
    with psycopg.connect(store_url()) as connection:
        found = connection.execute(_HELD).fetchone()
    return int(found[0]) if found else 0
