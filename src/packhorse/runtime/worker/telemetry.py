# SPDX-License-Identifier: MIT
"""Emit events about attempts, and count them for the worker's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from packhorse.core.clock import SECOND_US, Chance
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.redaction import redacted_text
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.core.text import stack_of, text_of
from packhorse.events import (
    EventBus,
    JobAbandoned,
    JobCancelled,
    JobCancelling,
    JobCompleted,
    JobDead,
    JobEnded,
    JobFailed,
    JobLimited,
    JobReleased,
    JobRetried,
    JobSnoozed,
    JobStale,
    JobStarted,
    JobTimedOut,
    ObserverFailed,
)
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.plans import limits_of
from packhorse.stores.requests import Totals

_ENDS: Final = (
    *(JobCompleted, JobFailed, JobTimedOut, JobRetried, JobSnoozed, JobDead, JobCancelled),
    *(JobCancelling, JobLimited, JobReleased, JobStale),
)
#: Span ids are eight bytes, as trace context has them.
_SPAN_IDS: Final = float(1 << 64)
_COMPLETED: Final = JobStatus.COMPLETED.value


class Announcer:
    """Emits events about attempts."""

    def __init__(self, bus: EventBus, chance: Chance, worker: str) -> None:
        self._bus = bus
        self._chance = chance
        self._worker = worker

    @property
    def wants_ends(self) -> bool:
        """Whether an observer wants any kind of end."""
        return any(self._bus.wants(kind) for kind in _ENDS)

    def started(self, attempt: Attempt) -> None:
        """Emit `JobStarted`; the caller checks first whether an observer wants it."""
        self._bus.emit(JobStarted(**self._about(attempt)))

    def completed(self, attempt: Attempt) -> None:
        """Emit `JobCompleted`: a shorter way than `settled`, for the most common end."""
        about, duration_ms = self._about(attempt), attempt.duration * 1000
        self._bus.emit(JobCompleted(status=_COMPLETED, duration_ms=duration_ms, **about))

    def cancelling(self, attempt: Attempt) -> None:
        """Emit `JobCancelling` once per attempt."""
        if not attempt.cancelling:
            attempt.cancelling = True
            if self._bus.wants(JobCancelling):
                self._bus.emit(JobCancelling(**self._about(attempt)))

    def abandoned(self, attempt: Attempt) -> None:
        """Emit `JobAbandoned`: a handler does not stop."""
        if self._bus.wants(JobAbandoned):
            self._bus.emit(JobAbandoned(status="abandoned", **self._end(attempt, None)))

    def middleware_failed(
        self, middleware: Callable[..., object], attempt: Attempt, error: BaseException
    ) -> None:
        """Report that a middleware or an instrument raised; the job was not touched by it."""
        self._bus.emit(
            ObserverFailed(
                worker=self._worker,
                observer=getattr(middleware, "__qualname__", None) or repr(middleware),
                event="middleware",
                error_type=type(error).__name__,
                error_message=redacted_text(self._bus.redact, text_of(error)),
                error_stack=redacted_text(self._bus.redact, stack_of(error) or ""),
                job_id=attempt.job.id,
            ).carrying(error)
        )

    def settled(self, attempt: Attempt, settlement: Settlement, verdict: Verdict) -> None:
        """Emit the events of a settlement that the store has answered."""
        end = self._end(attempt, settlement)
        if verdict is Verdict.STALE:
            self._emit(attempt, JobStale, status="stale", **end)
        elif verdict is Verdict.CANCELLED or settlement.kind is SettlementKind.CANCELLED:
            self.cancelling(attempt)
            self._emit(attempt, JobCancelled, status=JobStatus.CANCELLED.value, **end)
        else:
            self._attempt_ended(attempt, settlement, end)
            if settlement.error is not None:
                end["error_stack"] = settlement.error.stack or ""
            self._job_goes_on(attempt, settlement, verdict, end)

    def _attempt_ended(self, attempt: Attempt, settlement: Settlement, end: dict[str, Any]) -> None:
        """Emit how the attempt ended, whatever follows for the job."""
        status = settlement.status.value
        match settlement.kind:
            case SettlementKind.COMPLETED:
                self._emit(attempt, JobCompleted, status=status, **end)
            case SettlementKind.RELEASED:
                if settlement.ended:  # unused look-ahead has no event
                    self._emit(attempt, JobReleased, status=status, **end)
            case SettlementKind.SNOOZED:
                delay_ms = settlement.delay_us / 1000
                self._emit(attempt, JobSnoozed, status=status, delay_ms=delay_ms, **end)
            case SettlementKind.LIMITED:
                waits_ms = settlement.limit_us / 1000
                self._emit(attempt, JobLimited, status=status, retry_after_ms=waits_ms, **end)
            case _:
                error = settlement.error
                timed_out = error is not None and error.type == "Timeout"
                self._emit(attempt, JobTimedOut if timed_out else JobFailed, status=status, **end)

    def _job_goes_on(
        self, attempt: Attempt, settlement: Settlement, verdict: Verdict, end: dict[str, Any]
    ) -> None:
        """Emit what follows for the job: a retry, or its death."""
        if verdict is Verdict.EXPIRED:
            reason, dead = DeadReason.EXPIRED, JobStatus.DEAD.value
            self._emit(attempt, JobDead, status=dead, reason=reason.value, **end)
        elif settlement.dead_reason is not None:
            reason, status = settlement.dead_reason, settlement.status.value
            self._emit(attempt, JobDead, status=status, reason=reason.value, **end)
        elif settlement.kind in (SettlementKind.FAILED, SettlementKind.TIMEOUT):
            self._emit(
                attempt,
                JobRetried,
                status=settlement.status.value,
                retry=attempt.job.failures + 1,
                max_retries=limits_of(attempt.job, attempt.plan).retry.max_retries,
                delay_ms=settlement.delay_us / 1000,
                reason=settlement.error.reason if settlement.error else "",
                **end,
            )

    def _emit(self, attempt: Attempt, kind: type[JobEnded], /, **fields: Any) -> None:
        if self._bus.wants(kind):
            exception = getattr(attempt.outcome, "exception", None)
            self._bus.emit(kind(**fields).carrying(exception))

    def _end(self, attempt: Attempt, settlement: Settlement | None) -> dict[str, Any]:
        about = {**self._about(attempt), "duration_ms": attempt.duration * 1000}
        if settlement is not None and settlement.error is not None:
            about["error_code"] = settlement.error.code
            about["error_type"] = settlement.error.type
            about["error_message"] = settlement.error.message
        return about

    def _about(self, attempt: Attempt) -> dict[str, Any]:
        """The fields of every event about an attempt; its span id is drawn when first needed."""
        if attempt.about is None:
            job = attempt.job
            attempt.about = {
                "job_id": job.id,
                "worker": self._worker,
                "worker_id": attempt.plan.worker_id,
                "queue": job.queue,
                "task": job.task,
                "tenant": job.tenant,
                "attempt": job.attempts + 1,
                "trace_id": job.trace_id,
                "span_id": f"{int(self._chance.roll() * _SPAN_IDS):016x}",
                "upstream_request_id": job.upstream_request_id,
            }
        return attempt.about


EXIT_OK: Final = 0
#: Jobs were left running: their code would not stop, or their ends could not be stored.
EXIT_ABANDONED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What one worker has done since it started.

    `failed` counts attempts that failed or timed out, whether a retry follows or not; `processed`
    is `succeeded + failed`. Cancelled, snoozed, limited and released attempts are in neither.
    """

    worker: str  #: its id
    name: str
    succeeded: int
    failed: int
    timed_out: int  #: of the failed
    retried: int  #: of the failed: another attempt is scheduled
    dead: int  #: jobs given up
    snoozed: int
    limited: int  #: met a rate limit of another system
    cancelled: int
    released: int  #: given back after they had begun
    stale: int  #: ended after the job had been given away; changed nothing
    abandoned: int  #: handlers still running at the end, and ends that could not be stored
    execution_s: float  #: time spent in handlers
    uptime_s: float
    problem: str | None = None  #: why it left unasked

    @property
    def processed(self) -> int:
        """Attempts that succeeded or failed."""
        return self.succeeded + self.failed

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return EXIT_ABANDONED if self.abandoned or self.problem else EXIT_OK


