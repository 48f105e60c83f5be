# SPDX-License-Identifier: MIT
"""What the history costs: pages over a week and a month of it, and a drain with and without.

    python -m benchmarks.history pages [--store sqlite] [--days 30] [--tasks 20] [--asks 40]
    python -m benchmarks.history drain [--jobs 20000] [--rounds 5]

`pages` writes some days through the code of workers on a virtual clock, every five minutes, the
last two hours every minute, and asks for each page at each range in this process; what was kept of
the last look is forgotten before each. `drain` runs jobs that do nothing on SQLite by turns, with
counting and writing and with neither, and says what a job takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.schedules import store_url
from packhorse import Packhorse
from packhorse.core.clock import SystemChance, new_id
from packhorse.core.policies.history import RANGES
from packhorse.core.policies.series import BOUNDS_S, OUTCOMES, Series
from packhorse.events import EventBus
from packhorse.runtime.services.history_keeper import HistoryKeeper
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.worker.tallies import Tallies
from packhorse.stores import open_store
from packhorse.testing.virtual_clock import VirtualClock
from tests.web.support import Web, declare, token

_STEP_S: Final = 300
_LAST_S: Final = 2 * 3_600
_QUEUES: Final = 10
_COUNT: Final = Tallies.count
_PAGES: Final = ("/", "/queues", "/tasks", "/api/v1/history")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history")
    parser.add_argument("what", choices=("pages", "drain"))
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--asks", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    if chosen.what == "drain":
        _drains(chosen.jobs, chosen.rounds)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="packhorse-history-") as folder,
            store_url(chosen.store, Path(folder)) as url,
        ):
            asyncio.run(_pages(url, chosen))


# ------------------------------------------------------------------------------------------- pages


class _Pretended:
    """A worker that runs each task now and then, some of it in vain."""

    def __init__(self, tasks: int) -> None:
        self._rounds = 0
        self._tasks = tasks

    def work(self) -> None:
        self._rounds += 1

    def totals(self) -> Iterator[Series]:
        for task in range(self._tasks):
            good, bad = self._rounds * (1 + task), self._rounds // (2 + task)
            outcomes = (good, bad) + (0,) * (len(OUTCOMES) - 2)
            spans = tuple(
                good // 6 if task % 20 <= bucket < task % 20 + 6 else 0
                for bucket in range(len(BOUNDS_S) + 1)
            )
            names = (f"queue-{task % _QUEUES}", f"shop.tasks.number_{task}")
            yield Series(*names, outcomes, 0, spans, good * 0.1, spans, good * 0.2)


async def _pages(url: str, chosen: argparse.Namespace) -> None:
    clock = VirtualClock()
    store = open_store(url, clock=clock)
    app = Packhorse(store=store)
    declare(app)
    worker = _Pretended(chosen.tasks)
    keeper = HistoryKeeper(
        ServiceContext(store, clock, SystemChance(), EventBus(), new_id()),
        totals=lambda: tuple(worker.totals()),
    )
    began, end_s = time.perf_counter(), chosen.days * 86_400
    while clock.monotonic() < end_s:
        worker.work()
        await keeper.run_once()
        clock.advance(_STEP_S if clock.monotonic() < end_s - _LAST_S else 60)
    await keeper.run_once()
    told = (
        f"{chosen.store}, {chosen.days} days, {chosen.tasks} tasks, load {os.getloadavg()[0]:.1f}"
    )
    sys.stdout.write(f"{told}; written in {time.perf_counter() - began:.0f} s; milliseconds\n")
    await _sizes(app)
    web = Web(app, token=token(app, "admin"))
    for path in _PAGES:
        for name in RANGES:
            asked = [await _asked(web, f"{path}?range={name}") for _ in range(chosen.asks)]
            told = f"{path:16} {name:4}"
            clock_ms, own_ms = zip(*asked, strict=True)
            for word, times_ms in (("by the clock", clock_ms), ("processor", own_ms)):
                p95 = statistics.quantiles(times_ms, n=20, method="inclusive")[-1]
                told += f"  {word}: median {statistics.median(times_ms):6.1f}, p95 {p95:6.1f}"
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()


async def _sizes(app: Packhorse) -> None:
    found: dict[str, list[int]] = {}
    after = None
    while True:
        page = await app.store.arun(app.store.records.records(None, after=after, limit=500))
        for record in page.records:
            found.setdefault(record.id.kind, []).append(len(record.document))
        after = page.after
        if after is None:
            break
    for kind, sizes in sorted(found.items()):
        if kind.startswith("history"):
            sys.stdout.write(f"{kind:22} {len(sizes):5} records, {sum(sizes) / 1e6:6.2f} MB\n")


async def _asked(web: Web, url: str) -> tuple[float, float]:
    for look in web.served.state.looks.history.values():
        look.forget()
    began, used = time.perf_counter(), time.process_time()
    got = await web.ask("GET", url)
    took = (time.perf_counter() - began) * 1_000, (time.process_time() - used) * 1_000
    if got.status != 200:
        raise RuntimeError(f"{url} answered {got.status}")
    return took


# ------------------------------------------------------------------------------------------- drain


def _drains(jobs: int, rounds: int) -> None:
    """By turns in one process, each on a store of its own; by the time of the processor."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    _drained(jobs, counting=True)  # to warm up
    for number in range(rounds):
        for counting in (number % 2 == 0, number % 2 == 1):
            spent[counting].append(_drained(jobs, counting=counting) / jobs * 1e6)
    costs = [one - two for one, two in zip(spent[True], spent[False], strict=True)]
    with_it, without = (statistics.median(spent[counting]) for counting in (True, False))
    sys.stdout.write(
        f"{rounds} rounds of {jobs:,} jobs on SQLite, load {os.getloadavg()[0]:.1f}; a job takes "
        f"{without:.1f} µs without and {with_it:.1f} µs with history: {without / with_it:.3f}; "
        f"median difference of a round {statistics.median(costs):.2f} µs\n"
    )


def _drained(jobs: int, *, counting: bool) -> float:
    """Seconds of this process's own time."""
    Tallies.count = _COUNT if counting else _nothing  # type: ignore[assignment,method-assign]
    with tempfile.TemporaryDirectory() as folder:
        app = Packhorse(f"sqlite:///{folder}/jobs.db")

        @app.task(name="nothing")
        async def nothing(number: int) -> None:
            pass

        app.enqueue_many([nothing.call(number) for number in range(jobs)])
        begun = time.process_time()
        report = app.run(burst=True, concurrency=100)
        spent = time.process_time() - begun
        assert report.succeeded == jobs
        app.close()
    return spent


def _nothing(*_batch: object) -> None:
    """Count nothing, so that nothing is written."""


if __name__ == "__main__":
    main()
