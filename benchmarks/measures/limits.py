# SPDX-License-Identifier: MIT
"""What a queue pays for limits that hold no job back.

A drain of a queue with a rate limit that is never reached, with a thousand tenants that share it,
and with a thousand ordering keys; each against the same queue without any of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench, drained, rotated
from benchmarks.bounds import Bound
from benchmarks.contestants import CONCURRENCY
from benchmarks.processes import python

RATE: Final = "drain with limits"
UNLIMITED: Final = "no limits"
RATED: Final = "a rate limit that is not reached"
FAIR: Final = "fair over 1,000 tenants"
ORDERED: Final = "ordered over 1,000 keys"

_WAYS: Final = (
    (UNLIMITED, "unlimited"),
    (RATED, "rated"),
    (FAIR, "fair"),
    (ORDERED, "ordered"),
)


def bounds() -> Iterator[Bound]:
    """At least half of the rate without limits, for each of them."""
    for label in (RATED, FAIR, ORDERED):
        yield Bound(
            says=f"drain, {label}, against no limits",
            measure=RATE,
            of=label,
            against=UNLIMITED,
            at_least=0.5,
        )


def measure_round(bench: Bench, number: int) -> None:
    """Drain each queue once, in another order each round."""
    command = python("benchmarks.workloads.limits_app", str(CONCURRENCY))
    for label, way in rotated(_WAYS, number):
        limited = replace(bench.stage.ours, label=label, program="limits", worker=lambda _: command)
        with bench.folder() as folder:
            reading = drained(bench, limited, folder, bench.settings.jobs, way=way)
        bench.ledger.record(RATE, label, reading.rate, "jobs/s")
        bench.say(f"  limits   {label:<34} {reading.rate:>9,.0f} jobs/s")
