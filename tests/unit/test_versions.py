# SPDX-License-Identifier: MIT
"""Versions of payloads: which is one of now, what moves an older one forward, what is set aside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import (
    AttemptError,
    Counters,
    DeadReason,
    JobOptions,
    JobRecord,
    JobStatus,
)
from packhorse.core.outcome import GivenUp, Snoozed
from packhorse.core.versions import (
    OTHER_VERSION,
    OtherVersion,
    PayloadVersions,
    set_aside,
    stored_version,
)
from packhorse.errors import ConfigError, PayloadError

SECOND = 1_000_000
HOUR = 3600 * SECOND


def noted(name: str) -> Any:
    return lambda payload: {**payload, "steps": [*payload.get("steps", []), name]}


def chained(declared: str | None = "3") -> PayloadVersions:
    versions = PayloadVersions("shop.pay", declared)
    versions.add("1", "2", noted("a"))
    versions.add("2", "3", noted("b"))
    return versions


def steps(versions: PayloadVersions, version: str | None) -> Any:
    return msgspec.json.decode(versions.upcast(version, "{}")).get("steps", [])


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1", ["a", "b"]), ("1.0", ["a", "b"]), ("2", ["b"]), ("3", []), ("3.0", [])],
)
def test_an_older_payload_goes_through_every_step_to_now(version: str, expected: list[str]) -> None:
    assert steps(chained(), version) == expected


def test_a_payload_without_a_version_counts_as_the_oldest_one() -> None:
    assert steps(chained(), None) == ["a", "b"]
    assert steps(PayloadVersions("shop.pay", "7"), None) == []
    assert PayloadVersions("shop.pay", "7").is_current(None)


def test_the_end_of_the_chain_is_the_version_of_now_where_no_contract_has_one() -> None:
    assert chained(declared=None).current == "3"
    assert PayloadVersions("shop.pay", None).current is None


def test_several_older_versions_may_lead_to_one() -> None:
    versions = PayloadVersions("shop.pay", "3")
    versions.add("1", "3", noted("far"))
    versions.add("2", "3", noted("near"))

    assert [steps(versions, each) for each in "12"] == [["far"], ["near"]]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("1", "9", "two upcasters from version '1'"),
        ("1.0", "9", "two upcasters from version '1.0'"),
        ("0", "0", "leads back to '0'"),
        ("9", "1", None),
        ("3", "1", "leads back to '3'"),
        ("7", "8", "not joined to the others"),
        ("", "1", "give a text"),
        (1, "2", "give a text"),
    ],
)
def test_a_way_that_leads_nowhere_is_a_mistake_when_it_is_declared(
    source: Any, target: str, words: str | None
) -> None:
    versions = chained(declared=None)

    if words is None:
        versions.add(source, target, noted("c"))
        return
    with pytest.raises(ConfigError, match=f"task shop.pay: .*{words}"):
        versions.add(source, target, noted("c"))


def test_ways_that_do_not_reach_the_version_of_the_contract_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="contract is of version '4', and its upcasters end at"):
        _ = chained("4").current
    with pytest.raises(ConfigError, match="which is the version of its contract"):
        PayloadVersions("shop.pay", "1").add("1", "2", noted("a"))


@pytest.mark.parametrize("version", ["4", "3.1", "3.0.1", "10"])
def test_what_is_newer_is_never_taken_for_one_of_now(version: str) -> None:
    with pytest.raises(OtherVersion):
        chained().upcast(version, "{}")


@pytest.mark.parametrize("version", ["0.9", "beta"])
def test_what_is_older_without_a_way_is_left_as_it_is(version: str) -> None:
    assert chained().upcast(version, '{"a": 1}') == '{"a": 1}'


def test_an_upcaster_that_returns_no_payload_is_told_by_its_versions() -> None:
    versions = PayloadVersions("shop.pay", "2")
    versions.add("1", "2", lambda payload: None)

    with pytest.raises(PayloadError, match="from '1' to '2' returned a NoneType"):
        versions.upcast("1", "{}")


@given(st.permutations(list(range(6))))
def test_whatever_the_order_of_declaration_all_ways_lead_to_now_or_it_is_refused(
    order: list[int],
) -> None:
    versions = PayloadVersions("shop.pay", None)
    declared: set[int] = set()

    for each in order:
        near = not declared or {each - 1, each + 1} & declared
        try:
            versions.add(str(each), str(each + 1), noted(str(each)))
        except ConfigError:
            assert not near
            return
        assert near
        declared.add(each)
    assert steps(versions, "0") == [str(each) for each in range(6)]


def test_options_of_another_release_have_no_version() -> None:
    assert stored_version(None) is None
    assert stored_version(msgspec.json.encode(JobOptions(version="2")).decode()) == "2"
    assert stored_version('{"retry": "soon"}') is None


def record(error: AttemptError | None, attempts: int = 0) -> JobRecord:
    return JobRecord(
        id="j",
        task="pay",
        queue="default",
        status=JobStatus.PROCESSING,
        priority=2,
        tenant="",
        tags=(),
        counters=Counters(attempts=attempts),
        fence=1,
        created_us=0,
        updated_us=0,
        due_us=0,
        payload=b"{}",
        error=error,
    )


def aside(since_us: int, attempts: int = 0) -> AttemptError:
    return AttemptError("OtherVersion", "", OTHER_VERSION, attempts=attempts, since_us=since_us)


@pytest.mark.parametrize(
    ("spent_s", "delay_s"), [(0, 1), (1, 1), (8, 8), (59, 59), (600, 60), (3599, 60)]
)
def test_a_job_set_aside_comes_back_after_as_long_as_it_has_waited(
    spent_s: int, delay_s: int
) -> None:
    now_us = 10 * HOUR

    outcome = set_aside(record(aside(now_us - spent_s * SECOND)), "no", now_us, longest_us=HOUR)

    assert isinstance(outcome, Snoozed)
    assert (outcome.delay_us, outcome.counts, outcome.begun) == (delay_s * SECOND, False, False)
    assert outcome.error is not None
    assert outcome.error.since_us == now_us - spent_s * SECOND


def test_a_job_set_aside_for_too_long_is_dead_as_if_its_task_were_unknown() -> None:
    outcome = set_aside(record(aside(0)), "no", HOUR, longest_us=HOUR)

    assert isinstance(outcome, GivenUp)
    assert (outcome.reason, outcome.error.since_us) == (DeadReason.UNKNOWN_TASK, None)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        record(None),
        record(AttemptError("ValueError", "", "EXCEPTION")),
        record(aside(0, attempts=1), attempts=2),
    ],
)
def test_only_what_the_job_waited_for_last_counts_as_time_set_aside(
    stored: JobRecord | None,
) -> None:
    outcome = set_aside(stored, "no", 9 * HOUR, longest_us=HOUR)

    assert isinstance(outcome, Snoozed)
    assert outcome.error is not None
    assert outcome.error.since_us == 9 * HOUR
