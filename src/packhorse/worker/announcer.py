# SPDX-License-Identifier: MIT
"""What happens to attempts, as events; nothing is built that nobody asked for."""

from __future__ import annotations

from typing import Any, Final

from packhorse.clock import Chance
from packhorse.events import (
    Event,
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
from packhorse.job import DeadReason, JobStatus
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.worker.attempt import Attempt
from packhorse.worker.middleware import Middleware
from packhorse.worker.plans import limits_of

__all__ = ["Announcer"]

_ENDS: Final = (
    *(JobCompleted, JobFailed, JobTimedOut, JobRetried, JobSnoozed, JobDead, JobCancelled),
    *(JobCancelling, JobLimited, JobReleased, JobStale),
)
#: Span ids are eight bytes, as trace context has them.
_SPAN_IDS: Final = float(1 << 64)
_COMPLETED: Final = JobStatus.COMPLETED.value


class Announcer:
    """Tells the bus about attempts."""

    def __init__(self, bus: EventBus, chance: Chance, worker: str) -> None:
        self._bus = bus
        self._chance = chance
        self._worker = worker

    @property
    def wants_starts(self) -> bool:
        """Whether anybody listens to starts."""
        return self._bus.wants(JobStarted)

    @property
    def wants_ends(self) -> bool:
        """Whether anybody listens to any kind of end."""
        return any(self._bus.wants(kind) for kind in _ENDS)

    @property
    def wants_completed(self) -> bool:
        """Whether anybody listens to the most common end."""
        return self._bus.wants(JobCompleted)

    def started(self, attempt: Attempt) -> None:
        """An attempt began."""
        self._bus.emit(JobStarted(**self._about(attempt)))

    def completed(self, attempt: Attempt) -> None:
        """The result of a job was written, as `settled` would tell it with less ado."""
        about, duration_ms = self._about(attempt), attempt.duration * 1000
        self._bus.emit(JobCompleted(status=_COMPLETED, duration_ms=duration_ms, **about))

    def cancelling(self, attempt: Attempt) -> None:
        """A handler is told to stop because its job was cancelled; told once."""
        if not attempt.cancelling:
            attempt.cancelling = True
            if self._bus.wants(JobCancelling):
                self._bus.emit(JobCancelling(**self._about(attempt)))

    def abandoned(self, attempt: Attempt) -> None:
        """A handler would not stop."""
        if self._bus.wants(JobAbandoned):
            self._bus.emit(JobAbandoned(status="abandoned", **self._end(attempt, None)))

    def middleware_failed(
        self, middleware: Middleware, attempt: Attempt, error: BaseException
    ) -> None:
        """A middleware raised; the job was not touched by it."""
        self._bus.emit(
            ObserverFailed(
                worker_id=self._worker,
                observer=getattr(middleware, "__qualname__", None) or repr(middleware),
                event="middleware",
                error_type=type(error).__name__,
                error_message=str(error),
                job_id=attempt.job.id,
            )
        )

    def settled(self, attempt: Attempt, settlement: Settlement, verdict: Verdict) -> None:
        """What became of a job was written, or refused; see `completed` for the most common end."""
        end = self._end(attempt, settlement)
        if verdict is Verdict.STALE:
            self._tell(JobStale, status="stale", **end)
        elif verdict is Verdict.CANCELLED or settlement.kind is SettlementKind.CANCELLED:
            self.cancelling(attempt)
            self._tell(JobCancelled, status=JobStatus.CANCELLED.value, **end)
        else:
            self._attempt_ended(settlement, end)
            self._job_goes_on(attempt, settlement, verdict, end)

    def _attempt_ended(self, settlement: Settlement, end: dict[str, Any]) -> None:
        """How the attempt ended, whatever follows for the job."""
        status = settlement.status.value
        match settlement.kind:
            case SettlementKind.COMPLETED:
                self._tell(JobCompleted, status=status, **end)
            case SettlementKind.RELEASED:
                if settlement.ended:  # unused look-ahead is not worth a word
                    self._tell(JobReleased, status=status, **end)
            case SettlementKind.SNOOZED:
                delay_ms = settlement.delay_us / 1000
                self._tell(JobSnoozed, status=status, delay_ms=delay_ms, **end)
            case SettlementKind.LIMITED:
                waits_ms = settlement.limit_us / 1000
                self._tell(JobLimited, status=status, retry_after_ms=waits_ms, **end)
            case _:
                error = settlement.error
                timed_out = error is not None and error.type == "Timeout"
                self._tell(JobTimedOut if timed_out else JobFailed, status=status, **end)

    def _job_goes_on(
        self, attempt: Attempt, settlement: Settlement, verdict: Verdict, end: dict[str, Any]
    ) -> None:
        """What follows: a retry, or nothing more."""
        if verdict is Verdict.EXPIRED:
            reason, dead = DeadReason.EXPIRED, JobStatus.DEAD.value
            self._tell(JobDead, status=dead, reason=reason.value, **end)
        elif settlement.dead_reason is not None:
            reason, status = settlement.dead_reason, settlement.status.value
            self._tell(JobDead, status=status, reason=reason.value, **end)
        elif settlement.kind in (SettlementKind.FAILED, SettlementKind.TIMEOUT):
            self._tell(
                JobRetried,
                status=settlement.status.value,
                retry=attempt.job.failures + 1,
                max_retries=limits_of(attempt.job, attempt.plan).retry.max_retries,
                delay_ms=settlement.delay_us / 1000,
                reason=settlement.error.reason if settlement.error else "",
                **end,
            )

    def _tell(self, kind: type[JobEnded], **fields: Any) -> None:
        if self._bus.wants(kind):
            event: Event = kind(**fields)
            self._bus.emit(event)

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
                "worker_id": self._worker,
                "queue": job.queue,
                "task": job.task,
                "tenant": job.tenant,
                "attempt": job.attempts + 1,
                "trace_id": job.trace_id,
                "span_id": f"{int(self._chance.roll() * _SPAN_IDS):016x}",
                "upstream_request_id": job.upstream_request_id,
            }
        return attempt.about
