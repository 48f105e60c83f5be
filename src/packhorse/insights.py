# SPDX-License-Identifier: MIT
"""Looking, without touching: one read-only view of a store for the command line and for programs.

How things are counted in `stats`, since the protocol's shape has no field for each of them:

* Jobs are counted, not attempts. A retried attempt or a timeout counts nothing by itself: its job
  is `pending` while it waits for the next one.
* `succeeded` are completed jobs; `failed` are dead ones, whatever the reason; cancelled jobs are
  neither. So `totalProcessed = succeeded + failed`.
* What retention has removed is no longer counted.
* `avgExecutionMs` is the mean length of the last attempt of the latest jobs that finished (at
  most `SAMPLE_MAX`), and absent before there is one. `uptimeMs` is that of the oldest live worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from packhorse.clock import SECOND_US, Clock, SystemClock, to_datetime
from packhorse.errors import JobNotFound
from packhorse.info import JobInfo, execution_results, job_info
from packhorse.job import PAGE_MAX, WAITING, JobStatus, Priority
from packhorse.policies.autoscale import ScaleRule
from packhorse.protocol import UNSET, QueueStats, TaskExecutionResult, UnsetType, WorkerStats
from packhorse.scaling import ScaleSignal, scale_signals, stored_scales
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Counts, JobFilter, QueueSettings, QueueState, WorkerRecord

__all__ = ["PAGE_MAX", "SAMPLE_MAX", "Insights", "JobDetail", "JobPage", "QueueInfo", "WorkerInfo"]

#: Finished jobs the average is taken from.
SAMPLE_MAX = 1_000


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and where the next page begins."""

    jobs: tuple[JobInfo, ...]
    after: str | None = None


class JobDetail(msgspec.Struct, frozen=True):
    """One job with its history."""

    info: JobInfo
    history: list[TaskExecutionResult]


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: what it is set to, and what it holds."""

    name: str
    priority: int
    dead_letter: str | None
    paused: bool
    declared: bool  #: False: known only from jobs submitted to it
    closed: bool  #: it takes no new jobs
    overridden: bool  #: an operator's settings hold instead of the declared ones
    paused_keys: tuple[str, ...]
    paused_tenants: tuple[str, ...]
    settings: QueueSettings  #: as they hold now, limits and all
    depth: int  #: pending + queued + failed + timeout
    counts: dict[JobStatus, int]  #: jobs in each status
    oldest_ready_s: float | None  #: how long the longest-waiting ready job has waited
    oldest_ready_s_by_priority: dict[str, float] = {}  #: the same for each priority that has one


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, as it last said."""

    id: str
    host: str
    pid: int
    version: str  #: of Packhorse
    code: str = ""  #: of the code it runs, as it was named, or a fingerprint of its files
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: int
    live: bool  #: its lease has not run out
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime


class Insights:
    """Reads a store; with a tenant, sees that one's jobs only."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        tenant: str | None = None,
        scales: Mapping[str, ScaleRule] | None = None,
        declared: Mapping[str, QueueSettings] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._tenant = tenant
        self._scales = scales or {}
        self._declared = declared or {}

    def jobs(self, chosen: JobFilter, *, limit: int = 50, after: str | None = None) -> JobPage:
        """The jobs meant, newest first, at most `limit` (up to `PAGE_MAX`) a page."""
        if self._tenant is not None:
            chosen = msgspec.structs.replace(chosen, tenant=self._tenant)
        bounded = max(1, min(limit, PAGE_MAX))
        page = self._store.run(self._store.inspection.search(chosen, limit=bounded, after=after))
        return JobPage(tuple(job_info(record) for record in page.jobs), page.after)

    def dead_letters(
        self, chosen: JobFilter | None = None, *, limit: int = 50, after: str | None = None
    ) -> JobPage:
        """The dead jobs meant, newest first."""
        chosen = chosen or JobFilter()
        dead = msgspec.structs.replace(chosen, statuses=(JobStatus.DEAD,))
        return self.jobs(dead, limit=limit, after=after)

    def job(self, job_id: str) -> JobDetail:
        """One job with its history, or `JobNotFound`."""
        record = self._store.run(self._store.inspection.job(job_id, tenant=self._tenant))
        if record is None:
            raise JobNotFound(job_id)
        history = self._store.run(self._store.inspection.history(job_id))
        return JobDetail(job_info(record), execution_results(record, history))

    def queues(self) -> tuple[QueueInfo, ...]:
        """Every queue declared, paused, or holding a job, by name.

        As it holds in the store, else as the app declares it that has told the store nothing yet.
        """
        stored = self._store.run(self._store.queues.queues())
        states = _with_declared(stored, self._declared)
        counts = {each.queue: each for each in self._counts()}
        now_us = self._clock.now_us()
        return tuple(
            _queue_info(state, counts.get(state.settings.name), now_us) for state in states
        )

    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers known, live or not."""
        return tuple(_worker_info(record) for record in self._workers())

    def scaling(self) -> tuple[ScaleSignal, ...]:
        """What every queue asks of workers, and how many it wants by its `autoscale`.

        As it holds in the store, else as the app declares it that has told the store nothing yet.
        """
        states = self._store.run(self._store.queues.queues())
        rules = {**self._scales, **stored_scales(states)}
        return scale_signals(self._counts(), self._workers(), rules)

    def stats(self, name: str = "packhorse") -> WorkerStats:
        """What all workers together have done, in the protocol's shape; see above for the rules."""
        counts = self._counts()
        succeeded = sum(_of(each, JobStatus.COMPLETED) for each in counts)
        failed = sum(_of(each, JobStatus.DEAD) for each in counts)
        return WorkerStats(
            worker_name=name,
            total_processed=succeeded + failed,
            succeeded=succeeded,
            failed=failed,
            active=sum(_of(each, JobStatus.PROCESSING) for each in counts),
            avg_execution_ms=self._average_ms(),
            uptime_ms=self._uptime_ms(),
            queues={each.queue: _queue_stats(each) for each in counts},
        )

    def _counts(self) -> Sequence[Counts]:
        return self._store.run(self._store.inspection.counts())

    def _workers(self) -> Sequence[WorkerRecord]:
        return self._store.run(self._store.leases.workers())

    def _average_ms(self) -> float | UnsetType:
        finished = JobFilter(statuses=(JobStatus.COMPLETED, JobStatus.DEAD))
        page = self._store.run(self._store.inspection.search(finished, limit=SAMPLE_MAX))
        lengths = [
            max(0, record.finished_us - record.started_us) / 1000
            for record in page.jobs
            if record.started_us is not None and record.finished_us is not None
        ]
        return sum(lengths) / len(lengths) if lengths else UNSET

    def _uptime_ms(self) -> int:
        started = [record.started_us for record in self._workers() if record.live]
        return max(0, self._clock.now_us() - min(started)) // 1000 if started else 0


