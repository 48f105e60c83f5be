# SPDX-License-Identifier: MIT
"""How many workers are wanted: within bounds, not up and down for ever, never below what runs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.policies.autoscale import (
    QUIET_US,
    Load,
    ScaleRule,
    Scaling,
    check_scale,
    demand,
    scale,
    wanted,
)
from packhorse.errors import ConfigError

RULE = ScaleRule(enabled=True, min_workers=1, max_workers=10, scale_up=100, scale_down=10)

bounds = st.tuples(st.integers(1, 12), st.integers(0, 12))
rules = st.builds(
    lambda low, high, down, up: ScaleRule(
        enabled=True, min_workers=low, max_workers=low + high, scale_down=down, scale_up=down + up
    ),
    st.integers(1, 8),
    st.integers(0, 12),
    st.integers(0, 50),
    st.integers(1, 50),
)
rates = st.floats(0, 1_000, allow_nan=False)
loads = st.builds(
    Load,
    ready=st.integers(0, 200),
    running=st.integers(0, 100),
    slots=st.integers(1, 10),
    arrivals_per_s=rates,
    served_per_s=rates,
)
counts = st.integers(0, 30)


@pytest.mark.req("S1-48", "S2-16")
@given(rules, loads, counts)
def test_the_number_wanted_is_within_its_bounds(rule: ScaleRule, load: Load, workers: int) -> None:
    assert rule.min_workers <= wanted(rule, load, workers) <= rule.max_workers


@pytest.mark.req("S1-49")
@given(rules, loads, counts)
def test_switched_off_the_number_never_changes(rule: ScaleRule, load: Load, workers: int) -> None:
    off = ScaleRule(False, rule.min_workers, rule.max_workers, rule.scale_up, rule.scale_down)

    assert wanted(off, load, workers) == workers
    before = Scaling(workers, 0)
    assert scale(off, load, before, 10**12) == before
    assert wanted(ScaleRule(), load, workers) == workers


@pytest.mark.req("S1-48")
@given(rules, loads, counts)
def test_more_are_wanted_from_the_upper_threshold_on_and_fewer_from_the_lower_down(
    rule: ScaleRule, load: Load, workers: int
) -> None:
    now = max(rule.min_workers, min(rule.max_workers, workers))
    number = wanted(rule, load, workers)

    if load.ready >= rule.scale_up:
        assert number > now or now == rule.max_workers
    elif load.ready <= rule.scale_down:
        assert now - 1 <= number <= now
    else:
        assert number == now


@pytest.mark.req("S1-51")
@given(rules, loads, counts)
def test_fewer_is_never_fewer_than_the_running_jobs_fill(
    rule: ScaleRule, load: Load, workers: int
) -> None:
    number = wanted(rule, load, workers)

    if rule.min_workers <= workers <= rule.max_workers and number < workers:
        assert number >= math.ceil(load.running / load.slots)


@given(rules, loads, counts)
def test_under_a_steady_load_the_number_settles_and_never_turns_back(
    rule: ScaleRule, load: Load, workers: int
) -> None:
    numbers = [wanted(rule, load, workers)]
    for _ in range(30):
        numbers.append(wanted(rule, load, numbers[-1]))

    turns = {b > a for a, b in pairwise(numbers) if a != b}
    assert len(turns) <= 1
    assert numbers[-1] == numbers[-2]


@given(rules, st.lists(st.tuples(loads, st.integers(0, QUIET_US)), max_size=30), counts)
def test_after_a_change_fewer_are_wanted_only_once_it_was_quiet(
    rule: ScaleRule, events: list[tuple[Load, int]], workers: int
) -> None:
    now_us, before = 0, Scaling(max(rule.min_workers, min(rule.max_workers, workers)), -QUIET_US)
    for load, passed_us in events:
        now_us += passed_us
        after = scale(rule, load, before, now_us)
        if after.workers < before.workers:
            assert now_us - before.changed_us >= QUIET_US
        assert (after.changed_us == now_us) or after == before
        before = after


def test_as_many_are_wanted_as_keep_up_with_what_arrives() -> None:
    load = Load(ready=100, running=2, arrivals_per_s=30, served_per_s=10)

    assert wanted(RULE, load, 2) == 6
    assert wanted(RULE, Load(ready=100, running=2), 2) == 3


def test_no_worker_is_sent_away_while_all_are_needed_for_what_arrives() -> None:
    load = Load(ready=0, running=0, arrivals_per_s=10, served_per_s=10)

    assert wanted(RULE, load, 4) == 4
    assert wanted(RULE, Load(ready=0, running=0, arrivals_per_s=5, served_per_s=10), 4) == 3


def test_too_many_are_sent_away_at_once_when_the_bounds_say_so() -> None:
    busy = Load(ready=50, running=0)

    assert scale(RULE, busy, Scaling(30, 0), 1) == Scaling(10, 1)
    assert scale(RULE, busy, Scaling(0, 0), 1) == Scaling(1, 1)


def test_demand_is_what_there_is_to_do_and_what_is_being_done() -> None:
    assert demand(Load(ready=7, running=5)) == 12


@pytest.mark.req("S1-50")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"min_workers": 0}, "min_workers is 0; give 1 or more"),
        ({"min_workers": 11}, "min_workers is 11, above max_workers, which is 10"),
        ({"scale_down": -1}, "scale_down is -1; give 0 or more"),
        ({"scale_down": 100}, "scale_down is 100, not below scale_up, which is 100"),
    ],
)
def test_contradictory_settings_are_refused_with_the_fix(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"autoscale: {told}"):
        check_scale(ScaleRule(**settings))


def test_the_defaults_are_sound() -> None:
    check_scale(ScaleRule())
