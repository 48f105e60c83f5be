# SPDX-License-Identifier: MIT
"""Idle: the processor time of a worker with nothing to do."""

from __future__ import annotations

import time
from typing import Final

from benchmarks import probe
from benchmarks.bench import Bench, filled, wait_until
from benchmarks.processes import started

IDLE: Final = "idle worker"
_JOBS: Final = 100
#: After the last job: what is still written, closed and put away is no idling.
_SETTLE_SECONDS: Final = 2


def measure(bench: Bench) -> None:
    """Some jobs, then nothing; for Packhorse and for the peer."""
    for contestant in bench.stage.waiting:
        with bench.folder() as folder:
            path = folder / "probe"
            probe.new_probe(path, _JOBS)
            filled(contestant, folder, "many", _JOBS)
            environment = {**contestant.environment(folder), probe.PROBE: str(path)}
            command = contestant.worker(folder)
            with started(command, environment=environment, log=folder / "log") as program:
                wait_until(probe.reached(path, _JOBS), program)
                time.sleep(_SETTLE_SECONDS)
                before, began = program.cpu_seconds(), time.monotonic()
                time.sleep(bench.settings.idle_seconds)
                used = program.cpu_seconds() - before
                share = used / (time.monotonic() - began) * 100
        bench.ledger.record(IDLE, contestant.label, share, "% of a core")
        bench.say(f"  idle     {contestant.label:<30} {share:.2f} % of a core")
