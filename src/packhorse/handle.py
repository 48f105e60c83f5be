# SPDX-License-Identifier: MIT
"""A handle on one submitted job: ask, wait, cancel, run again. Every verb has an a-twin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

import msgspec

from packhorse import events
from packhorse.artifacts import Artifact, artifacts_of, result_artifact, with_artifacts
from packhorse.client.replies import (
    cancelled,
    consent_of,
    forgotten,
    redriven,
    signal_text,
    signalled,
)
from packhorse.client.store_access import Connection
from packhorse.client.transactions import Written
from packhorse.client.waiting import wait_for_end
from packhorse.core.approvals import APPROVED, DECLINED, answer_of
from packhorse.core.clock import SECOND_US
from packhorse.core.durations import Duration, microseconds
from packhorse.core.generators import awaited, blocking
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import TERMINAL, AttemptRecord, JobRecord, JobStatus, Progress
from packhorse.core.job_info import (
    Explanation,
    JobInfo,
    execution_results,
    explanation_of,
    has_attachments,
    job_info,
    waits_in_step,
    wire_task,
)
from packhorse.core.job_logs import LogLine, log_lines_of
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.explain import JobFacts
from packhorse.core.responses import response_of
from packhorse.core.sealing import require_open
from packhorse.errors import JobCancelled, JobConflict, JobDead, JobNotFound, StoreError, UsageError
from packhorse.protocol import Task, TaskExecutionResult, WorkerResponse
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.intake import IntakeRequest
from packhorse.stores.plan import Asking, Plan
from packhorse.stores.protocol import Store

R = TypeVar("R")
T = TypeVar("T")


class JobHandle(msgspec.Struct, Generic[R], frozen=True, eq=False):
    """One job, by its id; nothing is read before a verb asks."""

    id: str
    #: Nothing new was stored: it was there, by its id or as holder of a key. None: it was submitted
    #: with `tx`, and no verb of this handle has seen it admitted yet.
    deduplicated: bool | None
    connection: Connection
    tenant: str | None = None  #: sees only this one's

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobHandle):
            return NotImplemented
        return (self.id, self.deduplicated) == (other.id, other.deduplicated)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, deduplicated={self.deduplicated!r})"

    @blocking
    def status(self) -> Asking[JobStatus]:
        """Return the job's status as it is now."""
        return (yield from self._record()).status

    astatus = awaited(status)

    @blocking
    def info(self) -> Asking[JobInfo]:
        """Return everything the store knows of the job."""
        return job_info(*(yield from self._kept()))

    ainfo = awaited(info)

    @blocking
    def signal(
        self, name: str, value: Any = None, *, idempotency_key: str | None = None
    ) -> Asking[None]:
        """Send the job a signal for `ctx.wait_for(name)`; it may come before the wait.

        Raises `JobConflict` if the job has finished. A signal sent again with the same key is the
        same signal.
        """
        text, delivery = signal_text(name, value, idempotency_key)
        answer: DeliverAnswer = yield self.connection.store.attachments.deliver(
            self.id, name, text, tenant=self.tenant, delivery=delivery
        )
        signalled(self.id, name, answer)

    asignal = awaited(signal)

    @blocking
    def approve(self, *, by: str, note: str = "") -> Asking[bool]:
        """Approve a job that asks a person: its handler runs again, with `ctx.approval`.

        True if the job was waiting for it; False if it has not asked yet: the approval is kept
        until it does. Raises `JobConflict` if the job has finished or was answered before.
        """
        return self._decided(APPROVED, by, note)

    aapprove = awaited(approve)

    @blocking
    def decline(self, *, by: str, note: str = "") -> Asking[bool]:
        """Decline a job that asks a person: it ends dead, `rejected`, with who declined and why.

        A worker ends it without calling its handler. Answers as `approve` does.
        """
        return self._decided(DECLINED, by, note)

    adecline = awaited(decline)

    @blocking
    def progress(self) -> Asking[Progress | None]:
        """Return the progress that the handler last reported."""
        return (yield from self._record()).progress

    aprogress = awaited(progress)

    @blocking
    def history(self) -> Asking[list[TaskExecutionResult]]:
        """Return one entry per attempt that ended: the first 25 and the last 25."""
        return execution_results(*(yield from self._attempts()))

    ahistory = awaited(history)

    @blocking
    def response(self, attempt: int | None = None) -> Asking[WorkerResponse | None]:
        """Return the worker protocol's answer to an attempt by its number, or to the last one.

        None while no attempt has ended, and for an attempt that never was or is no longer kept.
        """
        record, history = yield from self._attempts()
        worker_id = self.connection.registry.worker_id_of(record.task)
        moved = self._moved(record)  # a result that became an artifact is among those instead
        shown = record if moved is None else msgspec.structs.replace(record, result=None)
        found = response_of(shown, history, worker_id, attempt)
        return found and with_artifacts(found, self._artifacts(*(yield from self._kept())))

    aresponse = awaited(response)

    @blocking
    def artifacts(self) -> Asking[tuple[Artifact, ...]]:
        """Return what its attempts put with `ctx.artifacts`, and a result that became one."""
        return self._artifacts(*(yield from self._kept()))

    aartifacts = awaited(artifacts)

    @blocking
    def logs(self) -> Asking[tuple[LogLine, ...]]:
        """Return what its handler logged: the first and the last lines of each ended attempt."""
        return log_lines_of(*(yield from self._kept()))

    alogs = awaited(logs)

    @blocking
    def wire(self) -> Asking[Task]:
        """Return the job as the worker protocol's `Task`, with its present status and attempts."""
        return wire_task((yield from self._record()))

    awire = awaited(wire)

    @blocking
    def explain(self) -> Asking[Explanation]:
        """Say why the job is not running now, or what it does instead."""
        return explained(self)

    aexplain = awaited(explain)

    @blocking
    def retry(self, *, reset_budget: bool = False) -> Asking[None]:
        """Run a finished job again with fresh budgets, or a waiting one now.

        What a dead job has spent with `ctx.spend` stays spent, unless `reset_budget` is set.
        """
        forget = forgotten(reset_budget=reset_budget)
        answers = yield self.connection.store.jobs.redrive(
            (self.id,), tenant=self.tenant, forget=forget
        )
        redriven(self.id, answers[0])

    aretry = awaited(retry)

    def result(self, timeout: Duration | None = None) -> R:
        """Return what the handler returned; wait for it, without a `timeout` for ever.

        Raises `JobDead`, `JobCancelled`, `JobNotFound`, or `ResultTimeout`, after which the job
        goes on regardless.
        """
        if in_event_loop():
            raise UsageError(
                f"result() of job {self.id} would block the running event loop, and the job may "
                "need that very loop to finish: use 'await job.aresult()'"
            )
        wait = self._wait(timeout)
        record = self.connection.drive(self._record())
        if record.status not in TERMINAL:
            record = self.connection.wait(lambda store: wait(store, record.id))
        moved = self._moved(record)
        return self._outcome(record, None if moved is None else moved.read())

    async def aresult(self, timeout: Duration | None = None) -> R:
        """As `result`, without blocking the event loop."""
        wait = self._wait(timeout)
        record = await self.connection.adrive(self._record())
        if record.status not in TERMINAL:
            record = await wait(await self.connection.astore(), record.id)
        moved = self._moved(record)
        return self._outcome(record, None if moved is None else await moved.aread())

    def cancel(self, *, tx: object = None) -> bool:
        """Cancel the job: True if it is cancelled or its worker will stop it, False if finished.

        With `tx`, a connection of yours, it is cancelled when its transaction commits: True.
        """
        if tx is not None:
            self.connection.transactions.write(self.connection.store, tx, self._cancel_request())
            return True
        return self.connection.drive(self._cancelled())

    async def acancel(self, *, tx: object = None) -> bool:
        """As `cancel`, without blocking the event loop."""
        if tx is not None:
            store = await self.connection.astore()
            await self.connection.transactions.awrite(store, tx, self._cancel_request())
            return True
        return await self.connection.adrive(self._cancelled())

    # -------------------------------------------------------------------------------- reading

    def _drive(self, work: Asking[T]) -> T:
        return self.connection.drive(work)

    async def _adrive(self, work: Asking[T]) -> T:
        return await self.connection.adrive(work)

    def _record(self) -> Asking[JobRecord]:
        inspection = self.connection.store.inspection
        record: JobRecord | None = yield inspection.job(self.id, tenant=self.tenant)
        if record is None:
            raise JobNotFound(self.id)
        if self.deduplicated is None:
            msgspec.structs.force_setattr(self, "deduplicated", record.id != self.id)
        return record

    def _kept(self) -> Asking[tuple[JobRecord, Attachments | None]]:
        record = yield from self._record()
        kept = None
        if has_attachments(record):
            kept = yield self._attachments(record.id)
        return record, kept

    def _attachments(self, job_id: str) -> Plan[Attachments | None]:
        return self.connection.store.attachments.attachments(job_id, tenant=self.tenant)

    def _attempts(self) -> Asking[tuple[JobRecord, tuple[AttemptRecord, ...]]]:
        record = yield from self._record()
        return record, (yield self.connection.store.inspection.history(record.id))

    def _decided(self, signal: str, by: str, note: str) -> Asking[bool]:
        made_us = self.connection.clock.now_us()
        answer_of(1, by, note, made_us)  # refuses bad values before the store is read
        record = yield from self._record()
        kept: Attachments | None = yield self._attachments(self.id)
        consent = consent_of(record, kept)
        value = answer_of(consent.number, by, note, made_us)
        answer: DeliverAnswer = yield self.connection.store.attachments.deliver(
            record.id, signal, value, tenant=self.tenant
        )
        signalled(self.id, signal, answer)
        return consent.waits

    def _cancel_request(self) -> Written:
        return Written([IntakeRequest(cancel=self.id, tenant=self.tenant)])

    def _cancelled(self) -> Asking[bool]:
        return cancelled(self.id, (yield from cancelling(self)))

    def _wait(
        self, timeout: Duration | None
    ) -> Callable[[Store, str], Coroutine[Any, Any, JobRecord]]:
        timeout_s = None
        if timeout is not None:
            timeout_s = microseconds(timeout, setting="timeout") / SECOND_US
        clock = self.connection.clock
        return lambda store, job_id: wait_for_end(store, job_id, timeout_s=timeout_s, clock=clock)

    def _moved(self, record: JobRecord) -> Artifact | None:
        """The artifact that the result became, if it did."""
        return result_artifact(record.id, record.result, self.connection.places)

    def _artifacts(self, record: JobRecord, kept: Attachments | None) -> tuple[Artifact, ...]:
        moved = self._moved(record)
        put = () if kept is None else artifacts_of(kept.values, self.connection.places)
        return put if moved is None else (*put, moved)

    def _outcome(self, record: JobRecord, moved: bytes | None = None) -> R:
        if record.status is JobStatus.CANCELLED:
            raise JobCancelled(self.id)
        if record.status is JobStatus.DEAD:
            error = record.error
            raise JobDead(
                self.id,
                reason=str(record.dead_reason or "unknown"),
                error=None if error is None else f"{error.type}: {error.message}",
            )
        if record.result is None:
            raise JobConflict(
                f"job {self.id} completed, but its result is no longer kept: its lifetime has "
                "passed; read results sooner, or raise result_ttl or the queue's retention",
                job_id=self.id,
            )
        result = moved or require_open(record.result, record.id, "result")
        return self._decoded(record.task, result)

    def _decoded(self, task: str, result: bytes) -> R:
        """The result as its task annotates it; as plain JSON values where it is not known."""
        definition = self.connection.registry.get(task)
        if definition is None:
            return cast("R", msgspec.json.decode(result))
        return cast("R", definition.signature.decode_result(result))


