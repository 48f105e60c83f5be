# SPDX-License-Identifier: MIT
"""Steady state from an empty store: jobs arrive at one rate for minutes, and one worker keeps up.

On PostgreSQL once more while another connection holds an old snapshot and two readers, whose
transactions overlap, keep the server from ever clearing anything away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from benchmarks import probe
from benchmarks.bench import Bench, wait_until
from benchmarks.bounds import Bound
from benchmarks.estimates import percentile
from benchmarks.processes import python, run_to_end, started

#: The worst minute's 99th percentile, and the last minute's against the first's.
LATE: Final = "steady wait p99, worst minute"
GROWTH: Final = "steady wait p99, last minute against the first"
FREE: Final = "steady state"
HELD: Final = "steady state under an old snapshot"
#: What every store is held to.
STEADY: Final = (
    Bound(
        says="steady wait from an empty store, 99th percentile of the worst minute",
        measure=LATE,
        of=FREE,
        at_most=50,
        unit="ms",
    ),
)
_MINUTE_SECONDS: Final = 60
#: Jobs before those that count: the worker is up by then.
_WARM_UP_SECONDS: Final = 2
#: How long the last jobs may take after the last submit.
_DRAIN_SECONDS_MAX: Final = 120.0
_READER_SECONDS: Final = 10.0
_COUNT: Final = b"select count(*) from pg_class"


def measure(bench: Bench) -> None:
    """Everywhere as the store comes; on PostgreSQL also under an old snapshot."""
    for label in (FREE, HELD) if bench.stage.name == "postgres" else (FREE,):
        with bench.folder() as folder:
            url = bench.stage.server(folder) if label == HELD else ""
            minutes = _minutes(bench, folder, url)
        worst = max(late for _, late in minutes)
        bench.ledger.record(LATE, label, worst, "ms")
        bench.ledger.record(GROWTH, label, minutes[-1][1] / minutes[0][1], "×")
        for number, (middle, late) in enumerate(minutes, start=1):
            bench.say(f"  {label:<36} minute {number:>2} p50 {middle:.1f} ms, p99 {late:.1f} ms")


def _minutes(bench: Bench, folder: Path, url: str) -> list[tuple[float, float]]:
    """The median and the 99th percentile of the wait, in milliseconds, of each minute."""
    settings, ours = bench.settings, bench.stage.ours
    rate = settings.steady_rate
    count = (settings.steady_seconds + _WARM_UP_SECONDS) * rate
    begun, submitted = folder / "begun", folder / "submitted"
    probe.new_stamps(begun, count)
    probe.new_stamps(submitted, count)
    environment = {**ours.environment(folder), probe.STAMPS: str(begun)}
    producer = python("benchmarks.workloads.steady_producer", str(submitted), str(count), str(rate))
    with ExitStack() as held:
        log = folder / "log"
        program = held.enter_context(started(ours.worker(folder), environment=environment, log=log))
        time.sleep(1)  # an empty store, and a worker that waits
        if url:
            held.enter_context(_holding(url))
        run_to_end(
            producer,
            environment=ours.environment(folder),
            seconds_max=settings.steady_seconds + _DRAIN_SECONDS_MAX,
        )
        wait_until(lambda: all(probe.read_stamps(begun)), program)
    pairs = zip(probe.read_stamps(submitted), probe.read_stamps(begun), strict=True)
    waits = [max(0.0, end - start) * 1000 for start, end in pairs][_WARM_UP_SECONDS * rate :]
    return [_figures(waits[at : at + _MINUTE_SECONDS * rate]) for at in _starts(len(waits), rate)]


def _starts(count: int, rate: int) -> range:
    """Where minutes begin; what is left of less than half of one is left out."""
    return range(0, max(1, count - _MINUTE_SECONDS * rate // 2), _MINUTE_SECONDS * rate)


def _figures(waits: Sequence[float]) -> tuple[float, float]:
    return percentile(waits, 0.5), percentile(waits, 0.99)


@contextmanager
def _holding(url: str) -> Iterator[None]:
    """An old snapshot throughout, and two readers of which one always has a transaction open."""
    stop = threading.Event()
    readers = [threading.Thread(target=_read, args=(url, stop, turn)) for turn in range(2)]
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute(_COUNT)
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            stop.set()
            for reader in readers:
                reader.join()


def _read(url: str, stop: threading.Event, turn: int) -> None:
    stop.wait(turn * _READER_SECONDS / 2)
    with psycopg.connect(url) as connection:
        while not stop.is_set():
            connection.execute("set transaction isolation level repeatable read")
            connection.execute(_COUNT)
            stop.wait(_READER_SECONDS)
            connection.rollback()
