# SPDX-License-Identifier: MIT
"""How many may wait, and who goes when there are too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.policies.depth import check_depth, excess, over_soft_depth, shed, turned_away
from packhorse.errors import ConfigError

few = st.integers(0, 20)


@pytest.mark.req("S2-15")
@given(few, few, st.none() | st.integers(1, 20))
def test_what_is_let_in_never_takes_a_queue_over_its_limit(
    depth: int, arriving: int, max_depth: int | None
) -> None:
    too_many = excess(depth, arriving, max_depth)

    assert too_many >= 0
    if max_depth is None or arriving == 0:
        assert too_many == 0
    else:
        assert depth + arriving - too_many <= max(max_depth, 0)
        assert too_many == 0 or depth + arriving - too_many == max_depth


@pytest.mark.req("S2-17")
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99), few), unique_by=lambda x: x[1]),
    few,
    few,
)
def test_the_least_urgent_and_latest_go_and_none_before_them(
    waiting: list[tuple[int, int, int]], too_many: int, too_large: int
) -> None:
    jobs = [(priority, sequence, f"job-{sequence}", size) for priority, sequence, size in waiting]

    gone = [each for each in jobs if each[2] in shed(jobs, too_many, too_large)]

    stayed = [each for each in jobs if each not in gone]
    assert all(left < each for left in stayed for each in gone)
    enough = len(gone) >= too_many and sum(each[3] for each in gone) >= too_large
    assert enough or not stayed
    spared = gone and [each for each in gone if each != min(gone)]
    assert not gone or len(spared) < too_many or sum(each[3] for each in spared) < too_large


@pytest.mark.req("S2-27")
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=8),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=8),
    few,
    st.integers(0, 60),
)
def test_who_is_turned_away_would_have_to_go_in_the_end(
    waiting: list[tuple[int, int]], coming: list[tuple[int, int]], jobs: int, size: int
) -> None:
    standing = [(priority, at, f"s{at}", own) for at, (priority, own) in enumerate(waiting)]
    arriving = [(priority, 50 + at, f"a{at}", own) for at, (priority, own) in enumerate(coming)]
    jobs_left, size_left = jobs - len(standing), size - sum(each[3] for each in standing)

    away = turned_away(standing, arriving, jobs_left, size_left)

    arrived = sum(own for *_, own in arriving)
    together = [*standing, *arriving]
    assert away <= set(shed(together, len(arriving) - jobs_left, arrived - size_left))
    if arriving:  # and of the last one to come that is all there is to say
        last, before = arriving[-1], together[:-1]
        more_urgent = [each for each in before if each < last]
        fits = len(more_urgent) < jobs and sum(each[3] for each in (*more_urgent, last)) <= size
        assert (last[2] in away) is not fits


def test_producers_are_warned_from_the_soft_depth_on() -> None:
    assert not over_soft_depth(9, 10)
    assert over_soft_depth(10, 10)
    assert not over_soft_depth(10**9, None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_depth": 0}, "max_depth is 0"),
        ({"max_depth": -3}, "max_depth is -3"),
        ({"max_depth": True}, "max_depth is True"),
        ({"soft_depth": 0}, "soft_depth is 0"),
        ({"max_depth": 5, "soft_depth": 6}, "soft_depth is 6, above max_depth, which is 5"),
        ({"max_depth": 5, "on_full": "explode"}, "on_full is 'explode'; give 'reject'"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"on_full": "wait"}, "on_full is 'wait' and there is no max_depth"),
        ({"on_full": "drop"}, "on_full is 'drop' and there is no max_depth"),
    ],
)
def test_depths_that_cannot_work_are_refused_by_name(settings: dict[str, Any], told: str) -> None:
    asked: dict[str, Any] = {"max_depth": None, "soft_depth": None, "on_full": "reject"}
    with pytest.raises(ConfigError, match=told):
        check_depth(**(asked | settings))


def test_sound_depths_are_taken() -> None:
    check_depth(max_depth=None, soft_depth=None, on_full="reject")
    check_depth(max_depth=5, soft_depth=5, on_full="drop")
    check_depth(max_depth=None, soft_depth=None, on_full="drop", max_bytes=1)
    check_depth(max_depth=None, soft_depth=5, on_full="reject")