def cancelling(job: JobHandle[Any]) -> Asking[CancelAnswer]:
    """Cancel a job; emit the events of one that ended here. Its worker emits those of others."""
    bus, store = job.connection.bus, job.connection.store
    answer: CancelAnswer = yield store.jobs.cancel(job.id, tenant=job.tenant)
    observed = bus.wants(events.JobCancelling) or bus.wants(events.JobCancelled)
    if observed and answer is CancelAnswer.CANCELLED:
        record: JobRecord | None = None
        with contextlib.suppress(StoreError):  # it is cancelled whatever happens
            record = yield store.inspection.job(job.id, tenant=job.tenant)
        if record is not None and record.status is JobStatus.CANCELLED:
            for event in events.cancelled_events(record):
                bus.emit(event)
    return answer


def explained(job: JobHandle[Any]) -> Asking[Explanation]:
    """Explain why a job, or the node of a workflow that will have this id, does not run."""
    store = job.connection.store
    facts: JobFacts | None = yield store.inspection.explain(job.id, tenant=job.tenant)
    if facts is None:
        from packhorse.workflows.info import explained_job  # noqa: PLC0415 - rarely needed

        return (yield from explained_job(store, job.id, job.tenant))
    kept: Attachments | None = None
    if waits_in_step(facts):
        kept = yield store.attachments.attachments(facts.record.id, tenant=job.tenant)
    return explanation_of(facts, kept)
