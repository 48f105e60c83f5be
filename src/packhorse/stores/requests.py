# SPDX-License-Identifier: MIT
"""The requests and answers of stores, as frozen values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from packhorse.core.job import Job, JobRecord, JobStatus, Progress, RateRule, RetryRule
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.core.policies.depth import OnFull
from packhorse.core.policies.explain import JobFacts, Owner
from packhorse.core.policies.gates import OnDead
from packhorse.core.policies.lease import ASKED_NOW_US
from packhorse.core.policies.retention import Retention

#: Among the tasks of a worker: it knows every task there is.
EVERY_TASK: Final = "*"

#: Whether tenants share a queue fairly by default.
FAIR_DEFAULT: Final = True


def knows(tasks: Collection[str], task: str) -> bool:
    """Whether a worker that knows `tasks` knows this task."""
    return task in tasks or EVERY_TASK in tasks


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one submitted job."""

    job_id: str  #: the job submitted, or the one that was there before
    deduplicated: bool  #: nothing new was stored: `job_id` was there, or holds its key
    status: JobStatus  #: of that job when the whole submit was done
    #: In the last answer of a call: jobs that full queues shed for it.
    shed: tuple[str, ...] = ()


class ClaimRequest(msgspec.Struct, frozen=True):
    """A worker asks for work."""

    worker: str
    queues: tuple[str, ...]  #: equals in queue priority are served in this order
    tasks: tuple[str, ...]  #: those that this worker knows; `*` is all
    limit: int
    default_timeout_us: int  #: for jobs that name no timeout
    quarantine: bool = False  #: take only suspects, to run alone; otherwise only the others
    #: How long after the claim jobs with a rate limit may start; their logs include it.
    allowance_us: int = 0
    tenants: tuple[str, ...] = ()  #: only claim jobs of these tenants; empty: of all
    #: Of these queues only jobs of so urgent a priority (the lower number); one with ageing, whose
    #: order is not by priority, gives none then. Not asked of suspects.
    levels: dict[str, int] = {}

    @property
    def narrow(self) -> bool:
        """Whether not every job of its tasks is wanted."""
        return bool(self.tenants or self.levels)


class Claimed(msgspec.Struct, frozen=True):
    """The jobs given to a worker, and until when it may wait."""

    jobs: tuple[Job, ...]
    now_us: int  #: the store's clock at the claim; deadlines are measured from it
    #: When the next waiting job of these queues becomes due, or a limit admits one.
    next_due_us: int | None = None
    suspects: bool = False  #: a ready suspect waits to be run alone
    lease_lost: bool = False  #: this worker has no live lease, so it was given nothing
    #: Ids of jobs that a rate limit admitted: they must start within the allowance, or be released.
    rated: frozenset[str] = frozenset()


class ProgressNote(msgspec.Struct, frozen=True):
    """The progress of a running job."""

    job_id: str
    fence: int
    progress: Progress


class Parked(msgspec.Struct, frozen=True):
    """Tasks that were parked, and jobs that were given up."""

    tasks: tuple[str, ...] = ()  #: names of tasks newly parked
    dead: tuple[str, ...] = ()  #: ids of jobs that were parked too long


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has done since it started; a store keeps the highest of each."""

    succeeded: int = 0
    failed: int = 0  #: attempts that failed or timed out
    execution_us: int = 0  #: time spent in handlers


class Renewal(msgspec.Struct, frozen=True):
    """The heartbeat of a worker, with the jobs it holds."""

    worker: str
    lease_us: int
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  #: those it knows; `*` is all
    host: str = ""
    pid: int = 0
    version: str = ""
    concurrency: int = 0
    quiet: bool = False  #: it was told to claim nothing
    totals: Totals = Totals()
    #: (job id, fence) of all jobs it holds; the store releases the rest. None: not told.
    held: tuple[tuple[str, int], ...] | None = None
    #: Whether the store must do so now; else it may take some minutes.
    unsure: bool = True
    #: By how much the worker saw the store's clock set forward: older holds last that much longer.
    step_us: int = 0
    #: What the worker took the store's clock to be when it asked.
    asked_us: int = ASKED_NOW_US


class Renewed(msgspec.Struct, frozen=True):
    """The renewed lease, and what the store released."""

    expires_us: int
    now_us: int
    lapsed: bool  #: there was no live lease; jobs held under an earlier one may be given away
    released: int = 0  #: jobs the store held for this worker that it did not know of


class ExpiredLease(msgspec.Struct, frozen=True):
    """A worker that has not renewed in time and still holds jobs."""

    worker: str
    expires_us: int
    lease_us: int


class ExpiredLeases(msgspec.Struct, frozen=True):
    """All expired leases at one instant."""

    now_us: int  #: the store's clock at this look
    leases: tuple[ExpiredLease, ...]


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was declared about a queue."""

    name: str
    priority: int = 0  #: between queues of one worker; the lower is served first
    dead_letter: str | None = None  #: the shelf its dead jobs are put on
    retry: RetryRule | None = None  #: for tasks that declare none
    retention: Retention | None = None
    concurrency: int | None = None  #: jobs that run at once, over all workers
    rate: RateRule | None = None
    tenant_rate: RateRule | None = None  #: for each tenant by itself
    max_depth: int | None = None  #: jobs that may wait
    on_full: OnFull = "reject"
    soft_depth: int | None = None  #: from here on producers are asked to slow down
    fair: bool = FAIR_DEFAULT  #: tenants share it by weight
    weights: dict[str, float] = {}  #: by tenant; 1 is the default
    ageing_us: int | None = None  #: waiting so long counts as one level of priority
    on_dead: OnDead = "release"  #: what a job that dies at the head of its line does to the line
    autoscale: ScaleRule | None = None  #: for scalers; a store keeps it and does nothing with it
    background_only: bool = False  #: workers take `background` jobs while nothing else waits
    max_bytes: int | None = None  #: that payloads of unfinished jobs may have

    @property
    def limited(self) -> bool:
        """Whether a limit of its own may hold back its jobs."""
        limits = self.concurrency, self.rate, self.tenant_rate
        return any(limit is not None for limit in limits)


class TaskSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits declared for a task: per key for jobs with a key, together for those without."""

    name: str
    concurrency: int | None = None  #: jobs that run at once, over all workers and queues
    rate: RateRule | None = None


class QueueState(msgspec.Struct, frozen=True):
    """A queue as the store knows it."""

    settings: QueueSettings  #: in effect: an operator's, else the newest declared
    paused: bool = False
    declared: bool = True  #: False: known only from jobs submitted to it
    closed: bool = False  #: it takes no new jobs
    overridden: bool = False  #: an operator's settings hold instead of the declared ones
    paused_keys: tuple[str, ...] = ()
    paused_tenants: tuple[str, ...] = ()
    held_bytes: int | None = (
        None  #: of payloads of unfinished jobs; None: the queue has no `max_bytes`
    )


class Counts(msgspec.Struct, frozen=True):
    """How many jobs of one queue have each status."""

    queue: str
    by_status: dict[JobStatus, int]
    #: Since when the longest-waiting ready job of each priority waits; those with none are absent.
    oldest_ready_us_by_priority: dict[int, int] = {}
    #: Statuses of which not all jobs were counted: there are at least so many.
    at_least: frozenset[JobStatus] = frozenset()
    #: Jobs that wait in a step of their handler; `max_depth` does not count them.
    in_steps: int = 0

    @property
    def oldest_ready_us(self) -> int | None:
        """Since when the longest-waiting ready job waits."""
        return min(self.oldest_ready_us_by_priority.values(), default=None)


class JobFilter(msgspec.Struct, frozen=True):
    """Selects jobs; a part that is None matches all."""

    queue: str | None = None
    task: str | None = None
    statuses: tuple[JobStatus, ...] = ()  #: empty: all
    tenant: str | None = None
    tag: str | None = None
    created_by: str | None = None
    dead_reason: str | None = None
    dead_letter: str | None = None
    created_before_us: int | None = None
    id_part: str | None = None  #: the beginning or the end of its id


class Page(msgspec.Struct, frozen=True):
    """A page of matching jobs, newest first, and where to go on.

    A search with `most` reads no more than about so many jobs, matching or not.
    """

    jobs: tuple[JobRecord, ...]
    after: str | None = None  #: pass it to get the next page; None: there is no more
    #: The page is not full: the search ended after so many jobs, and the next page goes on there.
    stopped_after: int | None = None


class Deleted(msgspec.Struct, frozen=True):
    """The result of a deletion."""

    removed: int
    after: str | None = None  #: pass it to go on there; None: there is no more


class RedriveAnswer(StrEnum):
    """The result of a redrive, per job."""

    REDRIVEN = "redriven"
    REFUSED = "refused"  #: it is ready or running, or a node that has completed
    CONFLICT = "conflict"  #: another job holds its unique or idempotency key; it stays as it is
    UNKNOWN = "unknown"


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker as the store knows it."""

    worker: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    quiet: bool  #: it was told to claim nothing
    running: int  #: jobs it holds now, as the store counts them
    started_us: int
    renewed_us: int
    expires_us: int
    live: bool
    totals: Totals = Totals()

    @classmethod
    def of(
        cls,
        said: Renewal,
        *,
        running: int,
        totals: Totals,
        started_us: int,
        renewed_us: int,
        expires_us: int,
        now_us: int,
    ) -> WorkerRecord:
        """Return the record of a worker from its last renewal."""
        return cls(
            *(said.worker, said.host, said.pid, said.version, said.queues, said.tasks),
            *(said.concurrency, said.quiet, running, started_us, renewed_us, expires_us),
            live=expires_us > now_us,
            totals=totals,
        )


def with_workers(facts: JobFacts, workers: Iterable[WorkerRecord]) -> JobFacts:
    """Add to the facts about a job which workers could run it."""
    known, record = list(workers), facts.record
    live = [worker for worker in known if worker.live]
    serving = [worker for worker in live if record.queue in worker.queues]
    running = record.status is JobStatus.PROCESSING
    owners = [worker for worker in known if running and worker.worker == record.worker]
    return msgspec.structs.replace(
        facts,
        served=bool(serving),
        # In order: stores list workers in an order of their own.
        queues=() if serving else tuple(sorted({name for each in live for name in each.queues})),
        known=any(knows(worker.tasks, record.task) for worker in serving),
        awake=not serving or not all(worker.quiet for worker in serving),
        watched=bool(live),
        owner=Owner(owners[0].renewed_us, owners[0].expires_us) if owners else None,
        hold_until_us=facts.hold_until_us if running else None,
    )


class Outlook(msgspec.Struct, frozen=True):
    """What a worker's queues still hold for it; a burst worker ends when that is nothing."""

    ready: bool  #: a job it could run now
    retry_due_us: int | None  #: when the next retry or rescued job it could run becomes due
    orphaned: bool  #: jobs of its queues are held by workers whose lease is gone
    now_us: int
    limit_free_us: int | None = None  #: when a limit next admits a job it could run


# Known before threads decode them: two that decode the first one at once crash in msgspec.
msgspec.json.Decoder(QueueSettings)
msgspec.json.Decoder(TaskSettings)
