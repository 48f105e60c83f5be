# SPDX-License-Identifier: MIT
"""What every store promises. The docstring of a verb is its contract, one test per sentence.

A verb returns a `Plan`; `Store.run` and `Store.arun` run it. Every plan is atomic: all of it
happens, or none. Every instant is judged by the store's clock. Every write about a processing
job is guarded by job id, fence and status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from packhorse.core.job import LOOK_MAX, AttemptRecord, JobRecord, NewJob
from packhorse.core.lifecycle import CancelAnswer, Orphan
from packhorse.core.policies.explain import JobFacts
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.attachments import AttachmentStore
from packhorse.stores.intake import Intake
from packhorse.stores.plan import Listener, Plan, Wakeups
from packhorse.stores.records import JournalStore, RecordStore
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    Counts,
    Deleted,
    ExpiredLeases,
    JobFilter,
    Outlook,
    Page,
    Parked,
    ProgressNote,
    QueueSettings,
    QueueState,
    RedriveAnswer,
    Renewal,
    Renewed,
    Submitted,
    TaskSettings,
    WorkerRecord,
)
from packhorse.stores.transactions import TransactionStore
from packhorse.stores.transfer import TransferStore

__all__ = [
    "AttachmentStore",
    "Contracts",
    "InspectionStore",
    "JobStore",
    "JournalStore",
    "LeaseStore",
    "Listener",
    "QueueStore",
    "RecordStore",
    "Store",
    "UpkeepStore",
    "Wakeups",
]

T = TypeVar("T")


class JobStore(Protocol):
    """Durable jobs with exclusive, fenced claims."""

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        """Store all of `jobs` or none, and answer each in order.

        A job due now is queued and takes its place behind those already ready; one due later is
        pending. A job whose id is known (not if `ids_are_new`) or comes twice stays as it is and is
        answered `deduplicated`, or is a `JobConflict` (`policies.uniqueness.refuse_strangers`).

        Workers of the queue are woken. For jobs whose id is new, in this order: a queue that is
        some queue's dead-letter shelf is a `ConfigError`; a closed queue is `QueueClosed`; a weight
        that a rate limit of the job could never let in is a `ConfigError`; a holder of the
        idempotency key (`policies.uniqueness`) is the answer, or the submit is
        `IdempotencyMismatch` if its digest is another; a holder of the unique key is dealt with as
        `policies.uniqueness.conflict` says, and is the answer; where more would wait than
        `max_depth`, or be unfinished than `max_bytes`, the submit is `QueueFull`, or, if the queue
        drops, those that `policies.depth.shed` names are dead `shed` and told. Jobs of one call
        meet each other as if submitted one by one. A job stored takes its keys, and a number at the
        end of its line. A stashed job is submitted, whatever the depth, when the holder of its key
        ends.
        """

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """Hand at most `limit` ready jobs to this worker alone, each with a fence one higher.

        First the queues with the lowest queue priority; inside a queue `policies.fairness.
        claim_rank`: lower priority number first, then the order of becoming ready. Paused queues
        give nothing, nor do jobs whose task the worker does not know, whose deadline has passed,
        or that are parked. Due jobs (pending, failed, timeout) become queued first, at most 1,000 a
        queue, in (due, sequence) order. Suspects are given only to a quarantine claim, which gives
        nothing else and marks them as running alone. A worker without a live lease is given
        nothing and told so. `started_us` is the claim's instant; the hold limit is
        `lifecycle.hold_until_us`. A worker with `*` among its tasks knows every task, here and in
        every other verb (`requests.knows`). With `tenants` only their jobs are given.

        A job is given only while all its gates (`policies.gates`) let it through: those held back
        stay as they are, and others are given in their stead. A rate limit is charged at the
        claim, and never refunded. When fewer than `limit` were given, `next_due_us` also covers
        the first instant at which time opens a gate that held back a job. Submits that wait for
        room in a queue with a `max_depth` is woken.
        """

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        """Write each settlement whose fence is current, and answer each in order.

        It applies while the job is processing with that fence, as `lifecycle.resolve` says; the
        same settlement sent again (same fence, same kind) is answered as applied and changes
        nothing; any other is stale and changes nothing. A rescue applies only while the owner's
        lease is gone or the hold limit has passed, and is never remembered as the owner's own
        settlement. A settlement that ended an execution adds a line to the history, of which the
        first and last 25 are kept. A job that waits again loses its place unless `keep_place`;
        one that dies is put on its queue's dead-letter shelf, if it has one. Those who wait for a
        job that finished are woken, and so are workers when a job becomes ready or due, or when
        a gate opens. A limited one closes its rate gate (`policies.gates.rate_gate`) for
        `limit_us` from now, and never makes an earlier closing shorter. One that `waits` for a
        signal is queued at once if more came than it has seen (`AttachmentStore.deliver`).
        """

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        """Keep the newest progress of each job whose fence is current; others are stale."""

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        """Finish a waiting job as cancelled, flag a running one and wake its worker.

        As `lifecycle.cancel` says, and `cancel_lost` there. A job of another tenant is unknown.
        """

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None, forget: Sequence[str] = ()
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        """Make finished jobs ready again with fresh budgets, and waiting ones due now.

        As `lifecycle.redrive_allowed` and `journal.ran_once` say, per item. Id, fence, history,
        attempts, crashes and releases stay; failures, snoozes and lone crashes begin at zero;
        result, error, dead reason, shelf and cancel flag are cleared, and a deadline that has
        passed is dropped. A redriven job takes a new place. One that had finished takes its keys
        again and goes to the end of its line; where another job holds one of its keys it is a
        `CONFLICT`. One that had finished loses what is attached to it under the names to `forget`,
        values and signals.
        """

    def delete(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int = LOOK_MAX
    ) -> Plan[Deleted]:
        """Remove at most `limit` of the finished jobs meant, oldest first, with their history.

        It begins behind `after`, looks at about `most` jobs, and answers where to go on. Members of
        groups whose record is there and does not expire are spared: those groups have not ended.
        """

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        """Write down that a handle waits for this job, then read it.

        The interest is written first, so that an end in between is not missed.
        """


class LeaseStore(Protocol):
    """Who lives, who holds what, and what was lost."""

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        """Extend or begin the worker's lease; `lapsed` tells that there was no live one.

        It had run out, or the store does not know the worker. With a lease of no length it has run
        out at once, and its jobs stay as they are. One that comes late counts from when it was
        asked for (`asked_us`), and takes nothing from a newer one. When `held` is given, processing
        jobs of this worker that are not in it are released: they become queued in their old place,
        and only `releases` rises; unless the worker is `unsure`, that may take some minutes. Jobs
        it was given before the clock was set forward by `step_us` may be held so much longer.
        """

    def leave(self, worker: str) -> Plan[int]:
        """End the worker's lease at once; whatever it still holds is released. Says how much."""

    def cancelled(self, worker: str) -> Plan[tuple[str, ...]]:
        """The ids of jobs this worker holds that are to be cancelled. Reads only."""

    def expired(self) -> Plan[ExpiredLeases]:
        """Leases that have run out while their workers hold jobs, and the clock. Reads only.

        Jobs of a worker that the store does not know are held under one that expired at instant 0.
        """

    def orphans(self, workers: Sequence[str], *, limit: int) -> Plan[tuple[Orphan, ...]]:
        """Processing jobs that no worker holds rightfully any more, at most `limit`. Reads only.

        Those of `workers` whose lease is still expired, and of any whose hold limit has passed.
        """

    def workers(self) -> Plan[tuple[WorkerRecord, ...]]:
        """The workers known, live or not, by id. Reads only."""


