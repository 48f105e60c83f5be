# SPDX-License-Identifier: MIT
"""What the attempts of one task in one queue came to, and how long they waited and ran."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["BOUNDS_S", "OUTCOMES", "SERIES_MAX", "Series", "added", "merged"]

#: What an attempt may come to, in the order of `Series.outcomes`.
OUTCOMES: Final = (
    *("success", "retried", "dead", "cancelled", "snoozed", "limited", "released", "stale"),
)
#: Upper bounds of the buckets, in seconds; the last bucket has none.
BOUNDS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0, 3600.0),
)
#: Tasks in queues that are told apart; others are one series, so that no name makes a scrape large.
SERIES_MAX: Final = 1_000


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Totals since a worker started; each only rises."""

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
    """The totals of several workers, added up."""
    sums: dict[tuple[str, str], Series] = {}
    for part in parts:
        for each in part:
            before = sums.get(each.key)
            sums[each.key] = each if before is None else _sum(before, each)
    return tuple(sums.values())


def _sum(first: Series, second: Series) -> Series:
    return Series(
        first.queue,
        first.task,
        _each(first.outcomes, second.outcomes),
        first.timeouts + second.timeouts,
        _each(first.run, second.run),
        first.run_s + second.run_s,
        _each(first.wait, second.wait),
        first.wait_s + second.wait_s,
    )


def _each(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    if not (first and second):
        return first or second
    return tuple(map(sum, zip(first, second, strict=True)))
