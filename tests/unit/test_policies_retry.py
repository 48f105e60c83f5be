# SPDX-License-Identifier: MIT
"""Run again? When? Back-off under a ceiling, with jitter from a given roll."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import RetryRule
from packhorse.core.policies.retry import (
    RetryPolicy,
    qualified_name,
    retry_delay_us,
    wants_retry,
)
from packhorse.errors import ConfigError

rules = st.builds(
    RetryRule,
    backoff=st.sampled_from(["fixed", "linear", "exponential"]),
    initial_us=st.integers(1, 10**12),
    max_us=st.integers(1, 10**12),
    multiplier=st.floats(0.01, 1e300, allow_nan=False),
    jitter=st.booleans(),
)
retries = st.integers(1, 100_000)
rolls = st.floats(0, 1, exclude_max=True)


def plain(backoff: str, **changes: Any) -> RetryRule:
    """A rule without jitter: one second, ceiling a minute."""
    return RetryRule(backoff=backoff, jitter=False, **changes)


def delays_s(rule: RetryRule, count: int = 8) -> list[float]:
    return [retry_delay_us(rule, n, roll=0.5) / 1_000_000 for n in range(1, count + 1)]


@pytest.mark.req("S1-35", "S0-11")
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        ("fixed", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("exponential", [1, 2, 4, 8, 16, 32, 60, 60]),
    ],
)
def test_each_strategy_grows_its_own_way_from_the_initial_delay(
    backoff: str, expected: list[float]
) -> None:
    assert delays_s(plain(backoff)) == expected


@pytest.mark.req("S1-35")
def test_the_multiplier_changes_only_exponential_backoff() -> None:
    for backoff in ("fixed", "linear"):
        assert delays_s(plain(backoff, multiplier=10.0)) == delays_s(plain(backoff))
    assert delays_s(plain("exponential", multiplier=3.0), 4) == [1, 3, 9, 27]


@pytest.mark.req("S1-34", "S1-36")
@given(rules, retries, rolls)
def test_no_delay_exceeds_the_ceiling_or_raises_however_often(
    rule: RetryRule, retry: int, roll: float
) -> None:
    assert 0 <= retry_delay_us(rule, retry, roll=roll) <= rule.max_us


@pytest.mark.req("X-4", "S0-12", "S4-15")
@given(rules, retries, rolls)
def test_jitter_draws_between_half_and_all_of_the_computed_delay(
    rule: RetryRule, retry: int, roll: float
) -> None:
    settled = RetryRule(
        backoff=rule.backoff,
        initial_us=rule.initial_us,
        max_us=rule.max_us,
        multiplier=rule.multiplier,
        jitter=False,
    )
    full = retry_delay_us(settled, retry, roll=roll)
    drawn = retry_delay_us(rule, retry, roll=roll)

    assert drawn == full if not rule.jitter else full // 2 <= drawn <= full


@pytest.mark.req("X-4", "S0-12")
def test_jitter_follows_the_roll() -> None:
    rule = RetryRule(backoff="fixed", initial_us=1_000)

    assert [retry_delay_us(rule, 1, roll=roll) for roll in (0, 0.5)] == [500, 750]


def test_the_default_policy_is_the_default_rule() -> None:
    assert RetryPolicy().rule == RetryRule()


def test_a_policy_becomes_plain_values() -> None:
    policy = RetryPolicy(
        max_retries=0,
        backoff="linear",
        initial_delay="2s",
        max_delay=5,
        multiplier=3,
        jitter=False,
        retry_on=(OSError, KeyError),
        give_up_on=(TimeoutError,),
        on_timeout="dead",
    )

    assert policy.rule == RetryRule(
        max_retries=0,
        backoff="linear",
        initial_us=2_000_000,
        max_us=5_000_000,
        multiplier=3.0,
        jitter=False,
        retry_on=("builtins.OSError", "builtins.KeyError"),
        give_up_on=("builtins.TimeoutError",),
        retry_timeouts=False,
    )
    assert isinstance(policy.rule.multiplier, float)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_retries": True}, "max_retries is True"),
        ({"max_retries": 2.5}, "max_retries is 2.5"),
        ({"max_retries": "3"}, "max_retries is '3'"),
        ({"backoff": "cubic"}, "backoff is 'cubic'"),
        ({"on_timeout": "ignore"}, "on_timeout is 'ignore'"),
        ({"initial_delay": 0}, "initial_delay must be more than zero"),
        ({"initial_delay": "2m"}, r"initial_delay \(2m\) is above max_delay \(60s\)"),
        ({"initial_delay": "soon"}, "initial_delay is 'soon'"),
        ({"max_delay": -1}, "max_delay is -1"),
        ({"multiplier": 0}, "multiplier is 0"),
        ({"multiplier": float("nan")}, "multiplier is nan"),
        ({"multiplier": float("inf")}, "multiplier is inf"),
        ({"multiplier": 10**400}, "multiplier is 10"),
        ({"multiplier": "2"}, "multiplier is '2'"),
        ({"multiplier": True}, "multiplier is True"),
        ({"retry_on": ValueError}, "retry_on is <class 'ValueError'>"),
        ({"retry_on": ("ValueError",)}, r"retry_on is \('ValueError',\)"),
        ({"give_up_on": None}, "give_up_on is None"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        RetryPolicy(**changes)


def names_of(kind: type[BaseException]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in kind.__mro__)


@pytest.mark.parametrize(
    ("raised", "again"),
    [
        (ConnectionError, True),
        (ConnectionResetError, True),
        (FileNotFoundError, False),
        (ValueError, False),
        (KeyboardInterrupt, False),
    ],
)
def test_kinds_are_matched_with_all_their_bases(
    raised: type[BaseException], *, again: bool
) -> None:
    policy = RetryPolicy(retry_on=(OSError,), give_up_on=(FileNotFoundError,))

    assert wants_retry(policy.rule, names_of(raised)) is again


def test_a_class_inside_a_class_has_its_full_name() -> None:
    assert qualified_name(ValueError) == "builtins.ValueError"
    assert qualified_name(RetryPolicy) == "packhorse.core.policies.retry.RetryPolicy"
