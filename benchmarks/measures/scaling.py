# SPDX-License-Identifier: MIT
"""Two worker processes on one file against one: handlers that sleep 5 ms, 20 slots each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, filled, rotated, wait_until
from benchmarks.contestants import packhorse, packhorse_store
from benchmarks.processes import Program, started

__all__ = ["ONE_PROCESS", "SCALING", "TWO_PROCESSES", "measure_round"]

SCALING: Final = "5 ms handlers, 20 slots each"
ONE_PROCESS: Final = "Packhorse FULL, one process"
TWO_PROCESSES: Final = "Packhorse FULL, two processes"
_SLOTS: Final = 20
_QUEUE: Final = "default"


def measure_round(bench: Bench, number: int) -> None:
    """One process, two processes; the other way round in the next round."""
    for label, processes in rotated([(ONE_PROCESS, 1), (TWO_PROCESSES, 2)], number):
        with bench.folder() as folder:
            reading = _drained(folder, processes, bench.settings.naps * processes)
        bench.ledger.record(SCALING, label, reading.rate, "jobs/s")
        bench.say(f"  scaling  {label:<30} {reading.rate:>9,.0f} jobs/s")


def _drained(folder: Path, processes: int, count: int) -> probe.Reading:
    """The queue stays paused until every worker is there, so that all begin together."""
    contestant = packhorse("FULL", slots=_SLOTS)
    path = folder / "probe"
    probe.new_probe(path, count)
    environment = {**contestant.environment(folder), probe.PROBE: str(path)}
    store = packhorse_store(folder)
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
