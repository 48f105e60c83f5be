# SPDX-License-Identifier: MIT
"""How long a submit takes while a worker has more to do than it can: jobs with steps, all slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, Producer, filled, producing, wait_until
from benchmarks.bounds import Bound
from benchmarks.estimates import percentile
from benchmarks.processes import Program, started

P50: Final = "submit beside a saturated worker p50"
P99: Final = "submit beside a saturated worker p99"
ONE: Final = "one at a time"
BOUND: Final = Bound(
    says="submit beside a saturated worker, 99th percentile",
    measure=P99,
    of=ONE,
    at_most=200,
    unit="ms",
)
#: Between two submits: a program that has other things to do as well.
_PAUSE_SECONDS: Final = 0.002
#: Submits before those that count: the first ones open the store.
_WARM_UP: Final = 5


def measure(bench: Bench) -> None:
    """One submit after the other, until the worker is through with its backlog."""
    ours, count = bench.stage.ours, bench.settings.stepped
    with bench.folder() as folder:
        filled(ours, folder, "stepped", count)
        bench.stage.after_filling(folder)
        path = folder / "probe"
        probe.new_probe(path, count)
        environment = {**ours.environment(folder), probe.PROBE: str(path)}
        with (
            producing(ours, folder, "one") as producer,
            started(ours.worker(folder), environment=environment, log=folder / "log") as program,
        ):
            wait_until(probe.reached(path, 1), program)
            waits = _waits(producer, program, probe.reached(path, count))
    middle, late = percentile(waits, 0.5), percentile(waits, 0.99)
    bench.ledger.record(P50, ONE, middle, "ms")
    bench.ledger.record(P99, ONE, late, "ms")
    bench.say(f"  saturated {len(waits)} submits: p50 {middle:.2f} ms, p99 {late:.2f} ms")


def _waits(producer: Producer, program: Program, done: Callable[[], bool]) -> list[float]:
    """Milliseconds of each submit that ended before the backlog did."""
    waits: list[float] = []
    while not done():
        waits.append(producer.submit(1).seconds * 1000)
        if program.ended:
            raise RuntimeError(f"the worker ended before its work was done:\n{program.output()}")
        time.sleep(_PAUSE_SECONDS)
    if len(waits) <= _WARM_UP:
        raise RuntimeError("the worker was done before anything was submitted: give it more jobs")
    return waits[_WARM_UP:]