class WorkerCounters:
    """The running counts of a worker."""

    __slots__ = (
        *("cancelled", "dead", "execution_s", "failed", "limited", "released", "retried"),
        *("snoozed", "stale", "succeeded", "timed_out"),
    )

    def __init__(self) -> None:
        self.succeeded = self.failed = self.timed_out = self.retried = self.dead = 0
        self.snoozed = self.limited = self.cancelled = self.released = self.stale = 0
        self.execution_s = 0.0

    def count(self, settlement: Settlement, verdict: Verdict) -> None:
        """Count one settlement that the store has answered."""
        kind = settlement.kind
        if verdict is Verdict.STALE:
            self.stale += 1
        elif verdict is Verdict.CANCELLED or kind is SettlementKind.CANCELLED:
            self.cancelled += 1
        elif kind is SettlementKind.COMPLETED:
            self.succeeded += 1
        elif kind is SettlementKind.SNOOZED:
            self.snoozed += 1
        elif kind is SettlementKind.LIMITED:
            self.limited += 1
        elif kind is SettlementKind.RELEASED:
            self.released += settlement.ended
        else:
            self._count_failure(settlement, verdict)

    @property
    def totals(self) -> Totals:
        """The totals that a lease renewal sends to the store; callable from any thread."""
        return Totals(self.succeeded, self.failed, int(self.execution_s * SECOND_US))

    def count_dead(self, number: int) -> None:
        """Count jobs that died without an attempt of this worker."""
        self.dead += number

    def _count_failure(self, settlement: Settlement, verdict: Verdict) -> None:
        error = settlement.error
        dead = settlement.dead_reason is not None or verdict is Verdict.EXPIRED
        self.failed += 1
        self.timed_out += error is not None and error.type == "Timeout"
        self.dead += dead
        self.retried += not dead

    def report(
        self,
        *,
        worker: str,
        name: str,
        uptime_s: float,
        abandoned: int,
        problem: str | None,
    ) -> WorkerReport:
        """The counts as a value."""
        counts = {slot: getattr(self, slot) for slot in self.__slots__}
        return WorkerReport(
            worker=worker,
            name=name,
            uptime_s=uptime_s,
            abandoned=abandoned,
            problem=problem,
            **counts,
        )
