# SPDX-License-Identifier: MIT
"""Make the contexts of handlers, tied to the worker that runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from packhorse.artifacts import Place
from packhorse.breaker import BreakerBook
from packhorse.context import Context
from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobRecord, JobStatus, Progress
from packhorse.core.policies.attachments import Attachments
from packhorse.core.settlement import Verdict
from packhorse.hosts import HostTransaction
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.heartbeat import WorkerLease
from packhorse.runtime.worker.progress import ProgressWriter
from packhorse.runtime.worker.transactions import WorkerTransaction
from packhorse.stores.protocol import Store

__all__ = ["ContextFactory", "StoreHost", "breaker_book"]


class ContextFactory:
    """Makes contexts for attempts of one worker."""

    def __init__(
        self,
        env: Environment,
        lease: WorkerLease,
        progress: ProgressWriter,
        worker: str,
        lease_us: int,
    ) -> None:
        self.store = env.store
        self.places = env.places
        self.monotonic = env.clock.monotonic
        self.lease = lease
        self.progress = progress
        self.worker = worker
        self.lease_s = lease_us / SECOND_US
        self.state: Mapping[str, Any] = {}  #: what the lifespan hooks yielded
        self.breakers = breaker_book(env.store, env.clock.monotonic)

    def make(self, attempt: Attempt) -> Context:
        """The context of one attempt."""
        link = _WorkerHost(self, attempt)
        plan = attempt.plan
        return Context(
            attempt.job,
            link,
            worker=self.worker,
            state=self.state,
            tools=plan.tools,
            max_tokens=plan.max_tokens,
        )


def breaker_book(store: Store, monotonic: Callable[[], float]) -> BreakerBook:
    """The circuit breakers of a store, for one process."""
    return BreakerBook(
        lambda verb: store.run(verb(store)), lambda verb: store.arun(verb(store)), monotonic
    )


class StoreHost(ABC):
    """What hosts of attempts share: the store is asked about their job."""

    __slots__ = ("_job",)

    suspends = True

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    @abstractmethod
    def _store(self) -> Store: ...

    @property
    @abstractmethod
    def breakers(self) -> BreakerBook: ...

    def stored(self) -> JobRecord | None:
        return self._store.run(self._store.inspection.job(self._job.id))

    async def astored(self) -> JobRecord | None:
        return await self._store.arun(self._store.inspection.job(self._job.id))

    def still_mine(self) -> bool:
        return self._is_mine(self.stored())

    async def astill_mine(self) -> bool:
        return self._is_mine(await self.astored())

    def attachments(self) -> Attachments:
        store = self._store
        return store.run(store.attachments.attachments(self._job.id)) or Attachments()

    async def aattachments(self) -> Attachments:
        store = self._store
        return await store.arun(store.attachments.attachments(self._job.id)) or Attachments()

    def attach(self, values: dict[str, bytes]) -> bool:
        store = self._store
        plan = store.attachments.attach(self._job.id, self._job.fence, values)
        return store.run(plan) is Verdict.APPLIED

    async def aattach(self, values: dict[str, bytes]) -> bool:
        store = self._store
        plan = store.attachments.attach(self._job.id, self._job.fence, values)
        return await store.arun(plan) is Verdict.APPLIED

    def _is_mine(self, record: JobRecord | None) -> bool:
        if record is None or record.status is not JobStatus.PROCESSING:
            return False
        return record.fence == self._job.fence and not record.cancel_requested


class _WorkerHost(StoreHost):
    """The `packhorse.hosts.AttemptHost` of an attempt in this worker."""

    __slots__ = ("_attempt", "_factory")

    def __init__(self, factory: ContextFactory, attempt: Attempt) -> None:
        super().__init__(attempt.job)
        self._factory = factory
        self._attempt = attempt

    @property
    def _store(self) -> Store:
        return self._factory.store

    @property
    def breakers(self) -> BreakerBook:
        return self._factory.breakers

    @property
    def place(self) -> Place | None:
        return self._factory.places()

    def note_progress(self, progress: Progress) -> None:
        self._factory.progress.note(self._attempt, progress)

    def lease_lost(self) -> bool:
        return self._factory.lease.lost_since(self._attempt.epoch)

    def now_us(self) -> int:
        # At most: a step that slept must not find itself early when the store says it is due.
        return int(self._factory.monotonic() * SECOND_US) + self._attempt.offset_us_max

    def transaction(self) -> HostTransaction:
        factory, attempt = self._factory, self._attempt
        return WorkerTransaction(
            attempt,
            factory.store,
            lease_s=factory.lease_s,
            lease_lost=self.lease_lost,
            progress=factory.progress.take_last,
        )
