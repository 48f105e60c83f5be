# SPDX-License-Identifier: MIT
"""Huey on Redis. `huey_consumer comparison.apps.huey_app.huey`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from huey import RedisHuey

from comparison.place import store_url
from comparison.record import working
from comparison.submit import Submit

huey = RedisHuey("comparison", url=store_url())


@huey.task()
def work(number: int, seconds: float) -> None:
    with working(number):
        time.sleep(seconds)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    yield work


def held() -> int:
    return int(huey.pending_count() + huey.scheduled_count())