class QueueStore(Protocol):
    """What queues are set to."""

    def declare(self, queues: Sequence[QueueSettings]) -> Plan[tuple[QueueSettings | None, ...]]:
        """Keep each declaration; answer with the one it replaced where that differed.

        A queue named like some queue's dead-letter shelf, or a shelf named like a declared queue,
        is a `ConfigError`, and nothing is kept. Where the settings that hold have changed, workers
        and those who wait for room are woken. Jobs that are ready keep the rank they have: other
        `fair`, `weights` and `ageing_us` rank only those that become ready from now on.
        """

    def declare_tasks(self, tasks: Sequence[TaskSettings]) -> Plan[tuple[TaskSettings | None, ...]]:
        """Keep the limits of each task; answer with what they replaced where that differed.

        Where they changed, the workers of every queue with a ready job of the task are woken.
        """

    def override(self, queue: str, settings: QueueSettings | None) -> Plan[bool]:
        """Let an operator's settings hold instead of every declaration, until None ends it.

        Says whether that changed anything; refuses and wakes as `declare` does.
        """

    def pause(
        self, queue: str, *, paused: bool, key: str | None = None, tenant: str | None = None
    ) -> Plan[bool]:
        """Stop or go on giving out a queue's jobs; says whether that changed anything.

        With `key`, only those whose ordering, concurrency or rate key it is; with `tenant`, only
        that tenant's; both are a `ConfigError`. Running jobs go on. Resuming wakes workers.
        """

    def close_queue(self, queue: str, *, closed: bool) -> Plan[bool]:
        """Refuse or take new jobs for a queue; says whether that changed anything.

        What is there goes on, with its retries, redrives and stashed jobs.
        """

    def queues(self, *, holding: bool = True) -> Plan[tuple[QueueState, ...]]:
        """Every queue declared, set, paused, closed, or, if asked for, `holding` a job, by name."""

    def tasks(self) -> Plan[tuple[TaskSettings, ...]]:
        """The limits of every task that was declared with some, by name. Reads only."""

    def depth(self, queue: str) -> Plan[int]:
        """Pending + queued + failed + timeout. Reads only."""


