# SPDX-License-Identifier: MIT
"""A read-only view of a store, for the command line and for programs.

How `stats` counts, since the protocol has no field for everything:

* Jobs are counted, not attempts. A retried attempt or a timeout counts nothing by itself: its job
  is `pending` while it waits for the next one.
* `succeeded` are completed jobs; `failed` are dead ones, whatever the reason; cancelled jobs are
  neither. So `totalProcessed = succeeded + failed`.
* Jobs that retention has removed are not counted; totals of each worker only rise while it lives.
* `avgExecutionMs` is the mean length of the last attempt of the latest jobs that finished (at
  most `SAMPLE_MAX`), and absent before there is one. `uptimeMs` is that of the oldest live worker.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from packhorse.breaker import BREAKER_KIND, BreakerInfo, breaker_info
from packhorse.client.history import History, read_history
from packhorse.client.scaling import ScaleSignal, scale_signals, stored_scales
from packhorse.client.workers import WorkerInfo, uptime_ms, worker_info
from packhorse.core.clock import SECOND_US, Clock, SystemClock
from packhorse.core.generators import adrive, awaited, blocking, drive
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import PAGE_MAX, WAITING, JobStatus, Priority
from packhorse.core.job_info import JobInfo, execution_results, has_attachments, job_info, shown
from packhorse.core.options import name_text
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.core.sizes import THE_STORE
from packhorse.errors import ConfigError, JobNotFound
from packhorse.protocol import UNSET, QueueStats, TaskExecutionResult, UnsetType, WorkerStats
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage
from packhorse.stores.requests import (
    Counts,
    JobFilter,
    Page,
    QueueSettings,
    QueueState,
    WorkerRecord,
)

__all__ = ["PAGE_MAX", "SAMPLE_MAX", "Insights", "JobDetail", "JobPage", "QueueInfo", "WorkerInfo"]

T = TypeVar("T")

_BLOCKS: Final = (
    "insights block the running event loop until the store has answered; await their twins there, "
    "such as 'await app.insights.astats()'"
)
#: Finished jobs the average is taken from.
SAMPLE_MAX = 1_000


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and where the next page begins."""

    jobs: tuple[JobInfo, ...]
    after: str | None = None
    stopped_after: int | None = None  #: not full: its look ended behind so many jobs


