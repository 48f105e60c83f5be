# SPDX-License-Identifier: MIT
"""SAQ on Redis. `saq comparison.apps.saq_app.settings`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue

from comparison.place import SLOTS, is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

_RETRIES = 5
_SWEEP_SECONDS = 10 if is_quick() else 60


async def work(context: dict[str, Any], *, number: int, seconds: float) -> None:
    with working(number):
        await asyncio.sleep(seconds)


queue = Queue.from_url(store_url())
settings = {
    "queue": queue,
    "functions": [work],
    "concurrency": SLOTS,
    "timers": {"sweep": _SWEEP_SECONDS},
}


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    await queue.connect()

    async def submit(number: int, seconds: float) -> object:
        return await queue.enqueue("work", number=number, seconds=seconds, retries=_RETRIES)

    try:
        yield submit
    finally:
        await queue.disconnect()


async def held() -> int:
    await queue.connect()
    try:
        return int(await queue.count("incomplete"))
    finally:
        await queue.disconnect()
