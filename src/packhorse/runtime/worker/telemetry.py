# SPDX-License-Identifier: MIT
"""Emit events about attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from packhorse.core.clock import Chance
from packhorse.core.job import JobStatus
from packhorse.core.redaction import redacted_text
from packhorse.core.settlement import Settlement, SettlementKind, Verdict, end_events
from packhorse.core.text import stack_of, text_of
from packhorse.events import (
    EventBus,
    JobAbandoned,
    JobCancelled,
    JobCancelling,
    JobCompleted,
    JobDead,
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
            self._bus.emit(JobAbandoned(status="abandoned", **self._end(attempt)))

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
        if verdict is Verdict.CANCELLED or settlement.kind is SettlementKind.CANCELLED:
            self.cancelling(attempt)
        job, limits = attempt.job, rules_of(attempt.job, attempt.handler)
        exception = getattr(attempt.outcome, "exception", None)
        for event in end_events(
            *(settlement, verdict, self._end(attempt), job),
            max_retries=limits.retry.max_retries,
            max_crashes=limits.crashes_allowed,
        ):
            if self._bus.wants(type(event)):
                self._bus.emit(event.carrying(exception))

    def _end(self, attempt: Attempt) -> dict[str, Any]:
        return {**self._about(attempt), "duration_ms": attempt.duration * 1000}

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
