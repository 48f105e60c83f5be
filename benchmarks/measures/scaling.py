# SPDX-License-Identifier: MIT
"""Two worker processes on one file against one: handlers that sleep 5 ms, 20 slots each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, filled, rotated, wait_until
from benchmarks.processes import Program, started

__all__ = ["SCALING", "measure_round", "of_processes"]

SCALING: Final = "5 ms handlers, 20 slots each"
_SLOTS: Final = 20
_QUEUE: Final = "default"


def of_processes(label: str, processes: int) -> str:
    """What so many processes of a contestant are called."""
    return f"{label}, {'one process' if processes == 1 else 'two processes'}"


def measure_round(bench: Bench, number: int) -> None:
    """One process, two processes; the other way round in the next round."""
    for processes in rotated([1, 2], number):
        label = of_processes(bench.stage.ours.label, processes)
        with bench.folder() as folder:
            reading = _drained(bench, folder, processes)
        bench.ledger.record(SCALING, label, reading.rate, "jobs/s")
        bench.say(f"  scaling  {label:<30} {reading.rate:>9,.0f} jobs/s")


def _drained(bench: Bench, folder: Path, processes: int) -> probe.Reading:
    """The queue stays paused until every worker is there, so that all begin together."""
    contestant = bench.stage.with_slots(_SLOTS)
    count = bench.settings.naps * processes
    path = folder / "probe"
    probe.new_probe(path, count)
    environment = {**contestant.environment(folder), probe.PROBE: str(path)}
    store = bench.stage.open_store(folder)
    with ExitStack() as stack:
        stack.callback(store.close)
        store.run(store.queues.pause(_QUEUE, paused=True))
        filled(contestant, folder, "naps", count)
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