def _with_declared(
    states: Sequence[QueueState], declared: Mapping[str, QueueSettings]
) -> list[QueueState]:
    """The store's queues, and those of the app; whoever looks must not have to submit first."""
    known = {state.settings.name: state for state in states}
    for name, settings in declared.items():
        state = known.get(name)
        if state is None:
            known[name] = QueueState(settings)
        elif not state.declared:
            holding = state.settings if state.overridden else settings
            known[name] = msgspec.structs.replace(state, settings=holding, declared=True)
    return [known[name] for name in sorted(known)]


def _of(counts: Counts, status: JobStatus) -> int:
    return counts.by_status.get(status, 0)


def _depth(counts: Counts) -> int:
    return sum(_of(counts, status) for status in WAITING)


def _queue_stats(counts: Counts) -> QueueStats:
    return QueueStats(
        pending=_depth(counts),
        active=_of(counts, JobStatus.PROCESSING),
        completed=_of(counts, JobStatus.COMPLETED),
        failed=_of(counts, JobStatus.DEAD),
    )


def _queue_info(state: QueueState, counts: Counts | None, now_us: int) -> QueueInfo:
    settings = state.settings
    held = counts or Counts(queue=settings.name, by_status={})
    waited_s = _waited_s(held, now_us)
    return QueueInfo(
        name=settings.name,
        priority=settings.priority,
        dead_letter=settings.dead_letter,
        paused=state.paused,
        declared=state.declared,
        closed=state.closed,
        overridden=state.overridden,
        paused_keys=state.paused_keys,
        paused_tenants=state.paused_tenants,
        settings=settings,
        depth=_depth(held),
        counts=dict(_in_order(held)),
        oldest_ready_s=max(waited_s.values(), default=None),
        oldest_ready_s_by_priority=waited_s,
    )


def _waited_s(counts: Counts, now_us: int) -> dict[str, float]:
    """How long the longest-waiting ready job of each priority has waited, the highest first."""
    since_us = sorted(counts.oldest_ready_us_by_priority.items())
    return {
        Priority(level).name.lower(): max(0, now_us - instant_us) / SECOND_US
        for level, instant_us in since_us
    }


def _in_order(counts: Counts) -> Iterator[tuple[JobStatus, int]]:
    """The statuses in the order of a job's life, those without a job left out."""
    for status in JobStatus:
        if number := _of(counts, status):
            yield status, number


def _worker_info(record: WorkerRecord) -> WorkerInfo:
    release, _, code = record.version.partition(" ")
    return WorkerInfo(
        id=record.worker,
        host=record.host,
        pid=record.pid,
        version=release,
        code=code,
        queues=record.queues,
        tasks=record.tasks,
        concurrency=record.concurrency,
        running=record.running,
        live=record.live,
        started_at=to_datetime(record.started_us),
        renewed_at=to_datetime(record.renewed_us),
        expires_at=to_datetime(record.expires_us),
    )