class UpkeepStore(Protocol):
    """What keeps a store tidy; any number of processes may call these at once."""

    def promote(self, *, limit: int) -> Plan[int]:
        """Make due jobs queued, in (due, sequence) order; queues share `limit`, one each at least.

        Says how many. A rescued job keeps its place; any other takes a new one. Workers are woken.
        """

    def expire(self, *, limit: int) -> Plan[tuple[str, ...]]:
        """Give up at most `limit` waiting jobs past their deadline, dead `expired`; says which."""

    def park(self, *, after_us: int, limit: int) -> Plan[Parked]:
        """Set aside ready jobs that no live worker knows; give up those set aside too long.

        A ready job is parked when no live worker that serves its queue knows its task, while some
        live worker serves that queue. Parked jobs a live worker now knows are ready again, in
        their old place. A job parked for `after_us` becomes dead `unknown_task`. At most `limit`
        of each. Answers the names of tasks newly parked, and the ids of those given up.
        """

    def prune(self, *, limit: int) -> Plan[int]:
        """Remove at most `limit` records and results whose lifetime has passed; says how many.

        With what jobs leave of `limit`, workers go too who are ghosts by `policies.retention`.
        A worker that holds a job stays until that was rescued, and a living one always stays.
        Closings and logs of rate gates that are over are forgotten as well, and at most `limit`
        records (`RecordStore`) that have expired; they are not counted.
        """


class InspectionStore(Protocol):
    """Reading, for handles, the command line and the dashboard. Nothing here writes."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        """The job, or None; a job of another tenant is None. `attempts` counts ended ones only."""

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        """One record per ended attempt, in order: the first and the last 25."""

    def search(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int | None = None
    ) -> Plan[Page]:
        """The jobs meant, newest first, without payload and result; `most`: see `Page`."""

    def counts(self, *, most: int | None = None) -> Plan[tuple[Counts, ...]]:
        """Jobs per status for every queue that holds one, by name.

        Ready jobs are queued ones that are not set aside, suspects and those a gate holds back too.
        Of more than 10,000 of a priority, the oldest may be looked for among those that rank first.
        With `most`, it may look at so many that stand alike or are finished: see `at_least`.
        """

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        """What these queues still hold for this worker.

        Paused queues, parked jobs and unknown tasks do not count; scheduled and snoozed jobs are
        no retries; jobs held by live workers do not count. A job that a gate holds back is not
        ready; `limit_free_us` is when time opens the first gate that holds one back.
        """

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        """What `policies.explain` needs to say why the job does not run; None as in `job`.

        Asked by a tenant, other tenants' jobs are counted, not named.
        """


class Contracts(Protocol):
    """What a store can be asked, each part by itself."""

    @property
    def jobs(self) -> JobStore: ...
    @property
    def leases(self) -> LeaseStore: ...
    @property
    def queues(self) -> QueueStore: ...
    @property
    def upkeep(self) -> UpkeepStore: ...
    @property
    def inspection(self) -> InspectionStore: ...
    @property
    def transfer(self) -> TransferStore: ...
    @property
    def records(self) -> RecordStore: ...
    @property
    def attachments(self) -> AttachmentStore: ...
    @property
    def journal(self) -> JournalStore: ...
    @property
    def wakeups(self) -> Wakeups: ...
    @property
    def intake(self) -> Intake | None:
        """What users' transactions can write to; None: nothing, as this is no SQL store."""

    @property
    def transactions(self) -> TransactionStore | None:
        """None where users have no rows beside the jobs."""


class Store(Contracts, Protocol):
    """A store: its contracts, and the two runners of their plans."""

    @property
    def label(self) -> str:
        """How it is named to people: the URL with its secrets masked, paths absolute."""

    @property
    def works_apart(self) -> bool:
        """Whether another process does its work, so that this one goes on meanwhile."""

    def run(self, plan: Plan[T]) -> T:
        """Run a plan in the caller's thread; `StoreUnavailable` when it cannot be reached."""

    async def arun(self, plan: Plan[T]) -> T:
        """Run a plan without blocking the event loop; plans that wait together share a commit."""

    def migrate(self) -> int:
        """Create or upgrade the schema; says its version. Safe from many processes at once."""

    def facts(self) -> dict[str, str]:
        """What `packhorse doctor` tells about this store."""

    def close(self) -> None:
        """Close every connection of this process. Plans that run now are finished first."""
