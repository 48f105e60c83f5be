# SPDX-License-Identifier: MIT
"""The events: one frozen struct per kind."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from packhorse.core.job import DeadReason, JobRecord, JobStatus


class Event(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Something that happened."""

    name: ClassVar[str] = ""

    worker: str = ""  #: the id of the worker process

    @property
    def exception(self) -> BaseException | None:
        """The exception, if this process raised it. Not a field: it is never serialized."""
        return self.__dict__.get("exception")

    def carrying(self, exception: BaseException | None) -> Self:
        """Attach the exception, and return the event."""
        self.__dict__["exception"] = exception
        return self


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to a job."""

    job_id: str
    worker_id: str = ""  #: of the task's contract
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
    """A running job was asked to stop, because it is cancelled."""

    name = "job.cancelling"


class JobEnded(JobEvent, frozen=True, kw_only=True):
    """An attempt is over, and the new state of the job is stored."""

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
    """The job runs again after a failure, a timeout, or a crash of its process."""

    name = "job.retried"
    retry: int  #: how many retries this makes; a crash is none
    max_retries: int
    delay_ms: float
    reason: str
    error_stack: str = ""  #: of the last attempt, from its handler on
    lone_crashes: int = 0  #: after a crash: how many there were alone, which count
    max_crashes: int = 0  #: after a crash: with so many the job is dead


class JobSnoozed(JobEnded, frozen=True, kw_only=True):
    """The handler asked to be called again later."""

    name = "job.snoozed"
    delay_ms: float


class JobLimited(JobEnded, frozen=True, kw_only=True):
    """The handler met another system's limit: jobs of its task and rate key wait; no retry used."""

    name = "job.limited"
    retry_after_ms: float


class JobDead(JobEnded, frozen=True, kw_only=True):
    """The job will not be tried again by itself."""

    name = "job.dead"
    reason: str
    error_stack: str = ""  #: of the last attempt, from its handler on


class JobCancelled(JobEnded, frozen=True, kw_only=True):
    """The job finished as cancelled; the outcome of its handler is discarded."""

    name = "job.cancelled"


class JobReleased(JobEnded, frozen=True, kw_only=True):
    """The worker gave the job back."""

    name = "job.released"


class JobStale(JobEnded, frozen=True, kw_only=True):
    """Another worker had the job by the time its outcome was written; nothing was changed."""

    name = "job.stale"


class JobAbandoned(JobEnded, frozen=True, kw_only=True):
    """The handler did not stop when told; its slot is free, its code may still run."""

    name = "job.abandoned"


class JobRescued(JobEnded, frozen=True, kw_only=True):
    """The job was taken from a worker that is gone; it held it for `duration_ms` at most."""

    name = "job.rescued"
    lost_worker: str
    crashes: int  #: how often it has been lost
    dead: bool  #: it was lost alone too often, and is given up
    delay_ms: float


class TasksParked(Event, frozen=True, kw_only=True):
    """Ready jobs were set aside because no live worker knows their tasks."""

    name = "tasks.parked"
    tasks: tuple[str, ...]


class QueueConflict(Event, frozen=True, kw_only=True):
    """A queue was declared differently before; the new declaration stands."""

    name = "queue.conflict"
    queue: str
    before: str
    now: str


class TaskConflict(Event, frozen=True, kw_only=True):
    """The limits of a task were declared differently before; the new declaration stands."""

    name = "task.conflict"
    task: str
    before: str
    now: str


class QueueFilling(Event, frozen=True, kw_only=True):
    """A submit found the queue at its soft depth; emitted once per crossing."""

    name = "queue.filling"
    queue: str
    depth: int
    soft_depth: int
    max_depth: int | None = None


class QueueStarving(Event, frozen=True, kw_only=True):
    """Later jobs have long been started before a ready one; emitted once until that ends."""

    name = "queue.starving"
    queue: str
    waited_s: float  #: how long the longest-waiting ready job has waited
    priority: str  #: the lowest priority among the jobs started meanwhile


class WorkerStarted(Event, frozen=True, kw_only=True):
    """The worker has its lease and begins to claim."""

    name = "worker.started"
    queues: tuple[str, ...]
    concurrency: int
    store: str  #: its label, with secrets masked


class WorkerQuiet(Event, frozen=True, kw_only=True):
    """The worker claims no jobs until it is resumed; running ones go on."""

    name = "worker.quiet"
    running: int


