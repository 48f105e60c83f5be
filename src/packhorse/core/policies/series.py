# SPDX-License-Identifier: MIT
"""What the attempts of one task in one queue came to, and how long they waited and ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

#: What an attempt may come to, in the order of `Series.outcomes`.
OUTCOMES: Final = (
    *("success", "retried", "dead", "cancelled", "snoozed", "limited", "released", "stale"),
)
#: Upper bounds of the buckets, in seconds; the last bucket has none. Each is at most 2.5 times the
#: one before, so that a percentile is right within that.
BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35),
    *(0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0),
    *(180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
#: Those of them that a scrape shows: each is a line for every task.
EXPOSED_S: Final = frozenset(
    (
        *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
        *(300.0, 1800.0, 3600.0),
    )
)
#: Tasks in queues that are told apart; others are one series, so that no name makes a scrape large.
SERIES_MAX: Final = 1_000
#: The queue and the task of those that are not.
OTHER: Final = "_other"


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Totals since a worker started, each of which only rises; or those of a span of time."""

    queue: str
    task: str
    outcomes: tuple[int, ...]  #: attempts by `OUTCOMES`
    timeouts: int = 0
    run: tuple[int, ...] = ()  #: attempts by how long they ran, a number for each bucket
    run_s: float = 0.0
    wait: tuple[int, ...] = ()  #: first attempts by how long their jobs were ready before
    wait_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return self.queue, self.task


def merged(before: Iterable[Series], newer: Iterable[Series]) -> tuple[Series, ...]:
    """The newest of each; totals of one worker replace those it told before."""
    known = {each.key: each for each in before}
    known.update({each.key: each for each in newer})
    return tuple(known.values())


def added(*parts: Iterable[Series]) -> tuple[Series, ...]:
    """The totals of several workers, or of several spans, added up."""
    found: dict[tuple[str, str], list[Series]] = {}
    for part in parts:
        for each in part:
            found.setdefault(each.key, []).append(each)
    return tuple(each[0] if len(each) == 1 else _sum(each) for each in found.values())


def risen(before: Series | None, after: Series) -> Series:
    """By how much totals have risen."""
    if before is None:
        return after
    return Series(
        *(after.queue, after.task),
        _less(after.outcomes, before.outcomes),
        after.timeouts - before.timeouts,
        _less(after.run, before.run),
        round(after.run_s - before.run_s, 6),
        _less(after.wait, before.wait),
        round(after.wait_s - before.wait_s, 6),
    )


def bounded(series: Iterable[Series], most: int) -> tuple[Series, ...]:
    """Those with the most attempts; all others together are one more."""
    found = sorted(series, key=lambda each: (each.queue == OTHER, -sum(each.outcomes)))
    others = [
        msgspec.structs.replace(each, queue=OTHER, task=OTHER)
        for each in found[most:]
        if any(each.outcomes)
    ]
    return (*found[:most], *added(others))


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The span that this share did not exceed, as far as buckets tell; None: there was none."""
    counts = list(accumulate(buckets))
    if not counts or not counts[-1]:
        return None
    wanted = share * counts[-1]
    at = next(index for index, count in enumerate(counts) if count >= wanted and count)
    low = BOUNDS_S[at - 1] if at else 0.0
    if at == len(BOUNDS_S):
        return low
    below = counts[at] - buckets[at]
    return low + (BOUNDS_S[at] - low) * (wanted - below) / buckets[at]


def _sum(series: Sequence[Series]) -> Series:
    first = series[0]
    return Series(
        *(first.queue, first.task),
        _each([each.outcomes for each in series]),
        sum(each.timeouts for each in series),
        _each([each.run for each in series]),
        sum(each.run_s for each in series),
        _each([each.wait for each in series]),
        sum(each.wait_s for each in series),
    )


def _each(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    given = [row for row in rows if row]  # what ended with its process has no spans
    return tuple(map(sum, zip(*given, strict=True)))


def _less(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(new - old for new, old in zip(after, before, strict=True)) if before else after
