# SPDX-License-Identifier: MIT
"""Limits that hold nobody back: what a queue pays for having them.

A rate that is never reached, a thousand tenants that share a queue, a thousand keys whose jobs run
in order; each against the same queue without any of it.
"""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, drained, rotated
from benchmarks.contestants import CONCURRENCY, Contestant, packhorse
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


def measure_round(bench: Bench, number: int) -> None:
    """Each once, in another order each round."""
    for label, way in rotated(_WAYS, number):
        with bench.folder() as folder:
            reading = drained(bench, _contestant(label), folder, bench.settings.jobs, way=way)
        bench.ledger.record(RATE, label, reading.rate, "jobs/s")
        bench.say(f"  limits   {label:<34} {reading.rate:>9,.0f} jobs/s")


def _contestant(label: str) -> Contestant:
    ours = packhorse("FULL")
    return Contestant(
        label=label,
        program="limits",
        environment=ours.environment,
        worker=lambda _: python("benchmarks.workloads.limits_app", str(CONCURRENCY)),
        finished=ours.finished,
    )
