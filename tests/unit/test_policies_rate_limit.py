# SPDX-License-Identifier: MIT
"""Never more than the limit in any window, at most a 64th of a window late, and when it frees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import RateRule
from packhorse.core.policies.rate_limit import (
    ALLOWANCE_US_MAX,
    SLOTS,
    RateLog,
    check_rate,
    check_weight,
    current,
    granted,
    is_over,
    latest_end_us,
    next_free_us,
)
from packhorse.errors import ConfigError

START_US = 1_893_456_000_000_000

windows = st.sampled_from([1, 7, 63, 64, 65, 1_000, 60_000_001])
rules = st.builds(RateRule, max=st.integers(1, 12), window_us=windows)
#: Steps between attempts, in 64ths of a window and a little, so that edges are met exactly.
steps = st.tuples(st.sampled_from([0, 0, 0, 1, 2, 31, 63, 64, 65, 200]), st.integers(0, 2))
attempts = st.lists(st.tuples(steps, st.integers(1, 12)), max_size=80)

Grants = list[tuple[int, int]]


def attempted(rule: RateRule, tries: list[Any]) -> tuple[Grants, Grants, RateLog, int]:
    """What was granted and what was refused, as (instant, weight), the log, and the end."""
    log: RateLog = ()
    now_us, slot_us = START_US, -(-rule.window_us // SLOTS)
    given_out: Grants = []
    refused: Grants = []
    for (slots, more), weight in tries:
        now_us += slots * slot_us + more
        if next_free_us(log, rule, weight, now_us) == now_us:
            log = granted(log, rule, weight, now_us)
            given_out.append((now_us, weight))
        else:
            refused.append((now_us, weight))
    return given_out, refused, log, now_us


@given(rules, attempts, st.integers(0, 130), st.integers(0, 2))
def test_a_log_is_over_when_nothing_in_it_counts(
    rule: RateRule, tries: list[Any], slots: int, more: int
) -> None:
    _, _, log, now_us = attempted(rule, tries)
    now_us += slots * -(-rule.window_us // SLOTS) + more

    assert is_over(log, rule.window_us, now_us) is (current(log, rule, now_us) == ())


@pytest.mark.req("S1-22", "S0-15")
@given(rules, attempts)
def test_in_no_window_is_more_granted_than_the_limit(rule: RateRule, tries: list[Any]) -> None:
    given_out, _, _, _ = attempted(rule, tries)

    for begin_us, _ in given_out:
        inside = [w for at_us, w in given_out if 0 <= at_us - begin_us < rule.window_us]
        assert sum(inside) <= rule.max


@given(rules, attempts)
def test_what_is_refused_would_exceed_the_limit_in_a_window_a_64th_longer(
    rule: RateRule, tries: list[Any]
) -> None:
    given_out, refused, _, _ = attempted(rule, tries)

    for now_us, weight in refused:
        longer_us = rule.window_us * (SLOTS + 1) / SLOTS
        inside = [w for at_us, w in given_out if 0 <= now_us - at_us < longer_us]
        assert sum(inside) + weight > rule.max


@given(rules, attempts, st.integers(1, 12))
def test_the_next_free_instant_is_exact(rule: RateRule, tries: list[Any], weight: int) -> None:
    _, _, log, now_us = attempted(rule, tries)

    free_us = next_free_us(log, rule, weight, now_us)

    if weight > rule.max:
        assert free_us is None
        return
    assert free_us is not None
    assert next_free_us(log, rule, weight, free_us) == free_us
    if free_us > now_us:
        before_us = next_free_us(log, rule, weight, free_us - 1)
        assert before_us == free_us


@given(rules, attempts)
def test_a_log_stays_small_and_in_order_and_counts_every_grant_that_matters(
    rule: RateRule, tries: list[Any]
) -> None:
    given_out, _, log, now_us = attempted(rule, tries)
    counted = current(log, rule, now_us)

    assert len(log) <= SLOTS + 1
    assert list(log) == sorted(log)
    inside = sum(w for at_us, w in given_out if now_us - at_us < rule.window_us)
    assert inside <= sum(weight for _, weight in counted) <= rule.max


@given(rules, attempts, st.integers(1, 10**9))
def test_after_the_clock_was_set_back_a_gate_frees_within_a_window(
    rule: RateRule, tries: list[Any], back_us: int
) -> None:
    _, _, log, ended_us = attempted(rule, tries)
    now_us = ended_us - back_us

    found = current(log, rule, now_us)

    assert sum(w for _, w in found) <= sum(w for _, w in log)
    latest_us = latest_end_us(rule, now_us) + rule.window_us
    free_us = next_free_us(found, rule, rule.max, now_us)
    assert free_us is not None
    assert free_us <= latest_us
    assert current(found, rule, latest_us) == ()


#: How long after its grant a job may start, and how much of that it takes, in hundredths.
allowances = st.tuples(st.sampled_from([0, 1, 20, 999, ALLOWANCE_US_MAX]), st.integers(0, 100))


@pytest.mark.req("S1-66")
@given(rules, st.lists(st.tuples(steps, st.integers(1, 12), allowances), max_size=80))
def test_in_no_window_does_more_start_than_the_limit_however_late_within_the_allowance(
    rule: RateRule, tries: list[Any]
) -> None:
    log: RateLog = ()
    now_us, slot_us = START_US, -(-rule.window_us // SLOTS)
    starts: Grants = []
    for (slots, more), weight, (allowance_us, hundredths) in tries:
        now_us += slots * slot_us + more
        if next_free_us(log, rule, weight, now_us) == now_us:
            log = granted(log, rule, weight, now_us, allowance_us=allowance_us)
            starts.append((now_us + allowance_us * hundredths // 100, weight))

    assert len(log) <= 2 * SLOTS + 2
    assert list(log) == sorted(log)
    for begin_us, _ in starts:
        inside = [w for at_us, w in starts if 0 <= at_us - begin_us < rule.window_us]
        assert sum(inside) <= rule.max


def test_grants_in_one_slot_share_an_entry_and_count_from_its_end() -> None:
    rule = RateRule(max=3, window_us=6_400)

    log = granted(granted((), rule, 1, 1_000), rule, 1, 1_099)

    assert log == ((1_099, 2),)
    assert granted(log, rule, 1, 1_100) == ((1_099, 2), (1_199, 1))
    assert next_free_us(log, rule, 2, 1_100) == 1_099 + 6_400


def test_a_rule_that_changed_counts_what_was_granted_before_in_slots_of_its_own() -> None:
    log = granted((), RateRule(max=3, window_us=64), 2, 1_000)

    assert current(log, RateRule(max=3, window_us=6_400), 1_001) == ((1_099, 2),)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (RateRule(0, 1), "rate_limit lets 0 start"),
        (RateRule(-1, 1), "rate_limit lets -1 start"),
        (RateRule(True, 1), "rate_limit lets True start"),
        (RateRule(1, 0), "rate_limit has a window of 0"),
        (RateRule(1, -5), "rate_limit has a window of -5"),
    ],
)
def test_a_rate_that_lets_nothing_start_is_refused_by_name(rule: RateRule, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_rate(rule)


def test_a_sound_rate_and_none_are_taken() -> None:
    check_rate(RateRule(1, 1))
    check_rate(None)
    with pytest.raises(ConfigError, match="tenant_rate_limit"):
        check_rate(RateRule(0, 1), setting="tenant_rate_limit")


@pytest.mark.parametrize("weight", [0, -1, 1.5, True])
def test_a_weight_that_means_nothing_is_refused(weight: Any) -> None:
    with pytest.raises(ConfigError, match="weight is"):
        check_weight(weight)


def test_a_weight_that_could_never_start_is_refused_with_the_limit_and_the_fix() -> None:
    check_weight(5, (None, RateRule(5, 60_000_000)))
    with pytest.raises(ConfigError, match=r"weight is 6.*lets 5 start in 1m.*lower the weight"):
        check_weight(6, (None, RateRule(5, 60_000_000)))
