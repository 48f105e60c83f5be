# SPDX-License-Identifier: MIT
"""Handlers that sleep: two processes against one, and how well one keeps its slots filled."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, filled, rotated, wait_until
from benchmarks.processes import Program, started
from benchmarks.workloads.naps import nap_seconds

SCALING: Final = "5 ms handlers, 20 slots each"
MIXED: Final = "handlers that sleep 20 ms on average, 50 slots: share of the ideal time"
_SLOTS: Final = 20
_MIXED_SLOTS: Final = 50
_QUEUE: Final = "default"


def of_processes(label: str, processes: int) -> str:
    """What so many processes of a contestant are called."""
    return f"{label}, {'one process' if processes == 1 else 'two processes'}"


def measure_round(bench: Bench, number: int) -> None:
    """One process, two processes; the other way round in the next round."""
    for processes in rotated([1, 2], number):
        label = of_processes(bench.stage.ours.label, processes)
        with bench.folder() as folder:
            count = bench.settings.naps * processes
            reading = _drained(bench, folder, "naps", count, slots=_SLOTS, processes=processes)
        bench.ledger.record(SCALING, label, reading.rate, "jobs/s")
        bench.say(f"  scaling  {label:<30} {reading.rate:>9,.0f} jobs/s")


def measure_mixed_round(bench: Bench, _number: int) -> None:
    """One process with sleeps of all lengths; ideally every slot sleeps all the time."""
    count = bench.settings.mixed_naps
    label = bench.stage.ours.label
    with bench.folder() as folder:
        reading = _drained(bench, folder, "mixed naps", count, slots=_MIXED_SLOTS, processes=1)
    ideal_s = sum(map(nap_seconds, range(count))) / _MIXED_SLOTS
    share = ideal_s / (reading.last - reading.first)
    bench.ledger.record(MIXED, label, share, "×")
    bench.say(f"  mixed    {label:<30} {share:>9.2f} of the ideal time")


def _drained(
    bench: Bench, folder: Path, way: str, count: int, *, slots: int, processes: int
) -> probe.Reading:
    """The queue stays paused until every worker is there, so that all begin together."""
    contestant = bench.stage.with_slots(slots)
    path = folder / "probe"
    probe.new_probe(path, count)
    environment = {**contestant.environment(folder), probe.PROBE: str(path)}
    store = bench.stage.open_store(folder)
    with ExitStack() as stack:
        stack.callback(store.close)
        store.run(store.queues.pause(_QUEUE, paused=True))
        filled(contestant, folder, way, count)
        workers: list[Program] = [
            stack.enter_context(
                started(contestant.worker(folder), environment=environment, log=folder / f"log{n}")
            )
            for n in range(processes)
        ]
        wait_until(lambda: len(store.run(store.leases.workers())) == processes, workers[0])
        store.run(store.queues.pause(_QUEUE, paused=False))
        wait_until(probe.reached(path, count), workers[0])
    return probe.read(path)
