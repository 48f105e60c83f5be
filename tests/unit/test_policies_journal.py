# SPDX-License-Identifier: MIT
"""Groups and their names, and how long a member is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import JobOptions, Member
from packhorse.core.policies.journal import (
    CARRIED_LINES_MAX,
    LINES_MAX,
    MEMBER_LIFE_US_MAX,
    Group,
    check_lines,
    is_kept,
    member_of,
)
from packhorse.core.policies.records import RecordId
from packhorse.errors import ConfigError

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\1"), max_size=20)
_groups = st.builds(
    Group, st.just("batch"), _texts, _texts, st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
)


@given(group=_groups, node=_texts)
def test_a_group_is_read_from_what_its_members_say(group: Group, node: str) -> None:
    told = group.member(node)

    assert told == Member(group.text, node)
    assert Group.of(told.group) == group
    assert RecordId.of(told.group) == group.record


@given(one=_groups, other=_groups)
def test_groups_have_names_of_their_own(one: Group, other: Group) -> None:
    assert (one.text == other.text) is (one == other)


@pytest.mark.parametrize("run", ["", "#", "a#1", "a\n", "x" * 65])
def test_a_run_that_could_be_read_as_another_is_refused(run: str) -> None:
    with pytest.raises(ConfigError, match="no run of a group"):
        Group("batch", "", "key", run).member()


def test_a_job_says_what_it_is_a_member_of() -> None:
    member = Group("batch", "", "key", "1").member("node")

    assert member_of(None) is None
    assert member_of(JobOptions()) is None
    assert member_of(JobOptions(member=member)) is member


def test_a_member_is_kept_for_its_longest_life() -> None:
    assert is_kept(7, 7 + MEMBER_LIFE_US_MAX - 1)
    assert not is_kept(7, 7 + MEMBER_LIFE_US_MAX)


def test_no_more_is_folded_than_a_call_takes() -> None:
    check_lines(range(LINES_MAX), [])
    with pytest.raises(ConfigError, match=f"at most {LINES_MAX} are taken"):
        check_lines(range(LINES_MAX + 1), [])
    with pytest.raises(ConfigError, match=f"at most {CARRIED_LINES_MAX} are taken"):
        check_lines([], range(CARRIED_LINES_MAX + 1))  # type: ignore[arg-type]  # only counted
