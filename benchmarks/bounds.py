# SPDX-License-Identifier: MIT
"""What the figures are held against. A bound is met when the whole interval lies inside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from benchmarks.estimates import Estimate, estimate, paired_ratios
from benchmarks.ledger import Ledger


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One promise about speed: a ratio of two series, or a figure by itself."""

    says: str  #: for people
    measure: str
    of: str  #: the contestant
    against: str | None = None  #: the contestant it is divided by, if any
    against_measure: str | None = None  #: None: the same measure
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"

    @property
    def limit(self) -> str:
        """The bound as text."""
        sign, number = ("≥", self.at_least) if self.at_most is None else ("≤", self.at_most)
        return f"{sign} {number:g} {self.unit}"


class Verdict(msgspec.Struct, frozen=True):
    """A bound, what was measured, and what that comes to."""

    bound: Bound
    measured: Estimate | None
    result: Literal["met", "missed", "not measured"]
    middle_inside: bool = False  #: the median meets the bound, whatever its interval does


def judge_all(bounds: Iterable[Bound], ledger: Ledger) -> list[Verdict]:
    """Hold a run against its bounds."""
    return [judge(bound, ledger) for bound in bounds]


def judge(bound: Bound, ledger: Ledger) -> Verdict:
    """Hold a run against one bound."""
    measured = _measured(bound, ledger)
    if measured is None:
        return Verdict(bound, None, "not measured")
    met = _inside(bound, measured.low) and _inside(bound, measured.high)
    return Verdict(
        bound, measured, "met" if met else "missed", middle_inside=_inside(bound, measured.middle)
    )


def _measured(bound: Bound, ledger: Ledger) -> Estimate | None:
    series = ledger.series(bound.measure, bound.of)
    if series is None:
        return None
    if bound.against is None:
        return series.estimate
    reference = ledger.series(bound.against_measure or bound.measure, bound.against)
    if reference is None:
        return None
    # Who failed takes no part from then on: what it did before is held against the same rounds.
    shared = min(len(series.values), len(reference.values))
    return estimate(paired_ratios(series.values[:shared], reference.values[:shared]))


def _inside(bound: Bound, value: float) -> bool:
    above = bound.at_least is None or value >= bound.at_least
    return above and (bound.at_most is None or value <= bound.at_most)
