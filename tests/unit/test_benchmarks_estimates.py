# SPDX-License-Identifier: MIT
"""The statistics of the benchmarks; nothing here is timed."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bounds import Bound, judge
from benchmarks.estimates import estimate, paired_ratios, percentile, slope
from benchmarks.ledger import Ledger

VALUES = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=12)


def ledger_of(**series: list[float]) -> Ledger:
    ledger = Ledger()
    for contestant, values in series.items():
        for value in values:
            ledger.record("drain", contestant, value, "jobs/s")
    return ledger


class TestEstimates:
    @settings(deadline=None)  # thousands of resamples, on whatever machine
    @given(VALUES)
    def test_the_median_lies_inside_its_interval_and_the_interval_inside_the_values(
        self, values: list[float]
    ) -> None:
        found = estimate(values)

        assert min(values) <= found.low <= found.middle <= found.high <= max(values)
        assert found.middle == median(values)
        assert found.rounds == len(values)

    def test_the_same_values_give_the_same_interval(self) -> None:
        values = [3.0, 9.0, 4.0, 8.0, 5.0, 7.0, 6.0, 1.0, 2.0]

        assert estimate(values) == estimate(values)

    def test_values_that_agree_give_a_narrower_interval(self) -> None:
        close = estimate([99.0, 100.0, 101.0, 100.0, 99.5, 100.5, 100.0, 99.8, 100.2])
        wide = estimate([50.0, 150.0, 100.0, 60.0, 140.0, 100.0, 70.0, 130.0, 100.0])

        assert close.high - close.low < wide.high - wide.low

    def test_nothing_can_be_estimated_from_nothing(self) -> None:
        with pytest.raises(ValueError, match="no values"):
            estimate([])

    def test_a_ratio_is_taken_inside_each_round(self) -> None:
        assert paired_ratios([10.0, 40.0], [5.0, 10.0]) == [2.0, 4.0]

    def test_rounds_that_do_not_pair_up_are_refused(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            paired_ratios([1.0, 2.0], [1.0])

    def test_a_percentile_is_a_value_that_was_seen(self) -> None:
        values = [float(number) for number in range(101)]

        assert percentile(values, 0.5) == 50.0
        assert percentile(values, 0.99) == 99.0
        assert percentile(values, 1.0) == 100.0
        assert percentile([7.0], 0.99) == 7.0

    def test_one_outlier_does_not_bend_a_slope(self) -> None:
        points = [(float(x), 2.0 * x) for x in range(10)]
        points[4] = (4.0, 500.0)

        assert slope(points) == pytest.approx(2.0)

    def test_a_slope_needs_two_points(self) -> None:
        with pytest.raises(ValueError, match="two points"):
            slope([(1.0, 1.0)])


class TestLedger:
    def test_values_are_kept_in_the_order_of_the_rounds(self) -> None:
        series = ledger_of(ours=[3.0, 1.0, 2.0]).series("drain", "ours")

        assert series is not None
        assert series.values == (3.0, 1.0, 2.0)
        assert series.estimate.middle == 2.0

    def test_one_measure_has_one_unit(self) -> None:
        ledger = ledger_of(ours=[1.0])

        with pytest.raises(ValueError, match="counted in jobs/s"):
            ledger.record("drain", "theirs", 1.0, "ms")


class TestBounds:
    def test_a_bound_is_met_when_the_whole_interval_is_inside(self) -> None:
        ledger = ledger_of(ours=[20.0, 21.0, 22.0], theirs=[1.0, 1.0, 1.0])
        bound = Bound(says="", measure="drain", of="ours", against="theirs", at_least=10)

        verdict = judge(bound, ledger)

        assert verdict.result == "met"
        assert verdict.measured is not None
        assert verdict.measured.middle == 21.0

    def test_a_bound_is_missed_when_only_the_median_is_inside(self) -> None:
        ledger = ledger_of(ours=[5.0, 11.0, 12.0], theirs=[1.0, 1.0, 1.0])
        bound = Bound(says="", measure="drain", of="ours", against="theirs", at_least=10)

        verdict = judge(bound, ledger)

        assert verdict.result == "missed"
        assert verdict.middle_inside

    def test_a_bound_from_above_holds_the_figure_itself(self) -> None:
        ledger = ledger_of(ours=[4.0])
        kept = Bound(says="", measure="drain", of="ours", at_most=5)
        broken = Bound(says="", measure="drain", of="ours", at_most=3)

        assert judge(kept, ledger).result == "met"
        assert judge(broken, ledger).result == "missed"
        assert not judge(broken, ledger).middle_inside

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        bound = Bound(says="", measure="drain", of="ours", against="unknown", at_least=1)

        assert judge(bound, ledger_of(ours=[1.0])).result == "not measured"
        assert judge(bound, ledger_of(unknown=[1.0])).result == "not measured"

    def test_measures_can_be_compared_with_each_other(self) -> None:
        ledger = ledger_of(ours=[10.0])
        ledger.record("one at a time", "ours", 2.0, "jobs/s")
        bound = Bound(
            says="",
            measure="drain",
            of="ours",
            against="ours",
            against_measure="one at a time",
            at_least=5,
        )

        assert judge(bound, ledger).result == "met"
