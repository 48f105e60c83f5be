# SPDX-License-Identifier: MIT
"""When a circuit breaker opens, refuses, probes and closes: the rule, without a store."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.policies.breaker import (
    PROBE_US_MIN,
    BreakerPhase,
    BreakerRule,
    BreakerState,
    admission,
    breaker_phase,
    call_failed,
    probe_begun,
    probe_ended,
)

SECOND = 1_000_000
RULE = BreakerRule(failures=3, window_us=30 * SECOND, open_us=60 * SECOND)


def after_failures(*seconds: float, rule: BreakerRule = RULE) -> BreakerState:
    state = BreakerState()
    for each in seconds:
        state = call_failed(state, rule, int(each * SECOND)) or state
    return state


@pytest.mark.parametrize(
    ("seconds", "opens"),
    [
        ((0, 1), False),
        ((0, 1, 2), True),
        ((0, 15, 29.9), True),
        ((0, 15, 30), False),  # the first one has left the window
        ((0, 15, 30, 31), True),
        ((0, 40, 80, 120), False),
    ],
)
def test_it_opens_after_so_many_failures_in_a_window(
    seconds: tuple[float, ...], *, opens: bool
) -> None:
    state = after_failures(*seconds)

    assert (state.open_until_us is not None) is opens
    if opens:
        assert state.open_until_us == (seconds[-1] + 60) * SECOND


def test_a_closed_one_lets_all_calls_through_and_an_open_one_none() -> None:
    assert admission(after_failures(0, 1), RULE, 2 * SECOND) == (BreakerPhase.CLOSED, 0)
    state = after_failures(0, 1, 2)
    assert admission(state, RULE, 61 * SECOND) == (BreakerPhase.OPEN, 62 * SECOND)
    assert admission(state, RULE, 62 * SECOND).phase is BreakerPhase.HALF_OPEN


def test_while_a_probe_runs_no_other_call_goes_through_until_it_is_taken_for_lost() -> None:
    state = probe_begun(after_failures(0, 1, 2), RULE, 62 * SECOND)

    phase, retry_us = admission(state, RULE, 63 * SECOND)
    assert (phase, retry_us) == (BreakerPhase.OPEN, (63 + 15) * SECOND)
    phase, retry_us = admission(state, RULE, 121 * SECOND)
    assert (phase, retry_us) == (BreakerPhase.OPEN, 122 * SECOND)
    assert admission(state, RULE, 122 * SECOND).phase is BreakerPhase.HALF_OPEN


def test_a_short_breaker_gives_its_probe_time_all_the_same() -> None:
    rule = msgspec.structs.replace(RULE, open_us=SECOND)

    state = probe_begun(after_failures(0, 1, 2, rule=rule), rule, 3 * SECOND)

    assert state.probe_until_us == 3 * SECOND + PROBE_US_MIN


def test_a_probe_that_fails_opens_it_for_as_long_again() -> None:
    probing = probe_begun(after_failures(0, 1, 2), RULE, 62 * SECOND)

    state = probe_ended(probing, RULE, 70 * SECOND, failed=True)

    assert (state.open_until_us, state.probe_until_us) == (130 * SECOND, None)
    assert breaker_phase(state, 129 * SECOND) is BreakerPhase.OPEN


def test_a_probe_that_was_interrupted_leaves_its_place_to_another_at_once() -> None:
    probing = probe_begun(after_failures(0, 1, 2), RULE, 62 * SECOND)

    state = probe_ended(probing, RULE, 70 * SECOND, failed=False)

    assert admission(state, RULE, 70 * SECOND).phase is BreakerPhase.HALF_OPEN


def test_a_failure_of_a_call_that_began_before_it_opened_says_nothing_new() -> None:
    assert call_failed(after_failures(0, 1, 2), RULE, 3 * SECOND) is None


def test_failures_of_a_clock_that_was_set_back_count_as_now() -> None:
    state = after_failures(100, 101)

    assert call_failed(state, RULE, 50 * SECOND) == BreakerState(
        failed_us=(50 * SECOND,) * 3, opened_us=50 * SECOND, open_until_us=110 * SECOND
    )


@given(
    st.integers(1, 6),
    st.integers(1, 60),
    st.lists(st.integers(0, 200), min_size=1, max_size=40).map(sorted),
)
def test_it_is_open_exactly_if_some_window_holds_enough_failures(
    failures: int, window_s: int, seconds: list[int]
) -> None:
    rule = BreakerRule(failures, window_s * SECOND, 60 * SECOND)
    crowded = any(
        seconds[at + failures - 1] - seconds[at] < window_s
        for at in range(len(seconds) - failures + 1)
    )

    state = after_failures(*seconds, rule=rule)

    assert (state.open_until_us is not None) is crowded
    assert len(state.failed_us) <= failures
