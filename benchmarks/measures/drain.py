# SPDX-License-Identifier: MIT
"""Drain: how fast one worker process gets through a backlog of no-op jobs, and what it costs.

Results are kept and per-job log lines are off, except where lines are measured. The rate is that
between the first and the last handler; the processor time is the worker's, between the same two.
"""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, drained, rotated
from benchmarks.contestants import Contestant

RATE: Final = "drain"
COST: Final = "worker CPU"
#: The bare loop claims as many at a time as a Packhorse worker does at most.
BARE_BATCH: Final = 500


def measure_round(bench: Bench, number: int) -> None:
    """Every contestant once, in another order each round."""
    for contestant in rotated(bench.stage.drains, number):
        if bench.takes_part(contestant):
            with bench.forgiving(contestant):
                _drain(bench, contestant)


def _drain(bench: Bench, contestant: Contestant) -> None:
    pace, settings = contestant.pace, bench.settings
    count = settings.jobs if pace is None else round(settings.peer_jobs * pace)
    with bench.folder() as folder:
        reading = drained(bench, contestant, folder, count)
    bench.ledger.record(RATE, contestant.label, reading.rate, "jobs/s")
    bench.ledger.record(COST, contestant.label, reading.cpu_us_per_job, "µs/job")
    bench.say(
        f"  drain    {contestant.label:<30} {reading.rate:>9,.0f} jobs/s "
        f"{reading.cpu_us_per_job:>7.1f} µs CPU"
    )