class WorkerResumed(Event, frozen=True, kw_only=True):
    """The worker claims jobs again after it was quiet."""

    name = "worker.resumed"


class WorkerStopping(Event, frozen=True, kw_only=True):
    """The worker claims no more jobs; running ones may finish."""

    name = "worker.stopping"
    reason: str
    running: int


class WorkerStopped(Event, frozen=True, kw_only=True):
    """The worker has left."""

    name = "worker.stopped"
    processed: int
    abandoned: int


class LeaseLost(Event, frozen=True, kw_only=True):
    """The worker cannot rely on its lease any more; others may take its jobs."""

    name = "lease.lost"
    running: int


class LeaseRegained(Event, frozen=True, kw_only=True):
    """The worker has a lease again."""

    name = "lease.regained"


class StoreTrouble(Event, frozen=True, kw_only=True):
    """A store call failed after others had succeeded; it is retried."""

    name = "store.trouble"
    operation: str
    error_type: str
    error_message: str


class StoreRecovered(Event, frozen=True, kw_only=True):
    """Every kind of store call that failed has worked again."""

    name = "store.recovered"
    seconds: float


class LoopBlocked(Event, frozen=True, kw_only=True):
    """A handler has blocked the event loop for a while."""

    name = "loop.blocked"
    seconds: float
    tasks: tuple[str, ...]  #: the task that blocks it, or all whose coroutines were running
    stack: str = ""  #: where the event loop is


class ObserverFailed(Event, frozen=True, kw_only=True):
    """An observer or a middleware raised; the job was not touched by it."""

    name = "observer.failed"
    observer: str
    event: str
    error_type: str
    error_message: str
    error_stack: str = ""
    job_id: str = ""


class JobsSpooled(Event, frozen=True, kw_only=True):
    """Jobs were kept in the spool, because the store is away or others wait there already."""

    name = "jobs.spooled"
    jobs: int
    path: str


class SpoolDelivered(Event, frozen=True, kw_only=True):
    """The store has taken jobs from the spool."""

    name = "spool.delivered"
    jobs: int


class SpoolRefused(Event, frozen=True, kw_only=True):
    """The store refused a spooled submission for good; it is set aside in the spool's file."""

    name = "spool.refused"
    job_ids: tuple[str, ...]
    reason: str
    path: str


class FlowEvent(Event, frozen=True, kw_only=True):
    """A node of a hosted flow started or succeeded, or its runtime reported something else."""

    name = "flow.event"
    event: str  #: the runtime's name for it: `node_start`, `node_success`, ...
    node: str
    attempt: int = 0  #: of the node, from 0
    latency_ms: float | None = None
    queue_depth: int = 0  #: messages before and behind the node
    job_id: str = ""
    trace_id: str = ""
    tenant: str = ""
    task: str = ""
    queue: str = ""


class FlowTrouble(FlowEvent, frozen=True, kw_only=True):
    """A node failed, timed out, was tried again, was skipped, or a trace was cancelled."""

    name = "flow.trouble"
    error_code: str = ""
    error_type: str = ""


class FlowRebuilt(Event, frozen=True, kw_only=True):
    """A long-lived flow was replaced by a new one."""

    name = "flow.rebuilt"
    reason: str
    jobs: int  #: that the old one ran
    failures: int
    stopped: bool = True  #: False: it would not stop, and was left behind


def about_record(record: JobRecord, *, worker: str = "") -> dict[str, Any]:
    """Return the fields of every event about a job; `attempt` is its last one."""
    names = ("queue", "task", "tenant", "trace_id", "upstream_request_id")
    own = {name: getattr(record, name) for name in names}
    return own | {"job_id": record.id, "worker": worker, "attempt": record.counters.attempts}


def dead_event(record: JobRecord, *, worker: str = "") -> JobDead:
    """Return the event of a job that died; its last attempt, if any, has its own event."""
    error, reason = record.error, record.dead_reason or DeadReason.EXPIRED
    return JobDead(
        **about_record(record, worker=worker),
        status=JobStatus.DEAD.value,
        reason=reason.value,
        error_code=reason.value.upper() if error is None else error.code,
        error_type="" if error is None else error.type,
        error_message="" if error is None else error.message,
    )


def cancelled_events(record: JobRecord, *, worker: str = "") -> tuple[JobCancelling, JobCancelled]:
    """Return both events of cancelling a job that no worker holds."""
    about = about_record(record, worker=worker)
    return JobCancelling(**about), JobCancelled(status=JobStatus.CANCELLED.value, **about)
