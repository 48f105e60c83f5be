# SPDX-License-Identifier: MIT
"""Claim work on a server: what one claim costs with few and with very many jobs in the store.

Time alone would not show it on a shared machine, so what the server does is counted as well: the
buffers PostgreSQL looks at, the commands Redis runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bench import Bench
from benchmarks.measures.claiming import Backlog, backlogs, claim, finish, join
from packhorse.stores.protocol import Store

WORK: Final = "work of a claim"
TIME: Final = "time of a claim"
#: Jobs in one claim, and claims that are looked at.
_BATCH: Final = 50
_CLAIMS: Final = 9

#: Opens the store of a folder, does something with it, closes it; says how much work that made.
Counted = Callable[[Path, Callable[[Store], None]], float]


def measure(bench: Bench, counted: Counted, unit: str) -> None:
    """With few and with many jobs of each kind of backlog."""
    for backlog in backlogs(bench, bench.settings.backlog_large):
        with bench.folder() as folder:
            _fill(bench, folder, backlog)
            work, milliseconds = _claims(folder, counted, backlog.task)
        bench.ledger.record(WORK, backlog.label, work, unit)
        bench.ledger.record(TIME, backlog.label, milliseconds, "ms")
        bench.say(f"  claim    {backlog.label:<30} {work:>9,.0f} {unit}, {milliseconds:.2f} ms")


def _fill(bench: Bench, folder: Path, backlog: Backlog) -> None:
    backlog.fill(bench.stage.ours, folder)
    if backlog.finished:
        store = bench.stage.open_store(folder)
        try:
            join(store)
            finish(store, backlog.finished)
        finally:
            store.close()
    bench.stage.after_filling(folder)


def _claims(folder: Path, counted: Counted, task: str) -> tuple[float, float]:
    """The work of a claim on average, without that of opening the store, and its median time."""
    seconds: list[float] = []

    def claims(store: Store) -> None:
        join(store, task)
        claim(store, _BATCH, task)  # the first one prepares
        for _ in range(_CLAIMS):
            began = time.perf_counter()
            claim(store, _BATCH, task)
            seconds.append(time.perf_counter() - began)

    def none(store: Store) -> None:
        join(store, task)
        claim(store, _BATCH, task)

    work = counted(folder, claims) - counted(folder, none)
    return work / _CLAIMS, median(seconds) * 1000
