# SPDX-License-Identifier: MIT
"""For tests of the worker: a memory store, some tasks, and workers that run on it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from packhorse.client.registry import Registry, define_task
from packhorse.core.clock import Clock, SystemClock, new_id
from packhorse.core.config import WorkerOptions
from packhorse.core.job import AttemptRecord, Job, JobRecord, JobStatus, NewJob
from packhorse.events import Event, EventBus
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.worker import Environment, Worker, WorkerReport
from packhorse.stores.memory import MemoryStore
from packhorse.stores.memory.store import Faults
from packhorse.stores.plan import Plan
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal

T = TypeVar("T")

#: No test waits longer than this for what must happen.
PATIENCE_S = 10.0
#: The event loop turns so often in `turns`.
TURNS = 200


class StoreClock(SystemClock):
    """The store's own clock, which tests can put forward."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class Counting:
    """Counts the calls of each verb of a store."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, verb: str, moment: str) -> None:
        self.calls[verb] += moment == "before"


class Trouble(Exception):
    """What handlers raise to fail."""


class Yard:
    """A store and an app's declarations, and what happened on its bus."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.store_clock = StoreClock()
        self.store = MemoryStore(clock=self.store_clock, faults=faults)
        self.registry = Registry()
        self.bus = EventBus()
        self.events: list[Event] = []
        self.middlewares: list[Any] = []
        self.lifespans: list[Any] = []
        self.queues: dict[str, QueueSettings] = {}
        self.clock = SystemClock()

    def task(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        self.registry.add(define_task(function, options))
        return function

    def declare(self, settings: QueueSettings) -> None:
        self.queues[settings.name] = settings
        self.do(self.store.queues.declare([settings]))

    def record(self, kinds: str = "*") -> list[Event]:
        self.bus.subscribe(kinds, self.events.append)
        return self.events

    def services(self, worker: str = "w", *, clock: Clock | None = None) -> ServiceContext:
        return ServiceContext(self.store, clock or self.clock, Even(), self.bus, worker)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def do(self, plan: Plan[T]) -> T:
        return self.store.run(plan)

    def submit(self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> str:
        payload = options.pop("payload", None) or msgspec.json.encode(arguments or {})
        job = NewJob(id=new_id(), task=task, payload=payload, **options)
        self.do(self.store.jobs.submit([job]))
        return job.id

    def job(self, job_id: str) -> JobRecord:
        record = self.do(self.store.inspection.job(job_id))
        assert record is not None
        return record

    def status(self, job_id: str) -> JobStatus:
        return self.job(job_id).status

    def history(self, job_id: str) -> tuple[AttemptRecord, ...]:
        return self.do(self.store.inspection.history(job_id))

    def worker(self, **options: Any) -> Worker:
        parts = Environment(
            store=self.store,
            registry=self.registry,
            bus=self.bus,
            middlewares=tuple(self.middlewares),
            lifespans=tuple(self.lifespans),
            clock=self.clock,
            queues=self.queues,
        )
        return Worker(parts, worker_options(**options))

    async def burst(self, **options: Any) -> WorkerReport:
        """Run a worker until there is nothing left to do."""
        return await asyncio.wait_for(self.worker(burst=True, **options).run(), PATIENCE_S)

    @contextlib.asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker that runs meanwhile, and is stopped afterwards."""
        worker = self.worker(**options)
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop("the test is over")
            await asyncio.wait_for(task, PATIENCE_S)

    def claim_by_hand(
        self, worker: str, task: str, *, lease_us: int = 30_000_000, quarantine: bool = False
    ) -> Job:
        """Claim one job as another worker would, which then does nothing more."""
        renewal = Renewal(worker=worker, lease_us=lease_us, queues=("default",), tasks=(task,))
        self.do(self.store.leases.renew(renewal))
        request = ClaimRequest(
            worker=worker,
            queues=("default",),
            tasks=(task,),
            limit=1,
            default_timeout_us=60_000_000,
            quarantine=quarantine,
        )
        (job,) = self.do(self.store.jobs.claim(request)).jobs
        return job


def worker_options(**options: Any) -> WorkerOptions:
    chosen: dict[str, Any] = {"queues": ("default",), "concurrency": 5, "handle_signals": False}
    return WorkerOptions(**chosen | options)


class Even:
    """A chance that always falls in the middle."""

    def roll(self) -> float:
        return 0.5


class HandClock(SystemClock):
    """A clock whose spans are those that a test says."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class AheadClock(SystemClock):
    """A worker's clock, which tests can put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def until(true: Callable[[], Any], *, within_s: float = PATIENCE_S) -> None:
    """Let the event loop turn until something holds; for what no event tells of."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.001)


async def turns() -> None:
    """Let the event loop turn so often that what could happen at once has."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def block_until(is_so: Callable[[], object]) -> None:
    """Keep the event loop, or a thread, from going on until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it is never so"
        time.sleep(0.001)


async def heard(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_S)


def names(events: Iterable[Event]) -> list[str]:
    return [event.name for event in events]
