# SPDX-License-Identifier: MIT
"""Pick-up: from `enqueue` returning to the handler's first line, in another process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import probe
from benchmarks.bench import LOAD_SECONDS_MAX, Bench, wait_until
from benchmarks.contestants import Contestant
from benchmarks.estimates import percentile
from benchmarks.processes import python, run_to_end, started
from benchmarks.workloads.pacer import PER_SECOND

P50: Final = "pick-up p50"
P99: Final = "pick-up p99"
#: Jobs before those that count: the worker is up by then.
_WARM_UP: Final = 10


def measure(bench: Bench) -> None:
    """Ten jobs a second for a while, for Packhorse and for the peer."""
    for contestant in bench.stage.waiting:
        with bench.folder() as folder:
            waits = _waits(bench, contestant, folder)
        milliseconds = [wait * 1000 for wait in waits]
        middle, late = percentile(milliseconds, 0.5), percentile(milliseconds, 0.99)
        bench.ledger.record(P50, contestant.label, middle, "ms")
        bench.ledger.record(P99, contestant.label, late, "ms")
        bench.say(f"  pick-up  {contestant.label:<30} p50 {middle:.2f} ms, p99 {late:.2f} ms")


def _waits(bench: Bench, contestant: Contestant, folder: Path) -> list[float]:
    count = _WARM_UP + bench.settings.pickup_seconds * PER_SECOND
    path = folder / "stamps"
    probe.new_stamps(path, count)
    environment = {**contestant.environment(folder), probe.STAMPS: str(path)}
    command = contestant.worker(folder)
    with started(command, environment=environment, log=folder / "log") as program:
        time.sleep(1)  # the warm-up jobs cover what is left of the start
        printed = run_to_end(
            python("benchmarks.workloads.pacer", contestant.program, str(count)),
            environment=contestant.environment(folder),
            seconds_max=LOAD_SECONDS_MAX,
        )
        wait_until(lambda: all(probe.read_stamps(path)), program)
    submitted = msgspec.json.decode(printed, type=list[float])
    begun = probe.read_stamps(path)
    # A handler may begin before the submit has returned in its own process: that is no wait.
    waits = [max(0.0, end - start) for start, end in zip(submitted, begun, strict=True)]
    return waits[_WARM_UP:]
