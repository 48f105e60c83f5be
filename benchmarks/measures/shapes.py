# SPDX-License-Identifier: MIT
"""Loads of other shapes than a drain of no-op jobs from one queue.

A hundred queues, large payloads and results, arrivals at random instants from two producers, jobs
behind a backlog that the worker does not know, handlers in processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import probe
from benchmarks.bench import LOAD_SECONDS_MAX, Bench, drained, filled, rotated, wait_until
from benchmarks.bounds import Bound
from benchmarks.contestants import CONCURRENCY, Contestant
from benchmarks.estimates import percentile
from benchmarks.measures import drain
from benchmarks.processes import python, run_to_end, started
from benchmarks.workloads.shapes_app import QUEUES

SPREAD: Final = "drain of one queue and of many"
ONE_QUEUE: Final = "one queue"
MANY_QUEUES: Final = f"{QUEUES} queues"
LARGE: Final = "drain of large jobs"
LARGE_JOBS: Final = "64 kB payload, 64 kB result"
WRITTEN_ONCE: Final = "64 kB written once, bare"
WAIT: Final = "wait p99"
SUBMIT: Final = "submit p99"
POISSON: Final = "300 jobs/s at random instants, two producers"
IN_PROCESSES: Final = "Packhorse in processes"
_PRODUCERS: Final = 2
_PER_SECOND: Final = 300
_URGENT_PER_SECOND: Final = 10
#: Jobs before those that count: the worker is up by then.
_WARM_UP: Final = 20


@dataclass(frozen=True, slots=True)
class _Load:
    """Jobs that arrive at random instants; each producer submits its share of them."""

    count: int  #: a multiple of the number of producers
    per_second: int
    producers: int
    priority: str


def foreign(count: int) -> str:
    """What the wait behind so many jobs of a foreign task is called."""
    return f"urgent jobs behind {count:,} of a foreign task"


def bounds(foreign_jobs: int) -> Iterator[Bound]:
    """What every store is held to."""
    yield Bound(
        says=f"drain of {MANY_QUEUES} by one worker, against one queue",
        measure=SPREAD,
        of=MANY_QUEUES,
        against=ONE_QUEUE,
        at_least=0.3,
    )
    yield Bound(
        says="drain of 64 kB payloads and results, against writing 64 kB once",
        measure=LARGE,
        of=LARGE_JOBS,
        against=WRITTEN_ONCE,
        at_least=0.5,
    )
    for says, measure, most in (
        (f"wait at {POISSON}, 99th percentile", WAIT, 25),
        (f"submit at {POISSON}, 99th percentile", SUBMIT, 10),
    ):
        yield Bound(says=says, measure=measure, of=POISSON, at_most=most, unit="ms")
    yield Bound(
        says=f"wait of {foreign(foreign_jobs)}, 99th percentile",
        measure=WAIT,
        of=foreign(foreign_jobs),
        at_most=100,
        unit="ms",
    )


def process_bound(celery: str) -> Bound:
    """Where Celery was measured: its prefork pool with as many processes."""
    return Bound(
        says="drain by handlers in two processes, against Celery's two",
        measure=drain.RATE,
        of=IN_PROCESSES,
        against=celery,
        at_least=4,
    )


def measure_queues(bench: Bench, number: int) -> None:
    """The same jobs in one queue and in many, the other way round in the next round."""
    ways = ((ONE_QUEUE, "one queue", "one"), (MANY_QUEUES, "spread", "spread"))
    for label, way, queues in rotated(ways, number):
        with bench.folder() as folder:
            ours = shaped_ours(bench.stage.ours, queues)
            reading = drained(bench, ours, folder, bench.settings.jobs, way=way)
        _record_rate(bench, SPREAD, label, reading.rate)


def measure_large(bench: Bench, number: int) -> None:
    """A drain, and as many bytes as its results have written once to the same kind of store."""
    for label in rotated((LARGE_JOBS, WRITTEN_ONCE), number):
        with bench.folder() as folder:
            ours, count = shaped_ours(bench.stage.ours, "one"), bench.settings.large
            if label == LARGE_JOBS:
                rate = drained(bench, ours, folder, count, way="large").rate
            else:
                rate = count / _written(bench, folder, count)
        _record_rate(bench, LARGE, label, rate)


def measure_processes(bench: Bench, _number: int) -> None:
    """A drain of no-op handlers that run in two processes."""
    ours = replace(shaped_ours(bench.stage.ours, "one"), label=IN_PROCESSES, several=True)
    with bench.folder() as folder:
        reading = drained(bench, ours, folder, bench.settings.peer_jobs, way="apart")
    _record_rate(bench, drain.RATE, IN_PROCESSES, reading.rate)


def measure_poisson(bench: Bench) -> None:
    """Two producers that submit at random instants."""
    count = bench.settings.shape_seconds * _PER_SECOND
    with bench.folder() as folder:
        waits, submits = _waits(bench, folder, _Load(count, _PER_SECOND, _PRODUCERS, "normal"))
    _record_late(bench, WAIT, POISSON, waits)
    _record_late(bench, SUBMIT, POISSON, submits)


def measure_foreign(bench: Bench) -> None:
    """Urgent jobs of a known task, behind a backlog that this worker does not know."""
    backlog = bench.settings.foreign
    count = bench.settings.shape_seconds * _URGENT_PER_SECOND
    with bench.folder() as folder:
        filled(bench.stage.ours, folder, "many", backlog)
        waits, _ = _waits(bench, folder, _Load(count, _URGENT_PER_SECOND, 1, "high"))
    _record_late(bench, WAIT, foreign(backlog), waits)


def shaped_ours(ours: Contestant, queues: str) -> Contestant:
    """Packhorse with the tasks of other shapes."""
    slots = str(CONCURRENCY)
    return replace(
        ours,
        program="shapes",
        worker=lambda _: python("benchmarks.workloads.shapes_app", slots, queues),
    )


def _written(bench: Bench, folder: Path, count: int) -> float:
    """Seconds to write so many large values."""
    is_sqlite = bench.stage.name == "sqlite"
    url = str(folder / "bare.db") if is_sqlite else bench.stage.server(folder)
    printed = run_to_end(
        python("benchmarks.workloads.bare_bytes", url, str(count)),
        environment={},
        seconds_max=LOAD_SECONDS_MAX,
    )
    return float(printed)


def _waits(bench: Bench, folder: Path, load: _Load) -> tuple[list[float], list[float]]:
    """Milliseconds from each submit's return to its handler, and those of each submit."""
    ours = shaped_ours(bench.stage.ours, "one")
    stamps = begun, returned, run = [folder / name for name in ("begun", "returned", "run")]
    share, count = load.count // load.producers, load.count
    for path in stamps:
        probe.new_stamps(path, count)
    with ExitStack() as running:
        environment = {**ours.environment(folder), probe.STAMPS: str(run)}
        worker = running.enter_context(
            started(ours.worker(folder), environment=environment, log=folder / "log")
        )
        time.sleep(1)  # the warm-up jobs cover what is left of the start
        for number in range(load.producers):
            files, numbers = (str(begun), str(returned)), (str(number * share), str(share))
            pace = (str(load.per_second / load.producers), load.priority)
            command = python("benchmarks.workloads.poisson", *files, *numbers, *pace)
            log = folder / f"producer{number}"
            running.enter_context(started(command, environment=ours.environment(folder), log=log))
        wait_until(lambda: all(probe.read_stamps(run)), worker)
    instants = list(zip(*map(probe.read_stamps, stamps), strict=True))
    counted = [instants[at] for at in range(count) if at % share >= _WARM_UP]
    waits = [max(0.0, ran - came_back) * 1000 for _, came_back, ran in counted]
    return waits, [(came_back - went) * 1000 for went, came_back, _ in counted]


def _record_rate(bench: Bench, measure: str, label: str, rate: float) -> None:
    bench.ledger.record(measure, label, rate, "jobs/s")
    bench.say(f"  {measure:<32} {label:<34} {rate:>9,.0f} jobs/s")


def _record_late(bench: Bench, measure: str, label: str, waits: Sequence[float]) -> None:
    late = percentile(waits, 0.99)
    bench.ledger.record(measure, label, late, "ms")
    bench.say(f"  {measure:<10} {label:<46} p50 {percentile(waits, 0.5):.2f}, p99 {late:.2f} ms")
