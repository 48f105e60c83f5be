# SPDX-License-Identifier: MIT
"""What happens to jobs."""

from __future__ import annotations

from packhorse.events.event import Event

__all__ = [
    "JobAbandoned",
    "JobCancelled",
    "JobCancelling",
    "JobCompleted",
    "JobDead",
    "JobEnded",
    "JobEvent",
    "JobFailed",
    "JobLimited",
    "JobReleased",
    "JobRescued",
    "JobRetried",
    "JobSnoozed",
    "JobStale",
    "JobStarted",
    "JobTimedOut",
]


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to a job."""

    job_id: str
    queue: str = ""
    task: str = ""
    tenant: str = ""
    attempt: int = 0
    trace_id: str = ""
    span_id: str = ""
    upstream_request_id: str | None = None


class JobStarted(JobEvent, frozen=True, kw_only=True):
    """An attempt begins."""

    name = "job.started"


class JobCancelling(JobEvent, frozen=True, kw_only=True):
    """Somebody wants a running job cancelled, and its handler is told."""

    name = "job.cancelling"


class JobEnded(JobEvent, frozen=True, kw_only=True):
    """An attempt is over, and what became of the job is stored."""

    status: str
    duration_ms: float = 0.0
    error_code: str = ""
    error_type: str = ""
    error_message: str = ""


class JobCompleted(JobEnded, frozen=True, kw_only=True):
    """The handler returned, and its result is stored."""

    name = "job.completed"


class JobFailed(JobEnded, frozen=True, kw_only=True):
    """The handler raised."""

    name = "job.failed"


class JobTimedOut(JobEnded, frozen=True, kw_only=True):
    """The attempt took longer than it may, or the job's deadline passed while it ran."""

    name = "job.timed_out"


class JobRetried(JobEnded, frozen=True, kw_only=True):
    """The job runs again after a failure or a timeout."""

    name = "job.retried"

    retry: int  #: how many retries this makes
    max_retries: int
    delay_ms: float
    reason: str


class JobSnoozed(JobEnded, frozen=True, kw_only=True):
    """The handler asked to be called again later."""

    name = "job.snoozed"

    delay_ms: float


class JobLimited(JobEnded, frozen=True, kw_only=True):
    """The handler met somebody else's limit: jobs of its task and rate key wait; costs nothing."""

    name = "job.limited"

    retry_after_ms: float


class JobDead(JobEnded, frozen=True, kw_only=True):
    """The job will not be tried again by itself."""

    name = "job.dead"

    reason: str


class JobCancelled(JobEnded, frozen=True, kw_only=True):
    """The job finished as cancelled; whatever its handler came to is discarded."""

    name = "job.cancelled"


class JobReleased(JobEnded, frozen=True, kw_only=True):
    """The worker gave the job back."""

    name = "job.released"


class JobStale(JobEnded, frozen=True, kw_only=True):
    """The job was somebody else's by the time its outcome was written; nothing was changed."""

    name = "job.stale"


class JobAbandoned(JobEnded, frozen=True, kw_only=True):
    """The handler did not stop when told; its slot is free, its code may still run."""

    name = "job.abandoned"


class JobRescued(JobEvent, frozen=True, kw_only=True):
    """The job was taken from a worker that is gone."""

    name = "job.rescued"

    lost_worker: str
    crashes: int  #: how often it was lost by now
    dead: bool  #: it was lost alone too often, and is given up
    delay_ms: float
