# SPDX-License-Identifier: MIT
"""The bounds on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bounds import Bound
from benchmarks.contestants import BARE, DURABILITIES, HUEY, PACKHORSE
from benchmarks.measures import (
    blocked_work,
    claim_work,
    drain,
    idle,
    limits,
    memory,
    pickup,
    saturated,
    scaling,
    shapes,
    steady,
    steps,
    submit,
)
from benchmarks.measures.claiming import foreign_bound
from benchmarks.settings import Settings

_OURS = f"{PACKHORSE} FULL"
_PEER = f"{HUEY} FULL"


def sqlite_bounds(settings: Settings) -> list[Bound]:
    """All of them, in the order of the report."""
    return [*_rates(), *_costs(), *_waits(settings), *_limits(settings), *_shapes(settings)]


def _rates() -> Iterator[Bound]:
    yield Bound(says="drain against Huey", measure=drain.RATE, of=_OURS, against=_PEER, at_least=10)
    yield from _against_bare("drain", drain.RATE, 0.4)
    yield Bound(
        says="submit one against Huey", measure=submit.ONE, of=_OURS, against=_PEER, at_least=1
    )
    yield from _against_bare("submit one (sync)", submit.ONE, 0.5)
    yield from _against_bare("submit one (async)", submit.ASYNC_ONE, 0.5)
    yield Bound(
        says="submit many against Huey (one by one)",
        measure=submit.MANY,
        of=_OURS,
        against=_PEER,
        at_least=2,
    )
    yield from _against_bare("submit many", submit.MANY, 0.5)
    yield Bound(
        says="100 concurrent async submits against one at a time, FULL",
        measure=submit.CONCURRENT,
        of=_OURS,
        against=_OURS,
        against_measure=submit.ASYNC_ONE,
        at_least=5,
    )
    yield Bound(
        says="two worker processes against one, 5 ms handlers",
        measure=scaling.SCALING,
        of=scaling.of_processes(_OURS, 2),
        against=scaling.of_processes(_OURS, 1),
        at_least=1.8,
    )
    yield Bound(
        says="handlers that sleep 20 ms on average, 50 slots, against the ideal time",
        measure=scaling.MIXED,
        of=_OURS,
        at_least=0.9,
    )
    yield steps.bound()


def _against_bare(what: str, measure: str, share: float) -> Iterator[Bound]:
    for synchronous in DURABILITIES:
        yield Bound(
            says=f"{what} against the bare loop, {synchronous}",
            measure=measure,
            of=f"{PACKHORSE} {synchronous}",
            against=f"{BARE} {synchronous}",
            at_least=share,
        )


def _costs() -> Iterator[Bound]:
    for synchronous in DURABILITIES:
        yield Bound(
            says=f"worker CPU per job against the bare loop's, {synchronous}",
            measure=drain.COST,
            of=f"{PACKHORSE} {synchronous}",
            against=f"{BARE} {synchronous}",
            at_most=3,
        )
    yield Bound(
        says="worker CPU per job with a JSON line per start and end, against without",
        measure=drain.COST,
        of=f"{_OURS} with log lines",
        against=_OURS,
        at_most=2,
    )


def _waits(settings: Settings) -> Iterator[Bound]:
    yield Bound(says="pick-up, median", measure=pickup.P50, of=_OURS, at_most=5, unit="ms")
    yield Bound(
        says="pick-up, 99th percentile", measure=pickup.P99, of=_OURS, at_most=25, unit="ms"
    )
    yield saturated.BOUND
    yield from steady.STEADY
    yield Bound(says="idle worker", measure=idle.IDLE, of=_OURS, at_most=1, unit="% of a core")
    yield Bound(
        says="memory growth per 100,000 jobs after the first 100,000",
        measure=memory.GROWTH,
        of=_OURS,
        at_most=1,
        unit="MiB",
    )
    few, many = f"{settings.backlog_small:,}", f"{settings.backlog_large:,}"
    for state in ("waiting", "finished"):
        yield Bound(
            says=f"steps of a claim with {many} jobs {state} against {few} waiting",
            measure=claim_work.STEPS,
            of=f"{many} {state}",
            against=f"{few} waiting",
            at_most=1.3,
        )


def _shapes(settings: Settings) -> Iterator[Bound]:
    yield from shapes.bounds(settings.foreign)
    yield foreign_bound("steps", claim_work.STEPS, settings)


def _limits(settings: Settings) -> Iterator[Bound]:
    yield from limits.bounds()
    yield from blocked_work.bounds(settings)
