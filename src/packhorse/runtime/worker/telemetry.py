# SPDX-License-Identifier: MIT
"""Emit events about attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from packhorse.core.clock import Chance
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.redaction import redacted_text
from packhorse.core.settlement import Settlement, SettlementKind, Verdict, timed_out
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
from packhorse.runtime.worker.handlers import rules_of

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
                kind = JobTimedOut if timed_out(settlement) else JobFailed
                self._emit(attempt, kind, status=status, **end)

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
            job, lost = attempt.job, settlement.lone_crashes
            limits = rules_of(job, attempt.handler)
            self._emit(
                attempt,
                JobRetried,
                status=settlement.status.value,
                retry=job.failures + settlement.failures,
                max_retries=limits.retry.max_retries,
                lone_crashes=job.lone_crashes + lost if lost else 0,
                max_crashes=limits.crashes_allowed if lost else 0,
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
                "worker_id": attempt.handler.worker_id,
                "queue": job.queue,
                "task": job.task,
                "tenant": job.tenant,
                "attempt": job.attempts + 1,
                "trace_id": job.trace_id,
                "span_id": f"{int(self._chance.roll() * _SPAN_IDS):016x}",
                "upstream_request_id": job.upstream_request_id,
            }
        return attempt.about
