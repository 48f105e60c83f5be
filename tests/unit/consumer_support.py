# SPDX-License-Identifier: MIT
"""For tests of consumers: an app on any store, jobs to fetch, and clocks that can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from packhorse import Packhorse
from packhorse.core.clock import SECOND_US, SystemClock, new_id
from packhorse.core.job import AttemptRecord, Job, JobRecord, JobStatus, NewJob
from packhorse.errors import StoreUnavailable
from packhorse.events import Event
from packhorse.runtime.consumer import Consumer, FetchedJob
from packhorse.runtime.worker.base_runtime import Runtime
from packhorse.stores import open_store
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, Renewal
from tests.servers.urls import store_url_of

#: No fetch of a job that must come waits longer than this.
PATIENCE_S = 10.0


class MovableClock(SystemClock):
    """The machine's time, put forward by tests."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.ahead_s * SECOND_US)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Depot:
    """An app on a store, and short words for what tests of consumers do."""

    def __init__(self, store: Store | str) -> None:
        self.clock = MovableClock()
        self.store = open_store(store, clock=self.clock) if isinstance(store, str) else store
        self.app = Packhorse(store=self.store, clock=self.clock)
        self.events: list[Event] = []
        self.app.on("*")(self.events.append)

    def close(self) -> None:
        self.app.close()
        self.store.close()

    def submit(self, *ids: str, **options: Any) -> list[str]:
        """Store jobs of the task `send` on the queue `mail`."""
        chosen: dict[str, Any] = {"task": "send", "queue": "mail", "payload": b'{"to":"a"}'}
        jobs = [NewJob(id=job_id, **chosen | options) for job_id in ids or (new_id(),)]
        self.store.run(self.store.jobs.submit(jobs))
        return [job.id for job in jobs]

    def claim_and_vanish(self) -> Job:
        """Claim the next job as a worker that is never seen again, and that long ago."""
        renewal = Renewal("vanished", SECOND_US // 10, queues=("mail",), tasks=("send",))
        request = ClaimRequest("vanished", ("mail",), ("send",), 1, SECOND_US)
        self.store.run(self.store.leases.renew(renewal))
        (job,) = self.store.run(self.store.jobs.claim(request)).jobs
        self.clock.ahead_s += 20
        return job

    def record(self, job_id: str) -> JobRecord:
        record = self.store.run(self.store.inspection.job(job_id))
        assert record is not None
        return record

    def status(self, job_id: str) -> JobStatus:
        return self.record(job_id).status

    def history(self, job_id: str) -> tuple[AttemptRecord, ...]:
        return self.store.run(self.store.inspection.history(job_id))

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @asynccontextmanager
    async def consumer(self, **options: Any) -> AsyncIterator[Consumer]:
        async with self.app.consumer(**{"queues": ["mail"], **options}) as consumer:
            yield consumer


class HeldStore:
    """Lets the writes of a settler go, or fails them, when a test says so."""

    def __init__(self, runtime: Runtime | None, store: Store) -> None:
        self.jobs = store.jobs
        self.reached, self.may_go, self.fails = asyncio.Event(), asyncio.Event(), False
        self.answered = False  #: a write has ended
        self._store = store
        assert runtime is not None
        runtime.settler._store = cast("Store", self)

    def run(self, plan: Plan[Any]) -> Any:
        return self._store.run(plan)

    async def arun(self, plan: Plan[Any]) -> Any:
        self.reached.set()
        await self.may_go.wait()
        if self.fails:
            self.fails, self.answered = False, True
            raise StoreUnavailable("away")
        answer = await self._store.arun(plan)
        self.answered = True
        return answer


class Flow:
    """A runtime that keeps one job per trace, and whose first trace may die without a word."""

    def __init__(self, *, broken_first: bool = False) -> None:
        self._broken_next = broken_first
        self._results: dict[str, asyncio.Future[Any]] = {}

    async def emit(self, payload: Any, trace_id: str) -> None:
        """Hand a job in; waits while its trace is in flight."""
        before = self._results.get(trace_id)
        if before is not None:
            await asyncio.shield(before)
        result = self._results[trace_id] = asyncio.get_running_loop().create_future()
        if not self._broken_next:
            result.set_result(payload)
        self._broken_next = False

    async def fetch(self, trace_id: str) -> Any:
        """The result of a trace."""
        return await asyncio.shield(self._results[trace_id])


async def fetched(consumer: Consumer) -> FetchedJob:
    """The next job, which must come."""
    job = await consumer.fetch(timeout=PATIENCE_S)
    assert job is not None
    return job


EVERY_STORE = ("memory", "sqlite", "postgres", "redis")


def depot_on(kind: str, folder: Path) -> Iterator[Depot]:
    """A depot on a new store of this kind, closed afterwards."""
    with store_url_of(kind, folder) as url:
        depot = Depot(url)
        yield depot
        depot.close()
