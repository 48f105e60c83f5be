# SPDX-License-Identifier: MIT
"""Who goes first, and how long what is over is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.fairness import aged_rank, claim_rank, queue_order
from packhorse.core.policies.retention import (
    DAY_US,
    GHOST_US,
    Retention,
    is_ghost,
    lifetimes,
    may_prune,
)

instants = st.integers(0, 10**15)
spans = st.none() | st.integers(0, 10**15)
names = st.text("abc", min_size=1, max_size=2)


def test_the_lower_priority_number_goes_first_then_the_earlier_place() -> None:
    waiting = [claim_rank(2, 1), claim_rank(0, 9), claim_rank(2, 0), claim_rank(0, 8)]

    assert sorted(waiting) == [(0, 0, 8), (0, 0, 9), (2, 0, 0), (2, 0, 1)]


def test_queues_are_served_by_priority_and_equals_in_the_order_given() -> None:
    order = queue_order(["b", "late", "a", "early"], {"late": 1, "early": -1})

    assert order == ("early", "b", "a", "late")


@given(st.lists(names, unique=True), st.dictionaries(names, st.integers(-3, 3)))
def test_queue_order_keeps_every_queue_and_never_puts_a_higher_number_first(
    queues: list[str], priorities: dict[str, int]
) -> None:
    order = queue_order(queues, priorities)

    assert sorted(order) == sorted(queues)
    keys = [(priorities.get(queue, 0), queues.index(queue)) for queue in order]
    assert keys == sorted(keys)


def test_by_default_results_and_records_last_a_day_and_dead_letters_for_ever() -> None:
    assert DAY_US == 24 * 3600 * SECOND_US
    assert Retention() == Retention(finished_us=DAY_US, results_us=DAY_US, dead_us=None)


def test_the_first_expiry_is_the_earlier_of_the_two_lifetimes() -> None:
    def first(*given_us: int | None) -> int | None:
        return lifetimes(100, *given_us)["expires_us"]

    assert (first(50, 10), first(10, 50), first(50), first(None, 5)) == (110, 110, 150, 105)
    assert first(None, None) is None


def test_record_and_result_are_kept_from_the_end_of_the_job() -> None:
    kept = lifetimes(100, 50, 10)

    assert (kept["record_until_us"], kept["result_until_us"]) == (150, 110)
    assert set(lifetimes(100, None).values()) == {None}


@given(instants, spans, spans, instants)
def test_nothing_is_to_be_taken_away_before_the_first_expiry(
    finished_us: int, keep_us: int | None, result_keep_us: int | None, now_us: int
) -> None:
    expiry_us = lifetimes(finished_us, keep_us, result_keep_us)["expires_us"]
    record_over = may_prune(finished_us, keep_us, now_us)
    result_over = may_prune(finished_us, result_keep_us, now_us)

    assert (record_over or result_over) == (expiry_us is not None and expiry_us <= now_us)


def test_a_lifetime_ends_on_its_last_microsecond() -> None:
    assert not may_prune(100, 50, 149)
    assert may_prune(100, 50, 150)
    assert not may_prune(100, None, 10**18)


def test_a_worker_is_a_ghost_a_day_after_its_lease_has_ended() -> None:
    assert GHOST_US == DAY_US
    assert not is_ghost(100, 99 + DAY_US)
    assert is_ghost(100, 100 + DAY_US)


@pytest.mark.req("S2-18")
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1_000)), min_size=1),
    st.integers(1, 300),
)
def test_with_ageing_no_job_is_overtaken_by_what_comes_a_level_later(
    jobs: list[tuple[int, int]], ageing_us: int
) -> None:
    ranks = [
        (aged_rank(priority, place, ready_us=ready_us, ageing_us=ageing_us), priority, ready_us)
        for place, (priority, ready_us) in enumerate(jobs)
    ]

    for rank, priority, ready_us in ranks:
        for other, higher, later_us in ranks:
            if later_us > ready_us + (priority - higher) * ageing_us:
                assert rank < other


def test_with_ageing_equals_go_in_the_order_of_readiness_and_levels_count_at_first() -> None:
    def rank(priority: int, place: int, ready_us: int) -> tuple[int, int, int]:
        return aged_rank(priority, place, ready_us=ready_us, ageing_us=100)

    assert rank(2, 1, 0) < rank(2, 2, 0) < rank(3, 3, 0)
    assert rank(1, 9, 99) < rank(2, 1, 0) < rank(1, 9, 100)


def test_a_lower_pass_goes_before_an_earlier_place() -> None:
    assert claim_rank(2, 9, pass_number=1) < claim_rank(2, 1, pass_number=2)
    assert claim_rank(1, 9, pass_number=5) < claim_rank(2, 1, pass_number=0)
