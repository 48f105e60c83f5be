# SPDX-License-Identifier: MIT
"""What `packhorse doctor` looks at, read from a store into one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from packhorse.clock import SECOND_US, Clock
from packhorse.insights import Insights, QueueInfo, WorkerInfo
from packhorse.job import JobRecord, JobStatus
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter

__all__ = ["RECENT_US", "SAMPLE_MAX", "Survey", "take_survey"]

#: Jobs of one kind that are looked at, the newest.
SAMPLE_MAX: Final = 1_000
#: Dead letters younger than this are news.
RECENT_US: Final = 3_600 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A store as it was found."""

    facts: Mapping[str, str]
    queues: tuple[QueueInfo, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    store_us: int  #: the store's clock
    skew_us: int  #: how far it is ahead of this machine's
    parked: Mapping[str, int] = field(default_factory=dict)  #: jobs set aside, by task
    dead: int = 0
    dead_recently: int = 0  #: among the newest
    orphaned_workers: int = 0  #: gone, and still holding jobs
    version: str = ""  #: of this release
    tasks: tuple[str, ...] | None = None  #: the app's; None: no app was loaded


def take_survey(
    store: Store, clock: Clock, *, version: str, tasks: tuple[str, ...] | None
) -> Survey:
    """Read everything once."""
    view = Insights(store, clock=clock)
    queues = view.queues()
    store_us, skew_us = _store_time(store, clock)
    waiting = _newest(store, JobStatus.QUEUED)
    dead = _newest(store, JobStatus.DEAD)
    return Survey(
        facts=store.facts(),
        queues=queues,
        workers=view.workers(),
        store_us=store_us,
        skew_us=skew_us,
        parked=Counter(job.task for job in waiting if job.parked_us is not None),
        dead=sum(queue.counts.get(JobStatus.DEAD, 0) for queue in queues),
        dead_recently=sum(store_us - (job.finished_us or 0) < RECENT_US for job in dead),
        orphaned_workers=len(store.run(store.leases.expired()).leases),
        version=version,
        tasks=tasks,
    )


def _store_time(store: Store, clock: Clock) -> tuple[int, int]:
    """The store's clock, and by how much it lies outside the time the asking took."""
    before_us = clock.now_us()
    store_us = store.run(store.inspection.outlook("", (), ())).now_us
    after_us = clock.now_us()
    return store_us, max(0, store_us - after_us) + min(0, store_us - before_us)


def _newest(store: Store, status: JobStatus) -> tuple[JobRecord, ...]:
    chosen = JobFilter(statuses=(status,))
    return store.run(store.inspection.search(chosen, limit=SAMPLE_MAX)).jobs
