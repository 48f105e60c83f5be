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

from benchmarks.bench import Bench
from benchmarks.contestants import packhorse, packhorse_store
from benchmarks.measures.claiming import Backlog, backlogs, claim, finish, join
from packhorse.stores.protocol import Store

STEPS: Final = "steps of a claim"
TIME: Final = "time of a claim"
#: Jobs in one claim, and claims that are looked at.
_BATCH: Final = 50
_CLAIMS: Final = 9


def measure(bench: Bench) -> None:
    """With few and with many jobs of each kind of backlog."""
    for backlog in backlogs(bench, bench.settings.backlog_large):
        with bench.folder() as folder:
            steps, milliseconds = _claims(folder, backlog)
        bench.ledger.record(STEPS, backlog.label, steps, "VM steps")
        bench.ledger.record(TIME, backlog.label, milliseconds, "ms")
        bench.say(f"  claim    {backlog.label:<30} {steps:>9,.0f} VM steps, {milliseconds:.2f} ms")


def _claims(folder: Path, backlog: Backlog) -> tuple[float, float]:
    """The median steps of a claim, and the median time of one without the counting."""
    task = backlog.task
    backlog.fill(packhorse("NORMAL"), folder)
    with _opened(folder, task) as store:
        finish(store, backlog.finished)
    with counting() as counter, _opened(folder, task) as store:
        steps = [counter.steps_of(lambda: claim(store, _BATCH, task)) for _ in range(_CLAIMS)]
    with _opened(folder, task) as store:
        claim(store, _BATCH, task)  # the first opens and prepares
        seconds = [_seconds_of(lambda: claim(store, _BATCH, task)) for _ in range(_CLAIMS)]
    return median(steps), median(seconds) * 1000


@contextmanager
def _opened(folder: Path, task: str) -> Iterator[Store]:
    store = packhorse_store(folder, "NORMAL")
    try:
        join(store, task)
        yield store
    finally:
        store.close()


@dataclass(slots=True)
class Counter:
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
def counting() -> Iterator[Counter]:
    """Have SQLite call back at every step of its virtual machine."""
    counter, connect = Counter(), sqlite3.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_progress_handler(counter.step, 1)
        return connection

    with mock.patch.object(sqlite3, "connect", connected):
        yield counter


def counted(folder: Path, action: Callable[[Store], None]) -> float:
    """Open the store of a folder, do something with it, close it; returns the steps of all that."""
    with counting() as counter:
        store = packhorse_store(folder, "NORMAL")
        try:
            action(store)
        finally:
            store.close()
        return counter.steps


def _seconds_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
