# SPDX-License-Identifier: MIT
"""Celery on Redis. `celery -A comparison.apps.celery_app worker`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis
from celery import Celery

from comparison.place import is_quick, store_url
from comparison.record import working
from comparison.submit import Submit

#: Short of these a message comes back after an hour, looked for every hundred seconds.
_QUICK = {
    "visibility_timeout": 15,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}

app = Celery("comparison", broker=store_url())
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options=_QUICK if is_quick() else {},
)


@app.task(name="work")
def work(number: int, seconds: float) -> None:
    with working(number):
        time.sleep(seconds)


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    yield work.delay


def held() -> int:
    with redis.Redis.from_url(store_url()) as client:
        return int(client.llen("celery") + client.hlen("unacked"))
