# SPDX-License-Identifier: MIT
"""Tenants share a queue by weight, however much one of them has waiting."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.policies.fairness import (
    STRIDE,
    WEIGHT_MAX,
    WEIGHT_MIN,
    check_fairness,
    deal,
    next_pass,
    stride,
    virtual_time,
)
from packhorse.errors import ConfigError

TENANTS = ("a", "b", "c", "d")
tenants = st.sampled_from(TENANTS)
weights = st.dictionaries(tenants, st.sampled_from([0.25, 0.5, 1, 2, 3, 10]))


class Line:
    """One (queue, priority), claimed in the order of passes and places."""

    def __init__(self, given_weights: dict[str, float] | None = None) -> None:
        self._weights = given_weights or {}
        self._ready: list[tuple[int, int, str]] = []
        self._place = count()
        self._lasts: dict[str, int] = {}
        self._highest = 0

    def submit(self, tenant: str, jobs: int = 1) -> None:
        for _ in range(jobs):
            first = self._ready[0][0] if self._ready else None
            now = virtual_time(first, self._highest)
            given_pass = next_pass(now, self._lasts.get(tenant), self._weights.get(tenant, 1.0))
            self._lasts[tenant] = given_pass
            self._highest = max(self._highest, given_pass)
            heappush(self._ready, (given_pass, next(self._place), tenant))

    def claim(self, jobs: int) -> list[str]:
        return [heappop(self._ready)[2] for _ in range(min(jobs, len(self._ready)))]


@given(
    backlogs=st.lists(st.integers(1, 60), max_size=3),
    before=st.integers(0, 40),
    mine=st.integers(1, 10),
)
def test_a_tenant_that_comes_late_starts_within_its_share(
    backlogs: list[int], before: int, mine: int
) -> None:
    line = Line()
    for tenant, jobs in zip(TENANTS, backlogs, strict=False):
        line.submit(tenant, jobs)
    line.claim(before)

    line.submit("late", mine)
    order = line.claim(10_000)

    starts = [position for position, tenant in enumerate(order, 1) if tenant == "late"]
    sharing = len(backlogs) + 1
    for number, position in enumerate(starts, 1):
        assert position <= number * sharing


@given(st.lists(st.tuples(tenants, st.integers(1, 5), st.integers(0, 8)), max_size=40))
def test_of_two_tenants_that_both_wait_neither_is_served_two_turns_more(
    events: list[tuple[str, int, int]],
) -> None:
    """While both have jobs waiting from before, their turns alternate."""
    line = Line()
    for tenant, jobs, claimed in events:
        line.submit(tenant, jobs)
        line.claim(claimed)
    line.submit("x", 30)
    line.submit("y", 30)

    both = [tenant for tenant in line.claim(10_000) if tenant in ("x", "y")]

    for end in range(len(both)):
        served = Counter(both[:end])
        assert abs(served["x"] - served["y"]) <= 1


@given(weights)
def test_in_the_long_run_tenants_are_served_by_weight(given_weights: dict[str, float]) -> None:
    line = Line(given_weights)
    for tenant in TENANTS:
        line.submit(tenant, 500)

    served = Counter(line.claim(500))

    turns = {tenant: served[tenant] / given_weights.get(tenant, 1.0) for tenant in TENANTS}
    for tenant, other in ((tenant, other) for tenant in TENANTS for other in TENANTS):
        slack = 1 / given_weights.get(tenant, 1.0) + 1 / given_weights.get(other, 1.0)
        assert abs(turns[tenant] - turns[other]) <= slack + 0.01


def test_ten_jobs_beside_a_hundred_thousand_start_among_the_next_twenty() -> None:
    line = Line()
    line.submit("big", 100_000)
    line.claim(1_000)

    line.submit("small", 10)

    assert Counter(line.claim(20))["small"] >= 9


def test_a_tenant_that_was_away_gains_nothing_by_it() -> None:
    line = Line()
    line.submit("a", 1)
    line.submit("b", 100)
    line.claim(50)

    line.submit("a", 50)

    assert Counter(line.claim(20))["a"] <= 11


@given(
    st.lists(tenants, max_size=20),
    st.none() | st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.dictionaries(tenants, st.integers(0, 10**9)),
    weights,
)
def test_passes_dealt_together_are_those_dealt_one_by_one(
    arriving: list[str],
    first_ready: int | None,
    highest: int,
    lasts: dict[str, int],
    given_weights: dict[str, float],
) -> None:
    one_by_one: list[int] = []
    known = dict(lasts)
    for tenant in arriving:
        ready = [number for number in (first_ready, *one_by_one) if number is not None]
        now = virtual_time(
            first_ready if first_ready is not None else (ready[0] if ready else None),
            max([highest, *one_by_one]),
        )
        known[tenant] = next_pass(now, known.get(tenant), given_weights.get(tenant, 1.0))
        one_by_one.append(known[tenant])

    together = deal(
        arriving, first_ready=first_ready, highest=highest, lasts=lasts, weights=given_weights
    )

    assert list(together) == one_by_one


def test_the_line_stands_at_its_first_ready_job_else_where_it_last_was() -> None:
    assert virtual_time(3, 9) == 3
    assert virtual_time(None, 9) == 9


def test_a_new_tenant_starts_where_the_line_stands_and_others_one_stride_on() -> None:
    assert next_pass(7, None) == 7
    assert next_pass(7, 6) == 6 + STRIDE
    assert next_pass(7 + 2 * STRIDE, 6) == 7 + 2 * STRIDE
    assert next_pass(0, 0, 2) == STRIDE // 2


@given(st.floats(WEIGHT_MIN, WEIGHT_MAX))
def test_every_allowed_weight_moves_its_tenant_on(weight: float) -> None:
    assert stride(weight) >= 1


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "2", True, None])
def test_a_weight_that_is_no_share_is_refused_with_its_tenant(weight: Any) -> None:
    with pytest.raises(ConfigError, match="weights gives tenant 'acme'"):
        check_fairness(fair=True, weights={"acme": weight}, ageing_us=None)


def test_weights_in_a_queue_that_is_not_fair_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fair is off.*set fair=True"):
        check_fairness(fair=False, weights={"acme": 2}, ageing_us=None)


def test_ageing_in_a_fair_queue_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ageing and fair are both on.*set fair=False"):
        check_fairness(fair=True, weights={}, ageing_us=1)


def test_ageing_by_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="ageing is 0"):
        check_fairness(fair=False, weights={}, ageing_us=0)


def test_sound_shares_are_taken() -> None:
    check_fairness(fair=True, weights={"acme": 2, "other": 0.5}, ageing_us=None)
    check_fairness(fair=False, weights={}, ageing_us=1)
