# SPDX-License-Identifier: MIT
"""RQ on Redis. `rq worker-pool`, or several of `rq worker`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis import Redis
from rq import Queue, Retry

from comparison.place import store_url
from comparison.record import working
from comparison.submit import Submit

_RETRIES = 5


def work(number: int, seconds: float) -> None:
    with working(number):
        time.sleep(seconds)


def _queue() -> Queue:
    return Queue(connection=Redis.from_url(store_url()))


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    queue = _queue()

    def submit(number: int, seconds: float) -> object:
        return queue.enqueue(work, number, seconds, retry=Retry(max=_RETRIES))

    yield submit


def held() -> int:
    """Counted without its clean-up, which would move jobs from one place to another meanwhile."""
    queue = _queue()
    places = (queue.started_job_registry, queue.scheduled_job_registry, queue.deferred_job_registry)
    elsewhere = sum(place.get_job_count(cleanup=False) for place in places)
    taken = len(queue.intermediate_queue.get_job_ids())
    return int(queue.count + elsewhere + taken)
