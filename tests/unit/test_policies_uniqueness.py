# SPDX-License-Identifier: MIT
"""Who holds a key, for how long, and what a submit that meets a holder comes to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import (
    TERMINAL,
    WAITING,
    IdempotencyRule,
    JobStatus,
    OnConflict,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.policies.uniqueness import (
    Conflict,
    at_least_us,
    check_idempotency,
    check_unique,
    conflict,
    holds_idempotency_key,
    holds_unique_key,
    idempotency_identity,
    record_until_us,
    result_until_us,
    unique_identity,
)
from packhorse.errors import ConfigError
from packhorse.testing.conformance.samples import new_job

statuses = st.sampled_from(JobStatus)
instants = st.integers(0, 1_000)
SAME = IdempotencyRule("k", "digest", window_us=100)
WINDOW = UniqueRule("k", UniqueScope.WINDOW, window_us=100)


@given(statuses, instants, instants)
def test_a_unique_key_is_held_as_long_as_its_scope_says(
    status: JobStatus, created_us: int, now_us: int
) -> None:
    def held(rule: UniqueRule) -> bool:
        return holds_unique_key(rule, status, created_us=created_us, now_us=now_us)

    assert held(UniqueRule("k", UniqueScope.UNTIL_STARTED)) == (status in WAITING)
    assert held(UniqueRule("k", UniqueScope.UNTIL_FINISHED)) == (status not in TERMINAL)
    given_up = status in (JobStatus.DEAD, JobStatus.CANCELLED)
    assert held(WINDOW) == (not given_up and now_us < created_us + 100)


@pytest.mark.req("S0-17", "S0-18", "S0-20")
@given(statuses, instants, instants)
def test_an_idempotency_key_is_held_until_it_fails_or_its_window_is_over(
    status: JobStatus, created_us: int, now_us: int
) -> None:
    held = holds_idempotency_key(SAME, status, created_us=created_us, now_us=now_us)

    if status is JobStatus.COMPLETED:
        assert held == (now_us < created_us + 100)
    else:
        assert held == (status not in (JobStatus.DEAD, JobStatus.CANCELLED))


def test_a_window_ends_on_its_last_microsecond() -> None:
    assert holds_unique_key(WINDOW, JobStatus.COMPLETED, created_us=0, now_us=99)
    assert not holds_unique_key(WINDOW, JobStatus.COMPLETED, created_us=0, now_us=100)


_WAITS = {
    OnConflict.REJECT: Conflict.ANSWER,
    OnConflict.THROTTLE: Conflict.ANSWER,
    OnConflict.REPLACE: Conflict.REPLACE,
    OnConflict.PRESERVE_RUN_AT: Conflict.REPLACE,
    OnConflict.DEBOUNCE: Conflict.RESCHEDULE,
    OnConflict.KEEP_LATEST: Conflict.REPLACE,
}


@pytest.mark.parametrize("mode", OnConflict)
@pytest.mark.parametrize("status", JobStatus)
def test_what_a_conflict_comes_to_follows_the_table(mode: OnConflict, status: JobStatus) -> None:
    if status in WAITING:
        expected = _WAITS[mode]
    elif status is JobStatus.PROCESSING and mode is OnConflict.KEEP_LATEST:
        expected = Conflict.STASH
    else:
        expected = Conflict.ANSWER

    assert conflict(mode, status) is expected


def test_keys_belong_to_a_tenant_and_a_task() -> None:
    job = new_job(task="send", tenant="acme", unique=WINDOW, idempotency=SAME)

    assert unique_identity(job) == ("acme", "send", "k")
    assert idempotency_identity(job) == ("acme", "send", "k")
    assert unique_identity(new_job()) is None
    assert idempotency_identity(new_job()) is None


def test_a_completed_job_is_kept_as_long_as_it_holds_a_key() -> None:
    longer = msgspec.structs.replace(SAME, window_us=300)
    running = UniqueRule("k", UniqueScope.UNTIL_FINISHED)

    assert record_until_us(WINDOW, None, created_us=1_000) == 1_100
    assert record_until_us(WINDOW, longer, created_us=1_000) == 1_300
    assert record_until_us(running, None, created_us=1_000) == 1_000
    assert record_until_us(None, None, created_us=1_000) == 1_000
    assert result_until_us(longer, created_us=1_000) == 1_300
    assert result_until_us(None, created_us=1_000) == 1_000


def test_a_lifetime_is_made_longer_never_shorter() -> None:
    assert at_least_us(50, 1_100, finished_us=1_000) == 100
    assert at_least_us(500, 1_100, finished_us=1_000) == 500
    assert at_least_us(50, 900, finished_us=1_000) == 50
    assert at_least_us(None, 1_100, finished_us=1_000) is None


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"key": ""}, "its key is empty"),
        ({"scope": "for_ever"}, "scope is 'for_ever'; give 'until_started'"),
        ({"on_conflict": "explode"}, "on_conflict is 'explode'; give one of 'reject'"),
        ({"on_conflict": OnConflict.THROTTLE}, "'throttle' and scope is 'until_finished'"),
        ({"scope": UniqueScope.WINDOW}, "without a window longer than zero"),
        ({"scope": UniqueScope.WINDOW, "window_us": 0}, "without a window longer than zero"),
        ({"window_us": 5}, "window is set and scope is 'until_finished'"),
    ],
)
def test_rules_that_contradict_themselves_are_refused_with_the_fix(
    rule: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"unique: .*{told}"):
        check_unique(UniqueRule(**({"key": "k"} | rule)))


def test_sound_rules_are_taken() -> None:
    check_unique(UniqueRule("k"))
    check_unique(UniqueRule("k", UniqueScope.WINDOW, OnConflict.THROTTLE, 1))
    check_unique(UniqueRule("k", UniqueScope.UNTIL_STARTED, OnConflict.KEEP_LATEST))
    check_idempotency(5, result_keep_us=5)
    check_idempotency(5, result_keep_us=None)


def test_a_window_that_outlives_the_result_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"window is 6s.*kept for 5s.*raise result_ttl"):
        check_idempotency(6_000_000, result_keep_us=5_000_000)


def test_an_idempotency_window_of_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than zero"):
        check_idempotency(0, result_keep_us=None)
