# SPDX-License-Identifier: MIT
"""What steps cost: a drain of jobs with three durable steps against one of plain jobs."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, drained, rotated
from benchmarks.bounds import Bound

STEPS: Final = "drain of jobs with steps"
PLAIN: Final = "no steps"
STEPPED: Final = "three durable steps"
_WAYS: Final = ((PLAIN, "many"), (STEPPED, "stepped"))


def bound() -> Bound:
    """Three commits more a job, which jobs that run at once may share."""
    return Bound(
        says="drain of jobs with three durable steps, against jobs without",
        measure=STEPS,
        of=STEPPED,
        against=PLAIN,
        at_least=0.25,
    )


def measure_round(bench: Bench, number: int) -> None:
    """Both, the other way round in the next round."""
    for label, way in rotated(_WAYS, number):
        with bench.folder() as folder:
            reading = drained(bench, bench.stage.ours, folder, bench.settings.stepped, way=way)
        bench.ledger.record(STEPS, label, reading.rate, "jobs/s")
        bench.say(f"  steps    {label:<30} {reading.rate:>9,.0f} jobs/s")
