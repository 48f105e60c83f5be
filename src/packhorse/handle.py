# SPDX-License-Identifier: MIT
"""A handle on one submitted job: ask, wait, cancel, run again. Every verb has an a-twin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

import msgspec

from packhorse import events
from packhorse.artifacts import Artifact, artifacts_of, result_artifact, with_artifacts
from packhorse.client.connection import Connection
from packhorse.client.replies import Decision, cancelled, forgotten, redriven, signal_to, signalled
from packhorse.client.transactions import Written
from packhorse.client.waiting import wait_for_end
from packhorse.core.approvals import APPROVED, DECLINED
from packhorse.core.clock import SECOND_US
from packhorse.core.durations import Duration, microseconds
from packhorse.core.info import (
    Explanation,
    JobInfo,
    execution_results,
    explanation_of,
    has_attachments,
    job_info,
    waits_in_step,
    wire_task,
)
from packhorse.core.job import TERMINAL, AttemptRecord, JobRecord, JobStatus, Progress
from packhorse.core.job_logs import LogLine, log_lines_of
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.explain import JobFacts
from packhorse.core.process import in_event_loop
from packhorse.core.responses import response_of
from packhorse.core.sealing import require_open
from packhorse.errors import JobCancelled, JobConflict, JobDead, JobNotFound, StoreError, UsageError
from packhorse.protocol import Task, TaskExecutionResult, WorkerResponse
from packhorse.stores.intake import IntakeRequest
from packhorse.stores.plan import Asking, Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import RedriveAnswer

R = TypeVar("R")


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

    def status(self) -> JobStatus:
        """Where the job stands now."""
        return self._found(self.connection.run(self._read)).status

    async def astatus(self) -> JobStatus:
        """Where the job stands now."""
        return self._found(await self.connection.arun(self._read)).status

    def info(self) -> JobInfo:
        """All that is known of the job."""
        return job_info(*self._kept())

    async def ainfo(self) -> JobInfo:
        """All that is known of the job."""
        return job_info(*await self._akept())

    def signal(self, name: str, value: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send the job a signal, for `ctx.wait_for(name)`; one that comes before the wait counts.

        A finished job is a `JobConflict`. With a key, sent again it is the same signal.
        """
        send = signal_to(self.id, self.tenant, name, value, idempotency_key)
        signalled(self.id, name, self.connection.run(send))

    async def asignal(
        self, name: str, value: Any = None, *, idempotency_key: str | None = None
    ) -> None:
        """As `signal`, without blocking the event loop."""
        send = signal_to(self.id, self.tenant, name, value, idempotency_key)
        signalled(self.id, name, await self.connection.arun(send))

    def approve(self, *, by: str, note: str = "") -> bool:
        """Let a job go on that needs a person: its handler runs again, with `ctx.approval`.

        True if it waited for that; False if it does not ask yet: the approval is kept until it
        does. A job that has finished, or was answered already, is a `JobConflict`.
        """
        return self._decide(self._decision(APPROVED, by, note))

    async def aapprove(self, *, by: str, note: str = "") -> bool:
        """As `approve`, without blocking the event loop."""
        return await self._adecide(self._decision(APPROVED, by, note))

    def decline(self, *, by: str, note: str = "") -> bool:
        """End a job that needs a person: dead, `rejected`, with who declined and why.

        A worker ends it, without calling its handler. Answers as `approve` does.
        """
        return self._decide(self._decision(DECLINED, by, note))

    async def adecline(self, *, by: str, note: str = "") -> bool:
        """As `decline`, without blocking the event loop."""
        return await self._adecide(self._decision(DECLINED, by, note))

    def progress(self) -> Progress | None:
        """How far the handler last said it was."""
        return self._found(self.connection.run(self._read)).progress

    async def aprogress(self) -> Progress | None:
        """How far the handler last said it was."""
        return self._found(await self.connection.arun(self._read)).progress

    def history(self) -> list[TaskExecutionResult]:
        """One entry per attempt that ended: the first and the last 25."""
        record = self._found(self.connection.run(self._read))
        return execution_results(record, self.connection.run(self._attempts(record.id)))

    async def ahistory(self) -> list[TaskExecutionResult]:
        """One entry per attempt that ended: the first and the last 25."""
        record = self._found(await self.connection.arun(self._read))
        return execution_results(record, await self.connection.arun(self._attempts(record.id)))

    def response(self, attempt: int | None = None) -> WorkerResponse | None:
        """The worker protocol's answer to an attempt by its number, or to the last that ended.

        None while none has ended, and for an attempt that never was or is no longer kept.
        """
        record = self._found(self.connection.run(self._read))
        found = self._answer(record, self.connection.run(self._attempts(record.id)), attempt)
        return found and with_artifacts(found, self.artifacts())

    async def aresponse(self, attempt: int | None = None) -> WorkerResponse | None:
        """As `response`, without blocking the event loop."""
        record = self._found(await self.connection.arun(self._read))
        found = self._answer(record, await self.connection.arun(self._attempts(record.id)), attempt)
        return found and with_artifacts(found, await self.aartifacts())

    def artifacts(self) -> tuple[Artifact, ...]:
        """What its attempts put with `ctx.artifacts`, by name, and a result that became one."""
        return self._artifacts(*self._kept())

    async def aartifacts(self) -> tuple[Artifact, ...]:
        """As `artifacts`, without blocking the event loop."""
        return self._artifacts(*await self._akept())

    def logs(self) -> tuple[LogLine, ...]:
        """What its handler logged: of each attempt that ended the first and the last lines."""
        return log_lines_of(*self._kept())

    async def alogs(self) -> tuple[LogLine, ...]:
        """As `logs`, without blocking the event loop."""
        return log_lines_of(*await self._akept())

    def wire(self) -> Task:
        """The job as the worker protocol's `Task`, with its status and attempts as they are now."""
        return wire_task(self._found(self.connection.run(self._read)))

    async def awire(self) -> Task:
        """The job as the worker protocol's `Task`, with its status and attempts as they are now."""
        return wire_task(self._found(await self.connection.arun(self._read)))

    def explain(self) -> Explanation:
        """Why the job is not running now, or what it does instead."""
        facts = self.connection.run(self._facts)
        if facts is None:
            return self.connection.drive(self._not_begun())
        about = self._attachments(facts.record.id)
        return explanation_of(facts, self.connection.run(about) if waits_in_step(facts) else None)

    async def aexplain(self) -> Explanation:
        """Why the job is not running now, or what it does instead."""
        facts = await self.connection.arun(self._facts)
        if facts is None:
            return await self.connection.adrive(self._not_begun())
        kept = None
        if waits_in_step(facts):
            kept = await self.connection.arun(self._attachments(facts.record.id))
        return explanation_of(facts, kept)

    def result(self, timeout: Duration | None = None) -> R:
        """What the handler returned, waiting for it if need be; None waits for ever.

        Raises `JobDead`, `JobCancelled`, `JobNotFound`, or `ResultTimeout`, after which the job
        goes on regardless.
        """
        if in_event_loop():
            raise UsageError(
                f"result() of job {self.id} would block the running event loop, and the job may "
                "need that very loop to finish: use 'await job.aresult()'"
            )
        wait = self._wait(timeout)
        record = self._found(self.connection.run(self._read))
        if record.status not in TERMINAL:
            record = self.connection.wait(lambda store: wait(store, record.id))
        moved = self._moved(record)
        return self._outcome(record, None if moved is None else moved.read())

    async def aresult(self, timeout: Duration | None = None) -> R:
        """As `result`, without blocking the event loop."""
        wait = self._wait(timeout)
        record = self._found(await self.connection.arun(self._read))
        if record.status not in TERMINAL:
            record = await wait(await self.connection.astore(), record.id)
        moved = self._moved(record)
        return self._outcome(record, None if moved is None else await moved.aread())

    def cancel(self, *, tx: object = None) -> bool:
        """Cancel the job: True if it is, or its worker is told to; False if it had finished.

        With `tx`, a connection of yours, it is cancelled when its transaction commits: True.
        """
        if tx is not None:
            self.connection.transactions.write(self.connection.store, tx, self._written())
            return True
        answer = self.connection.run(self._cancel)
        if self._is_told(answer):
            with contextlib.suppress(StoreError):  # it is cancelled whatever happens
                self._tell(self.connection.run(self._read))
        return cancelled(self.id, answer)

    async def acancel(self, *, tx: object = None) -> bool:
        """As `cancel`, without blocking the event loop."""
        if tx is not None:
            store = await self.connection.astore()
            await self.connection.transactions.awrite(store, tx, self._written())
            return True
        answer = await self.connection.arun(self._cancel)
        if self._is_told(answer):
            with contextlib.suppress(StoreError):
                self._tell(await self.connection.arun(self._read))
        return cancelled(self.id, answer)

    def retry(self, *, reset_budget: bool = False) -> None:
        """Run a finished job again with fresh budgets, or a waiting one now.

        What a dead job has spent with `ctx.spend` stays spent, unless `reset_budget` is set.
        """
        redriven(self.id, self.connection.run(self._redrive(reset_budget))[0])

    async def aretry(self, *, reset_budget: bool = False) -> None:
        """As `retry`, without blocking the event loop."""
        redriven(self.id, (await self.connection.arun(self._redrive(reset_budget)))[0])

    # What the twins share: the plans, and what the answers mean.

    def _read(self, store: Store) -> Plan[JobRecord | None]:
        return store.inspection.job(self.id, tenant=self.tenant)

    def _kept(self) -> tuple[JobRecord, Attachments | None]:
        record = self._found(self.connection.run(self._read))
        about = self._attachments(record.id)
        return record, self.connection.run(about) if has_attachments(record) else None

    async def _akept(self) -> tuple[JobRecord, Attachments | None]:
        record = self._found(await self.connection.arun(self._read))
        about = self._attachments(record.id)
        return record, await self.connection.arun(about) if has_attachments(record) else None

    def _attachments(self, job_id: str) -> Callable[[Store], Plan[Attachments | None]]:
        return lambda store: store.attachments.attachments(job_id, tenant=self.tenant)

    def _decision(self, signal: str, by: str, note: str) -> Decision:
        return Decision(signal, by, note, self.connection.clock.now_us())

    def _decide(self, decision: Decision) -> bool:
        run = self.connection.run
        send = decision.about(
            self._found(run(self._read)), run(self._attachments(self.id)), self.tenant
        )
        return decision.told(self.id, run(send))

    async def _adecide(self, decision: Decision) -> bool:
        run = self.connection.arun
        record = self._found(await run(self._read))
        send = decision.about(record, await run(self._attachments(self.id)), self.tenant)
        return decision.told(self.id, await run(send))

    def _attempts(self, job_id: str) -> Callable[[Store], Plan[Any]]:
        return lambda store: store.inspection.history(job_id)

    def _facts(self, store: Store) -> Plan[JobFacts | None]:
        return store.inspection.explain(self.id, tenant=self.tenant)

    def _cancel(self, store: Store) -> Plan[CancelAnswer]:
        return store.jobs.cancel(self.id, tenant=self.tenant)

    def _written(self) -> Written:
        return Written([IntakeRequest(cancel=self.id, tenant=self.tenant)])

    def _redrive(
        self,
        reset_budget: bool,  # noqa: FBT001 - as the caller was told
    ) -> Callable[[Store], Plan[tuple[RedriveAnswer, ...]]]:
        forget = forgotten(reset_budget=reset_budget)
        return lambda store: store.jobs.redrive((self.id,), tenant=self.tenant, forget=forget)

    def _wait(
        self, timeout: Duration | None
    ) -> Callable[[Store, str], Coroutine[Any, Any, JobRecord]]:
        timeout_s = None
        if timeout is not None:
            timeout_s = microseconds(timeout, setting="timeout") / SECOND_US
        clock = self.connection.clock
        return lambda store, job_id: wait_for_end(store, job_id, timeout_s=timeout_s, clock=clock)

    def _found(self, record: JobRecord | None) -> JobRecord:
        if record is None:
            raise JobNotFound(self.id)
        if self.deduplicated is None:
            msgspec.structs.force_setattr(self, "deduplicated", record.id != self.id)
        return record

    def _not_begun(self) -> Asking[Explanation]:
        from packhorse.workflows.info import explained_job  # noqa: PLC0415 - few are of a workflow

        return explained_job(self.connection.store, self.id, self.tenant)

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

    def _answer(
        self, record: JobRecord, history: tuple[AttemptRecord, ...], attempt: int | None
    ) -> WorkerResponse | None:
        if self._moved(record) is not None:
            record = msgspec.structs.replace(record, result=None)  # among the artifacts instead
        definition = self.connection.registry.get(record.task)
        worker_id = record.task if definition is None else definition.worker_id
        return response_of(record, history, worker_id, attempt)

    def _is_told(self, answer: CancelAnswer) -> bool:
        """Whether the job ended here: what a worker has to stop, it tells itself."""
        bus = self.connection.bus
        listening = bus.wants(events.JobCancelling) or bus.wants(events.JobCancelled)
        return listening and answer is CancelAnswer.CANCELLED

    def _tell(self, record: JobRecord | None) -> None:
        if record is not None and record.status is JobStatus.CANCELLED:
            for event in events.cancelled_events(record):
                self.connection.bus.emit(event)
