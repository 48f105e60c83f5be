# SPDX-License-Identifier: MIT
"""Memory: how much a worker grows with the jobs it has done, and with those that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, filled, wait_until
from benchmarks.estimates import slope
from benchmarks.processes import started

GROWTH: Final = "memory growth per 100,000 jobs"
BACKLOG: Final = "memory after 100,000 jobs"
_MEBIBYTE: Final = 2**20
_PER: Final = 100_000
#: Jobs fed at a time: the backlog stays small while the count grows.
_PORTION: Final = 20_000


def measure(bench: Bench) -> None:
    """Sample after the first 100,000 jobs, portion by portion."""
    total = bench.settings.memory_jobs
    if not total:
        return
    with bench.folder() as folder:
        points = _samples(bench, folder, [_PORTION] * (total // _PORTION))
    later = [point for point in points if point[0] >= _PER]
    growth = slope(later) * _PER / _MEBIBYTE
    bench.ledger.record(GROWTH, bench.stage.ours.label, growth, "MiB")
    bench.say(f"  memory   {growth:.2f} MiB more for each 100,000 jobs")
    with bench.folder() as folder:
        [(_, large)] = _samples(bench, folder, [total], at=_PER)
    small = later[0][1]
    bench.ledger.record(BACKLOG, f"{_PORTION:,} waiting", small / _MEBIBYTE, "MiB")
    bench.ledger.record(BACKLOG, f"{total:,} waiting", large / _MEBIBYTE, "MiB")
    bench.say(f"  memory   {small / _MEBIBYTE:.1f} MiB, {large / _MEBIBYTE:.1f} MiB with a backlog")


def _samples(
    bench: Bench, folder: Path, portions: list[int], at: int | None = None
) -> list[tuple[float, float]]:
    """(jobs done, bytes resident) after each portion, or once `at` jobs of it are done."""
    contestant = bench.stage.ours
    path = folder / "probe"
    probe.new_probe(path, sum(portions))
    environment = {**contestant.environment(folder), probe.PROBE: str(path)}
    points: list[tuple[float, float]] = []
    done = 0
    filled(contestant, folder, "many", portions[0])
    command = contestant.worker(folder)
    with started(command, environment=environment, log=folder / "log") as program:
        for number, portion in enumerate(portions):
            if number:
                filled(contestant, folder, "many", portion)
            until = done + (at or portion)
            wait_until(probe.reached(path, until), program)
            points.append((until, program.resident_bytes()))
            done += portion
    return points
