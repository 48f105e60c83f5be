# SPDX-License-Identifier: MIT
"""What happens to workers and to their store."""

from __future__ import annotations

from packhorse.events.event import Event

__all__ = [
    "LeaseLost",
    "LeaseRegained",
    "LoopBlocked",
    "ObserverFailed",
    "StoreRecovered",
    "StoreTrouble",
    "WorkerQuiet",
    "WorkerResumed",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
]


class WorkerStarted(Event, frozen=True, kw_only=True):
    """The worker has its lease and begins to claim."""

    name = "worker.started"

    queues: tuple[str, ...]
    concurrency: int
    store: str  #: as it is named to people, secrets masked


class WorkerQuiet(Event, frozen=True, kw_only=True):
    """No more jobs are claimed until somebody says otherwise; those running go on."""

    name = "worker.quiet"

    running: int


class WorkerResumed(Event, frozen=True, kw_only=True):
    """Jobs are claimed again, after quiet."""

    name = "worker.resumed"


class WorkerStopping(Event, frozen=True, kw_only=True):
    """No more jobs are claimed; those running may finish."""

    name = "worker.stopping"

    reason: str
    running: int


class WorkerStopped(Event, frozen=True, kw_only=True):
    """The worker has left."""

    name = "worker.stopped"

    processed: int
    abandoned: int


class LeaseLost(Event, frozen=True, kw_only=True):
    """The worker may not rely on its lease any more; others may take its jobs."""

    name = "lease.lost"

    running: int


class LeaseRegained(Event, frozen=True, kw_only=True):
    """The worker has a lease again."""

    name = "lease.regained"


class StoreTrouble(Event, frozen=True, kw_only=True):
    """A store call failed where all went well before; it is tried again."""

    name = "store.trouble"

    operation: str
    error_type: str
    error_message: str


class StoreRecovered(Event, frozen=True, kw_only=True):
    """Every kind of store call that failed has worked again."""

    name = "store.recovered"

    seconds: float


class LoopBlocked(Event, frozen=True, kw_only=True):
    """The event loop has not turned for a while: some handler blocks it."""

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
    job_id: str = ""
