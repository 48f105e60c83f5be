# SPDX-License-Identifier: MIT
"""Make the contexts of handlers, tied to the worker that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from packhorse.artifacts import Place, PlaceSource, result_artifact
from packhorse.attempt_host import AttemptHost, HostTransaction, Question
from packhorse.breaker import BreakerBook
from packhorse.client.sealed_store import sealed_digest
from packhorse.context import Context
from packhorse.core.clock import SECOND_US
from packhorse.core.generators import adrive, drive
from packhorse.core.job import JobOptions, JobRecord, JobStatus, NewJob, Progress
from packhorse.core.policies.attachments import Attaching, Attachments
from packhorse.core.policies.journal import WORKFLOW_KIND, Group, member_of
from packhorse.core.references import Wanted
from packhorse.core.sealing import require_open
from packhorse.core.settlement import Verdict
from packhorse.errors import JobConflict, UsageError
from packhorse.runtime.worker.attaching import AttachmentWriter
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.transactions import WorkerTransaction
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.workflows.graph import FlowInRun, Growing
from packhorse.workflows.records import jobs_of_parents

if TYPE_CHECKING:
    from packhorse.runtime.worker.base_runtime import Runtime

_KEPT: Final = (Verdict.APPLIED,)
T = TypeVar("T")


class ContextFactory:
    """Makes contexts for attempts of one worker."""

    def __init__(self, runtime: Runtime) -> None:
        env = runtime.env
        self.store = env.store
        self.redact = env.bus.redact
        self.places = env.places
        self.app: Any = env.app
        self.monotonic = env.clock.monotonic
        self.lease = runtime.lease
        self.progress = runtime.progress
        self.worker = runtime.worker
        self.lease_s = runtime.options.lease_us / SECOND_US
        self.state: Mapping[str, Any] = {}  #: what the lifespan hooks yielded
        self.breakers = breaker_book(env.store, env.clock.monotonic)
        self.attachments = AttachmentWriter(env.store)

    def make(self, attempt: Attempt) -> Context:
        """Make the context of one attempt."""
        return made_context(attempt, _WorkerHost(self, attempt), self.worker, self.state)


def made_context(
    attempt: Attempt, host: AttemptHost, worker: str, state: Mapping[str, Any]
) -> Context:
    """Make the context of one attempt in this worker, or in one of its processes."""
    handler = attempt.handler
    return Context(
        *(attempt.job, host),
        worker=worker,
        worker_id=handler.worker_id,
        state=state,
        tools=handler.tools,
        max_tokens=handler.max_tokens,
    )


def breaker_book(store: Store, monotonic: Callable[[], float]) -> BreakerBook:
    """Make the circuit breakers of a store, for one process."""
    return BreakerBook(
        lambda verb: store.run(verb(store)), lambda verb: store.arun(verb(store)), monotonic
    )


class Resources(Protocol):
    """What all attempts of a worker, or of one of its processes, share."""

    app: Any
    monotonic: Callable[[], float]

    @property
    def store(self) -> Store: ...
    @property
    def places(self) -> Callable[[], Place | None]: ...
    @property
    def breakers(self) -> BreakerBook: ...


class StoreHost:
    """The part of an attempt's host that asks the store about its job."""

    __slots__ = ("_attempt", "_flow", "_job", "_monotonic", "_resources")

    suspends = True

    def __init__(self, attempt: Attempt, resources: Resources) -> None:
        self._attempt = attempt
        self._job = attempt.job
        self._resources = resources
        self._monotonic = resources.monotonic
        self._flow: FlowInRun | None = None

    def now_us(self) -> int:
        return int(self._monotonic() * SECOND_US) + self._attempt.offset_us_max

    def passed_us(self) -> int:
        return int(self._monotonic() * SECOND_US) + self._attempt.offset_us

    @property
    def _store(self) -> Store:
        return self._resources.store

    @property
    def place(self) -> Place | None:
        """Where artifacts are kept."""
        return self._resources.places()

    @property
    def breakers(self) -> BreakerBook:
        return self._resources.breakers

    def _node_job(self, call: Any, job_id: str) -> NewJob:
        """Make the job of a workflow node from a call."""
        job: NewJob = self._resources.app._node_job(call, job_id)  # noqa: SLF001 - for workers alone
        return job

    def member_job(self, job: NewJob, payload: bytes) -> NewJob:
        made: NewJob = self._resources.app._member_job(job, payload)  # noqa: SLF001 - for workers alone
        return made

    def digest(self, text: str) -> str:
        return sealed_digest(self._store, text)

    def stored(self, store: Store) -> Asking[JobRecord | None]:
        record: JobRecord | None = yield store.inspection.job(self._job.id)
        return record

    def still_mine(self, store: Store) -> Asking[bool]:
        record = yield from self.stored(store)
        if record is None or record.status is not JobStatus.PROCESSING:
            return False
        return record.fence == self._job.fence and not record.cancel_requested

    def attachments(self, store: Store) -> Asking[Attachments]:
        return (yield store.attachments.attachments(self._job.id)) or Attachments()

    def attach(self, values: dict[str, bytes]) -> bool:
        store = self._store
        return store.run(store.attachments.attach([self._with(values)])) == _KEPT

    def aattach(self, values: dict[str, bytes]) -> Awaitable[bool]:
        return self._aattach(self._with(values))

    async def _aattach(self, one: Attaching) -> bool:
        store = self._store
        return await store.arun(store.attachments.attach([one])) == _KEPT

    def _with(self, values: dict[str, bytes]) -> Attaching:
        return Attaching(self._job.id, self._job.fence, values)

    def ask(self, asking: Question[T]) -> T:
        return drive(asking(self._store), self._store.run)

    async def aask(self, asking: Question[T]) -> T:
        return await adrive(asking(self._store), self._store.arun)

    def results(self, wanted: Wanted) -> list[bytes | None]:
        found = self.ask(lambda store: jobs_of_parents(store, wanted, self._job.id))
        return [self._result(record) for record in found]

    async def aresults(self, wanted: Wanted) -> list[bytes | None]:
        found = await self.aask(lambda store: jobs_of_parents(store, wanted, self._job.id))
        return await asyncio.to_thread(lambda: [self._result(record) for record in found])

    def _result(self, record: JobRecord | None) -> bytes | None:
        """Return the result of a completed job, wherever it is kept; None if there is none."""
        if record is None:
            return None
        if record.result is None:
            raise JobConflict(
                f"the result of job {record.id} is no longer kept, and job {self._job.id} has it "
                "among its arguments; raise result_ttl of its task, or start the workflow again",
                job_id=record.id,
            )
        moved = result_artifact(
            record.id, record.result, PlaceSource(lambda: self.place, chosen=True)
        )
        return moved.read() if moved else require_open(record.result, record.id, "result")

    def flow(self) -> FlowInRun:
        if self._flow is not None:
            return self._flow
        options = self._job.options
        read = None if options is None else msgspec.json.decode(options, type=JobOptions)
        member = member_of(read)
        if member is None or Group.of(member.group).kind != WORKFLOW_KIND:
            raise UsageError(
                f"job {self._job.id} is no node of a workflow: start one with app.workflow(...)"
            )
        self._flow = FlowInRun(Growing(member, self._job, self._node_job), self)
        return self._flow


class _WorkerHost(StoreHost):
    """The `packhorse.attempt_host.AttemptHost` of an attempt in this worker."""

    __slots__ = ("_factory",)

    def __init__(self, factory: ContextFactory, attempt: Attempt) -> None:
        super().__init__(attempt, factory)
        self._factory = factory

    def attach(self, values: dict[str, bytes]) -> bool:
        return self._factory.attachments.keep(self._with(values))

    def aattach(self, values: dict[str, bytes]) -> Awaitable[bool]:
        return self._factory.attachments.akeep(self._with(values))

    def note_progress(self, progress: Progress) -> None:
        self._factory.progress.note(self._attempt, progress)

    def lease_lost(self) -> bool:
        return self._factory.lease.lost_since(self._attempt.epoch)

    def transaction(self) -> HostTransaction:
        return WorkerTransaction(self._attempt, self._factory)
