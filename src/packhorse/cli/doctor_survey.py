# SPDX-License-Identifier: MIT
"""What `packhorse doctor` reads from a store, for its checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from packhorse.app import Packhorse
from packhorse.client.outbox import Outbox
from packhorse.client.schedules import ScheduleInfo
from packhorse.client.sealed_store import SealedStore
from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.job import JobRecord, JobStatus
from packhorse.core.sealing import key_of
from packhorse.insights import Insights, QueueInfo, WorkerInfo
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter
from packhorse.stores.transfer import Copied
from packhorse.version import installed_version

#: Jobs of one status that are read, the newest.
_SAMPLE_MAX: Final = 1_000
#: Jobs whose arguments are read, the oldest that wait: each may have a megabyte.
OLDEST_MAX: Final = 20
#: Dead letters younger than this are news.
_RECENT_US: Final = 3_600 * SECOND_US


@dataclass(frozen=True, slots=True)
class OutboxLook:
    """One outbox, as it was found."""

    label: str
    exists: bool = True
    waiting: int = 0
    oldest_s: float | None = None
    is_drained: bool = False  #: a worker is on duty
    trouble: str = ""  #: what kept it from being read


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was read from a store."""

    facts: Mapping[str, str]
    queues: tuple[QueueInfo, ...] = ()
    store_bytes: tuple[int, int] | None = None  #: that it has and may have
    workers: tuple[WorkerInfo, ...] = ()
    store_us: int  #: the store's clock
    skew_us: int  #: how far it is ahead of this machine's
    parked: Mapping[str, int] = field(default_factory=dict)  #: jobs set aside, by task
    dead: int = 0
    dead_recently: int = 0  #: among the newest
    orphaned_workers: int = 0  #: gone, and still holding jobs
    version: str = ""  #: of this release
    tasks: tuple[str, ...] | None = None  #: the app's; None: no app was loaded
    unreadable: Mapping[str, int] = field(default_factory=dict)  #: jobs, by keys that are not here
    outboxes: tuple[OutboxLook, ...] = ()  #: the app's
    schedules: tuple[ScheduleInfo, ...] = ()
    copied: Copied | None = None  #: to where: workers and submits refuse this store


def take_survey(app: Packhorse, clock: Clock) -> Survey:
    """Read from the store of an app what the checks need."""
    store = app.store
    view = Insights(store, clock=clock)
    queues = view.queues()
    store_us, skew_us = _store_time(store, clock)
    waiting = _newest(store, JobStatus.QUEUED)
    dead = _newest(store, JobStatus.DEAD)
    return Survey(
        facts=store.facts(),
        queues=queues,
        store_bytes=view.store_bytes(),
        workers=view.workers(),
        store_us=store_us,
        skew_us=skew_us,
        parked=Counter(job.task for job in waiting if job.parked_us is not None),
        dead=sum(queue.counts.get(JobStatus.DEAD, 0) for queue in queues),
        dead_recently=sum(store_us - (job.finished_us or 0) < _RECENT_US for job in dead),
        orphaned_workers=len(store.run(store.leases.expired()).leases),
        version=installed_version(),
        tasks=app.registry.names or None,  # an app without tasks stands for a URL alone
        unreadable=_unreadable(store),
        outboxes=tuple(_look_at(store, outbox) for outbox in app.outboxes),
        schedules=tuple(app.schedules.all()),
        copied=store.run(store.transfer.copied()),
    )


def _unreadable(store: Store) -> Counter[str]:
    """Count the oldest waiting jobs whose arguments no key here opens, by the keys they need."""
    page = store.run(store.transfer.carry_out(after=None, limit=OLDEST_MAX))
    found: Counter[str] = Counter()
    for job in (carried.job for carried in page.jobs):
        key = key_of(job.payload)
        opened = isinstance(store, SealedStore) and store.sealer.open_payload(job) is not None
        if key is not None and not opened:
            found[key] += 1
    return found


def _store_time(store: Store, clock: Clock) -> tuple[int, int]:
    """Read the store's clock, and by how much it lies outside the time the reading took."""
    before_us = clock.now_us()
    store_us = store.run(store.inspection.outlook("", (), ())).now_us
    after_us = clock.now_us()
    return store_us, max(0, store_us - after_us) + min(0, store_us - before_us)


def _newest(store: Store, status: JobStatus) -> tuple[JobRecord, ...]:
    chosen = JobFilter(statuses=(status,))
    return store.run(store.inspection.search(chosen, limit=_SAMPLE_MAX)).jobs


def _look_at(store: Store, outbox: Outbox) -> OutboxLook:
    """Read what waits in an outbox, and whether a worker drains it."""
    drained = store.run(store.records.record(outbox.duty)) is not None
    try:
        if not outbox.exists():
            return OutboxLook(outbox.label, exists=False, is_drained=drained)
        state = outbox.state()
    except Exception as error:  # noqa: BLE001 - of whichever library that database is used with
        trouble = f"{type(error).__name__}: {error}"
        return OutboxLook(outbox.label, is_drained=drained, trouble=trouble)
    return OutboxLook(
        outbox.label, waiting=state.waiting, oldest_s=state.oldest_s, is_drained=drained
    )