class JobDetail(msgspec.Struct, frozen=True):
    """One job with its history."""

    info: JobInfo
    history: list[TaskExecutionResult]


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: its settings, and what it holds."""

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
    depth: int  #: pending + queued + failed + timeout - in_steps: what `max_depth` bounds
    in_steps: int = 0  #: jobs that wait for a person, a signal or the end of a sleep
    counts: dict[JobStatus, int]  #: jobs in each status
    oldest_ready_s: float | None  #: how long the longest-waiting ready job has waited
    oldest_ready_s_by_priority: dict[str, float] = {}  #: the same for each priority that has one
    held_bytes: int | None = None  #: of unfinished jobs; None: it is not bounded by them
    at_least: tuple[JobStatus, ...] = ()  #: of these not all were counted


class Insights:
    """Read a store; with a tenant, its jobs only."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        tenant: str | UnsetType = UNSET,
        scales: Mapping[str, ScaleRule] | None = None,
        declared: Mapping[str, QueueSettings] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        # Only a tenant that is left out means all; None is a mistake, and refused.
        self._tenant = None if tenant is UNSET else name_text(tenant, "insights: tenant")
        self._scales = scales or {}
        self._declared = declared or {}

    @blocking
    def jobs(
        self,
        chosen: JobFilter | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        most: int | None = None,
    ) -> Asking[JobPage]:
        """List jobs, newest first, at most `limit` a page; `most`: about so many are looked at."""
        return self._jobs(chosen, limit, after, most)

    ajobs = awaited(jobs)

    @blocking
    def dead_letters(
        self, chosen: JobFilter | None = None, *, limit: int = 50, after: str | None = None
    ) -> Asking[JobPage]:
        """List dead jobs, newest first."""
        return self._jobs(_dead(chosen), limit, after)

    adead_letters = awaited(dead_letters)

    @blocking
    def job(self, job_id: str) -> Asking[JobDetail]:
        """Return a job with its history; raise `JobNotFound` if there is none."""
        record = yield self._store.inspection.job(job_id, tenant=self._tenant)
        if record is None:
            raise JobNotFound(job_id)
        history = yield self._store.inspection.history(job_id)
        kept = None
        if has_attachments(record):
            kept = yield self._store.attachments.attachments(job_id)
        return JobDetail(job_info(record, kept), execution_results(record, history))

    ajob = awaited(job)

    @blocking
    def queues(self, *, most: int | None = None) -> Asking[tuple[QueueInfo, ...]]:
        """List every queue declared, paused, or holding a job, by name.

        The store's settings hold; the app's own are shown while the store does not know the queue.
        With `most`, no more than about so many jobs of a kind are counted: `at_least` says which.
        """
        stored = yield self._store.queues.queues(holding=most is None)
        counted = yield self._store.inspection.counts(most=most)
        counts = {each.queue: each for each in counted}
        names = counts.keys() - {state.settings.name for state in stored}
        held = [QueueState(QueueSettings(name), declared=False) for name in names]
        named = [state for state in stored if state.settings.name != THE_STORE]
        states = _with_declared([*named, *held], self._declared)
        now_us = self._clock.now_us()
        return tuple(
            _queue_info(state, counts.get(state.settings.name), now_us) for state in states
        )

    aqueues = awaited(queues)

    @blocking
    def store_bytes(self) -> Asking[tuple[int, int] | None]:
        """Return the bytes that unfinished jobs have and may have; None: it is not bounded."""
        states: Sequence[QueueState] = yield self._store.queues.queues()
        for state in states:
            if state.settings.name == THE_STORE and state.settings.max_bytes is not None:
                return state.held_bytes or 0, state.settings.max_bytes
        return None

    astore_bytes = awaited(store_bytes)

    @blocking
    def workers(self) -> Asking[tuple[WorkerInfo, ...]]:
        """List the known workers, live or not."""
        records = yield self._store.leases.workers()
        now_us = self._clock.now_us()
        return tuple(worker_info(record, now_us) for record in records)

    aworkers = awaited(workers)

    @blocking
    def scaling(self) -> Asking[tuple[ScaleSignal, ...]]:
        """Return the load of every queue, and how many workers its `autoscale` wants.

        The store's rules hold; the app's own are used while the store does not know the queue.
        """
        states = yield self._store.queues.queues()
        rules = {**self._scales, **stored_scales(states)}
        counts = yield self._store.inspection.counts()
        workers = yield self._store.leases.workers()
        return scale_signals(counts, workers, rules)

    ascaling = awaited(scaling)

    @blocking
    def breakers(self) -> Asking[tuple[BreakerInfo, ...]]:
        """List the circuit breakers that are open, or have counted failures of late."""
        found: RecordPage = yield self._store.records.records(
            BREAKER_KIND, tenant=self._tenant, limit=PAGE_MAX
        )
        return tuple(breaker_info(record, found.now_us) for record in found.records)

    abreakers = awaited(breakers)

    @blocking
    def history(self, span: str = "1h", *, queue: str | None = None) -> Asking[History]:
        """Return what was done and what waited over 15m, 1h, 6h, 24h, 7d or 30d, of all tenants."""
        if self._tenant is not None:
            raise ConfigError("the history is that of all tenants, and this view is of one")
        return (yield from read_history(self._store, span, queue=queue))

    ahistory = awaited(history)

    @blocking
    def stats(self, name: str = "packhorse") -> Asking[WorkerStats]:
        """Count what all workers have done, in the protocol's shape; see above for the rules."""
        counts: Sequence[Counts] = yield self._store.inspection.counts()
        finished = JobFilter(statuses=(JobStatus.COMPLETED, JobStatus.DEAD))
        page: Page = yield self._store.inspection.search(finished, limit=SAMPLE_MAX)
        workers: Sequence[WorkerRecord] = yield self._store.leases.workers()
        succeeded = sum(_of(each, JobStatus.COMPLETED) for each in counts)
        failed = sum(_of(each, JobStatus.DEAD) for each in counts)
        return WorkerStats(
            worker_name=name,
            total_processed=succeeded + failed,
            succeeded=succeeded,
            failed=failed,
            active=sum(_of(each, JobStatus.PROCESSING) for each in counts),
            avg_execution_ms=_average_ms(page),
            uptime_ms=uptime_ms(workers, self._clock.now_us()),
            queues={each.queue: _queue_stats(each) for each in counts},
        )

    astats = awaited(stats)

    def _drive(self, reading: Asking[T]) -> T:
        """Run the plans of a reading in this thread."""
        if in_event_loop():
            warnings.warn(_BLOCKS, RuntimeWarning, stacklevel=3)
        return drive(reading, self._store.run)

    async def _adrive(self, reading: Asking[T]) -> T:
        return await adrive(reading, self._store.arun)

    def _jobs(
        self, chosen: JobFilter | None, limit: int, after: str | None, most: int | None = None
    ) -> Asking[JobPage]:
        chosen = chosen or JobFilter()
        if self._tenant is not None:
            chosen = msgspec.structs.replace(chosen, tenant=self._tenant)
        bounded = max(1, min(limit, PAGE_MAX))
        search = self._store.inspection.search
        page: Page = yield search(chosen, limit=bounded, after=after, most=most)
        return JobPage(tuple(map(job_info, page.jobs)), page.after, page.stopped_after)


def _dead(chosen: JobFilter | None) -> JobFilter:
    return msgspec.structs.replace(chosen or JobFilter(), statuses=(JobStatus.DEAD,))


def _average_ms(page: Page) -> float | UnsetType:
    lengths = [
        max(0, record.finished_us - record.started_us) / 1000
        for record in page.jobs
        if record.started_us is not None and record.finished_us is not None
    ]
    return sum(lengths) / len(lengths) if lengths else UNSET


def _with_declared(
    states: Sequence[QueueState], declared: Mapping[str, QueueSettings]
) -> list[QueueState]:
    """Add the app's queues to the store's, which may not know them before the first submit."""
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
    return shown(
        QueueInfo,
        *(state, settings, held),
        depth=max(0, _depth(held) - held.in_steps),
        counts=dict(_in_order(held)),
        oldest_ready_s=max(waited_s.values(), default=None),
        oldest_ready_s_by_priority=waited_s,
        at_least=tuple(sorted(held.at_least)),
    )


def _waited_s(counts: Counts, now_us: int) -> dict[str, float]:
    """Return how long the oldest ready job of each priority has waited, the highest first."""
    since_us = sorted(counts.oldest_ready_us_by_priority.items())
    return {
        Priority(level).name.lower(): max(0, now_us - instant_us) / SECOND_US
        for level, instant_us in since_us
    }


def _in_order(counts: Counts) -> Iterator[tuple[JobStatus, int]]:
    """Yield the statuses that have jobs, in the order of a job's life."""
    for status in JobStatus:
        if number := _of(counts, status):
            yield status, number
