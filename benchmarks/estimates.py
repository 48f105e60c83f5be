# SPDX-License-Identifier: MIT
"""From the values of some rounds to what can be said about them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median
from typing import Final

import msgspec

#: Resamples drawn for one interval: the ends move by less than the last digit shown.
RESAMPLES: Final = 4000
CONFIDENCE: Final = 0.95
#: The same rounds always give the same interval.
SEED: Final = 20_240_229


class Estimate(msgspec.Struct, frozen=True):
    """A middle value, and where it may well lie."""

    middle: float
    low: float
    high: float
    rounds: int


def estimate(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = median
) -> Estimate:
    """The median of `values` (or another statistic) with its bootstrap interval."""
    if not values:
        raise ValueError("no values to estimate from; every measure records at least one")
    chance = random.Random(SEED)
    resampled = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return Estimate(
        middle=statistic(values),
        low=percentile(resampled, tail),
        high=percentile(resampled, 1 - tail),
        rounds=len(values),
    )


def paired_ratios(values: Sequence[float], references: Sequence[float]) -> list[float]:
    """Each round's value by the same round's reference: what moved the machine moved both."""
    return [value / reference for value, reference in zip(values, references, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all lie; the nearest one that was really seen."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[min(last, max(0, round(share * last)))]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much y rises for each x: the median over all pairs, which outliers do not bend."""
    rises = [
        (y_after - y_before) / (x_after - x_before)
        for (x_before, y_before), (x_after, y_after) in combinations(sorted(points), 2)
        if x_after != x_before
    ]
    if not rises:
        raise ValueError("a slope needs two points that lie apart")
    return median(rises)
