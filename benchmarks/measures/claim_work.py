# SPDX-License-Identifier: MIT
"""Claim work: what one claim costs with few and with very many jobs in the file.

Time alone would not show it on a shared machine, so the steps of SQLite's virtual machine are
counted as well: they are the same on every machine.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest import mock

from benchmarks.bench import Bench, filled
from benchmarks.contestants import packhorse, packhorse_store
from packhorse.job import JobStatus
from packhorse.settlement import Settlement, SettlementKind
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal

__all__ = ["STEPS", "TIME", "measure"]

STEPS: Final = "steps of a claim"
TIME: Final = "time of a claim"
#: Jobs in one claim, and claims that are looked at.
_BATCH: Final = 50
_CLAIMS: Final = 9
_SETTLE_BATCH: Final = 1000
_LEASE_US: Final = 3_600_000_000
_WORKER: Final = "benchmark"
_QUEUES: Final = ("default",)
_TASKS: Final = ("noop",)


def measure(bench: Bench) -> None:
    """With few jobs waiting, with many waiting, with many finished."""
    few, many = bench.settings.backlog_small, bench.settings.backlog_large
    for label, waiting, finished in (
        (f"{few:,} waiting", few, 0),
        (f"{many:,} waiting", many, 0),
        (f"{many:,} finished", few, many),
    ):
        with bench.folder() as folder:
            steps, milliseconds = _claims(folder, waiting, finished)
        bench.ledger.record(STEPS, label, steps, "VM steps")
        bench.ledger.record(TIME, label, milliseconds, "ms")
        bench.say(f"  claim    {label:<30} {steps:>9,.0f} VM steps, {milliseconds:.2f} ms")


def _claims(folder: Path, waiting: int, finished: int) -> tuple[float, float]:
    """The median steps of a claim, and the median time of one without the counting."""
    contestant = packhorse("NORMAL")
    filled(contestant, folder, "many", waiting + finished)
    with _opened(folder) as store:
        _finish(store, finished)
    with _counting() as counter, _opened(folder) as store:
        steps = [counter.steps_of(lambda: _claim(store, _BATCH)) for _ in range(_CLAIMS)]
    with _opened(folder) as store:
        _claim(store, _BATCH)  # the first opens and prepares
        seconds = [_seconds_of(lambda: _claim(store, _BATCH)) for _ in range(_CLAIMS)]
    return median(steps), median(seconds) * 1000


@contextmanager
def _opened(folder: Path) -> Iterator[Store]:
    store = packhorse_store(folder, "NORMAL")
    try:
        store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, _QUEUES, _TASKS)))
        yield store
    finally:
        store.close()


def _finish(store: Store, count: int) -> None:
    """Run `count` jobs through the store, as a worker would."""
    done = 0
    while done < count:
        jobs = _claim(store, min(_SETTLE_BATCH, count - done)).jobs
        ends = [
            Settlement(
                job.id,
                job.fence,
                SettlementKind.COMPLETED,
                JobStatus.COMPLETED,
                result="null",
                keep_us=_LEASE_US,
                result_keep_us=_LEASE_US,
            )
            for job in jobs
        ]
        store.run(store.jobs.settle(ends))
        done += len(jobs)


def _claim(store: Store, limit: int) -> Claimed:
    request = ClaimRequest(_WORKER, _QUEUES, _TASKS, limit, _LEASE_US)
    claimed = store.run(store.jobs.claim(request))
    if len(claimed.jobs) != limit:
        raise RuntimeError(f"a claim of {limit} jobs gave {len(claimed.jobs)}")
    return claimed


@dataclass(slots=True)
class _Counter:
    """Counts the steps of every connection opened while it is in place."""

    steps: int = 0

    def step(self) -> int:
        self.steps += 1
        return 0

    def steps_of(self, action: Callable[[], object]) -> int:
        before = self.steps
        action()
        return self.steps - before


@contextmanager
def _counting() -> Iterator[_Counter]:
    """Have SQLite call back at every step of its virtual machine."""
    counter, connect = _Counter(), sqlite3.connect

    def counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_progress_handler(counter.step, 1)
        return connection

    with mock.patch.object(sqlite3, "connect", counted):
        yield counter


def _seconds_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
