# SPDX-License-Identifier: MIT
"""Why is it not running: one test for each answer, and what it says to people."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Counters, DeadReason, JobRecord, JobStatus, RateRule
from packhorse.core.policies.explain import (
    ClosedGate,
    JobFacts,
    Obstacle,
    Owner,
    ReasonCode,
    explain,
)
from packhorse.core.policies.gates import Gate, GateKind, key_pause, tenant_pause

NOW_US = 1_893_456_000 * SECOND_US
RULE = RateRule(max=100, window_us=60 * SECOND_US)
WAITING = (JobStatus.PENDING, JobStatus.FAILED, JobStatus.TIMEOUT)

RECORD = JobRecord(
    id="job",
    task="send",
    queue="mail",
    status=JobStatus.QUEUED,
    priority=2,
    tenant="acme",
    tags=(),
    counters=Counters(attempts=2),
    fence=3,
    created_us=NOW_US,
    updated_us=NOW_US,
    due_us=NOW_US,
    payload=b"",
    weight=7,
)


def reasons(*, facts: dict[str, Any] | None = None, **changes: Any) -> tuple[Obstacle, ...]:
    record = msgspec.structs.replace(RECORD, **changes)
    return explain(JobFacts(record=record, now_us=NOW_US, **(facts or {})))


def reason(*, facts: dict[str, Any] | None = None, **changes: Any) -> Obstacle:
    """The only one there is."""
    (only,) = reasons(facts=facts, **changes)
    return only


def closed(kind: GateKind, *name: str, **details: Any) -> dict[str, Any]:
    return {"closed": (ClosedGate(Gate(kind, name), **details),)}


def test_a_job_that_is_ready_and_has_none_before_it_is_next() -> None:
    found = reason()

    assert found.code is ReasonCode.READY
    assert "next" in found.text


def test_a_finished_job_says_how_and_when_it_ended() -> None:
    at_us = NOW_US - SECOND_US
    found = reason(status=JobStatus.DEAD, dead_reason=DeadReason.POISON_MESSAGE, finished_us=at_us)

    assert (found.code, found.at_us) == (ReasonCode.FINISHED, at_us)
    assert "dead (poison_message) since 2029-12-31T23:59:59Z" in found.text


def test_a_finished_job_says_nothing_of_gates_and_workers() -> None:
    facts = {"queue_paused": True, "served": False, "ahead": 3}

    assert reason(status=JobStatus.COMPLETED, facts=facts).code is ReasonCode.FINISHED


def test_a_running_job_says_where_for_how_long_and_which_attempt() -> None:
    started_us = NOW_US - 5 * SECOND_US
    facts = {"owner": Owner(heard_us=started_us, expires_us=NOW_US + 1)}
    found = reason(status=JobStatus.PROCESSING, worker="anna", started_us=started_us, facts=facts)

    assert (found.code, found.at_us) == (ReasonCode.RUNNING, NOW_US - 5 * SECOND_US)
    assert "attempt 3 at worker anna for 5s" in found.text


def lost(**facts: Any) -> Obstacle:
    return reason(status=JobStatus.PROCESSING, worker="anna", facts=facts)


def test_a_lost_job_says_how_long_its_worker_was_silent_and_when_it_is_taken_back() -> None:
    silent = Owner(heard_us=NOW_US - 31 * SECOND_US, expires_us=NOW_US - SECOND_US)
    found = lost(owner=silent)

    assert (found.code, found.at_us) == (ReasonCode.WORKER_LOST, NOW_US + 3 * SECOND_US)
    assert "anna has not been heard of for 31s" in found.text
    assert "(in 3s)" in found.text


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, "its worker anna is not known any more; it is taken back in a moment"),
        (
            {"owner": Owner(NOW_US, NOW_US + 1), "hold_until_us": NOW_US},
            "its worker anna has held it for too long; it is taken back in a moment",
        ),
        (
            {"owner": Owner(NOW_US - 1, NOW_US), "watched": False},
            "no worker lives that could take it back: start one, or cancel the job",
        ),
    ],
)
def test_a_lost_job_says_who_takes_it_back(facts: dict[str, Any], told: str) -> None:
    assert told in lost(**facts).text


def test_a_job_that_is_not_due_says_until_when() -> None:
    due_us = NOW_US + 60 * SECOND_US
    found = reason(status=JobStatus.PENDING, due_us=due_us)

    assert (found.code, found.at_us) == (ReasonCode.NOT_DUE, due_us)
    assert "not due until 2030-01-01T00:01:00Z (in 1m)" in found.text


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.TIMEOUT])
def test_a_job_that_failed_says_when_it_is_tried_again(status: JobStatus) -> None:
    due_us = NOW_US + SECOND_US
    found = reason(status=status, due_us=due_us)

    assert (found.code, found.at_us) == (ReasonCode.RETRY_WAITS, due_us)
    assert f"ended {status}; it is tried again at 2030-01-01T00:00:01" in found.text


@pytest.mark.parametrize("status", [*WAITING, JobStatus.QUEUED])
def test_a_job_whose_deadline_passed_says_that_it_will_expire(status: JobStatus) -> None:
    found = reasons(status=status, deadline_us=NOW_US)[0]

    assert (found.code, found.at_us) == (ReasonCode.DEADLINE_PASSED, NOW_US)
    assert reasons(status=status, deadline_us=NOW_US + 1)[0].code is not found.code


def test_a_parked_job_says_since_when_no_worker_knows_its_task() -> None:
    found = reason(parked_us=NOW_US, facts={"known": False})

    assert (found.code, found.at_us) == (ReasonCode.PARKED, NOW_US)
    assert "no live worker has known task 'send' since" in found.text


def test_a_job_of_a_paused_queue_says_how_to_resume_it() -> None:
    found = reason(facts={"queue_paused": True})

    assert found.code is ReasonCode.QUEUE_PAUSED
    assert "packhorse queues resume mail" in found.text


def test_a_job_of_a_paused_tenant_says_so() -> None:
    gate = tenant_pause("mail", "acme")
    found = reason(facts={"closed": (ClosedGate(gate),)})

    assert found.code is ReasonCode.TENANT_PAUSED
    assert "tenant 'acme' is paused in queue 'mail'" in found.text


def test_a_job_with_a_paused_key_says_so() -> None:
    found = reason(facts={"closed": (ClosedGate(key_pause("mail", "k")),)})

    assert found.code is ReasonCode.KEY_PAUSED
    assert "key 'k' is paused in queue 'mail'" in found.text


def test_a_job_behind_another_in_its_line_names_the_head() -> None:
    found = reason(facts=closed(GateKind.ORDER, "mail", "acme", "k", jobs=("head",)))

    assert (found.code, found.jobs) == (ReasonCode.BEHIND_HEAD, ("head",))
    assert "job head is before it" in found.text


@pytest.mark.parametrize(
    ("kind", "name", "subject"),
    [
        (GateKind.TASK_CONCURRENCY, ("send", "k"), "key 'k' of task 'send'"),
        (GateKind.TASK_CONCURRENCY, ("send",), "task 'send'"),
        (GateKind.QUEUE_CONCURRENCY, ("mail",), "queue 'mail'"),
    ],
)
def test_a_job_whose_key_is_busy_names_who_runs(
    kind: GateKind, name: tuple[str, ...], subject: str
) -> None:
    found = reason(facts=closed(kind, *name, limit=2, running=2, jobs=("x", "y")))

    assert (found.code, found.jobs, found.count) == (ReasonCode.CONCURRENCY, ("x", "y"), 2)
    assert f"{subject} is busy: 2 running, 2 allowed; it waits for job x, y" in found.text


def test_jobs_of_other_tenants_are_not_named() -> None:
    found = reason(facts=closed(GateKind.QUEUE_CONCURRENCY, "mail", limit=1, running=1))

    assert found.jobs == ()
    assert "it waits for job of another tenant" in found.text


@pytest.mark.parametrize(
    ("kind", "name", "subject"),
    [
        (GateKind.TASK_RATE, ("send", "k"), "key 'k' of task 'send'"),
        (GateKind.TASK_RATE, ("send",), "task 'send'"),
        (GateKind.TENANT_RATE, ("mail", "acme"), "tenant 'acme' in queue 'mail'"),
        (GateKind.QUEUE_RATE, ("mail",), "queue 'mail'"),
    ],
)
def test_a_job_behind_a_rate_limit_says_when_it_frees(
    kind: GateKind, name: tuple[str, ...], subject: str
) -> None:
    at_us = NOW_US + 2 * SECOND_US
    found = reason(facts=closed(kind, *name, rule=RULE, reopens_us=at_us))

    assert (found.code, found.at_us) == (ReasonCode.RATE_LIMIT, at_us)
    assert f"rate limit of {subject} (100 in 1m) frees at 2030-01-01T00:00:02" in found.text


def test_a_gate_closed_by_a_handler_says_when_it_opens() -> None:
    at_us = NOW_US + 2 * SECOND_US
    found = reason(facts=closed(GateKind.TASK_RATE, "send", reopens_us=at_us))

    assert "rate limit of task 'send' frees at 2030-01-01T00:00:02Z (in 2s)" in found.text


def test_a_job_that_became_too_heavy_says_that_it_never_fits() -> None:
    found = reason(facts=closed(GateKind.QUEUE_RATE, "mail", rule=RateRule(5, 1)))

    assert (found.code, found.at_us) == (ReasonCode.RATE_LIMIT, None)
    assert "its weight 7 is above the rate limit of queue 'mail', which lets 5" in found.text


def test_a_job_in_a_queue_without_a_worker_says_so() -> None:
    found = reason(facts={"served": False, "known": False})

    assert found.code is ReasonCode.NO_WORKER
    assert "no live worker serves queue 'mail'" in found.text


def test_a_job_whose_task_no_worker_knows_says_so() -> None:
    found = reason(facts={"known": False})

    assert found.code is ReasonCode.UNKNOWN_TASK
    assert "serves queue 'mail' knows task 'send'" in found.text


def test_a_suspect_waits_for_an_idle_worker() -> None:
    found = reason(facts={"suspect": True})

    assert found.code is ReasonCode.SUSPECT
    assert "idle" in found.text


def test_a_job_behind_others_says_how_many() -> None:
    found = reason(facts={"ahead": 12})

    assert (found.code, found.count) == (ReasonCode.BEHIND, 12)
    assert "12 ready jobs of queue 'mail' come before it" in found.text
    assert reason(facts={"ahead": 1}).text == "1 ready job of queue 'mail' comes before it"


def test_a_job_that_is_not_due_also_says_what_will_hold_it_back_then() -> None:
    line = ClosedGate(Gate(GateKind.ORDER, ("mail", "acme", "k")), jobs=("head",))
    busy = ClosedGate(Gate(GateKind.QUEUE_CONCURRENCY, ("mail",)), limit=1, running=1)
    facts = {"queue_paused": True, "closed": (line, busy), "served": False}

    codes = [each.code for each in reasons(status=JobStatus.PENDING, facts=facts)]

    assert codes == [
        ReasonCode.NOT_DUE,
        ReasonCode.QUEUE_PAUSED,
        ReasonCode.BEHIND_HEAD,
        ReasonCode.NO_WORKER,
    ]


@given(
    st.sampled_from(JobStatus),
    st.fixed_dictionaries(
        {
            "queue_paused": st.booleans(),
            "served": st.booleans(),
            "known": st.booleans(),
            "suspect": st.booleans(),
            "ahead": st.integers(0, 3),
        }
    ),
)
def test_there_is_always_a_reason_and_ready_is_the_only_one(
    status: JobStatus, facts: dict[str, Any]
) -> None:
    codes = [each.code for each in reasons(status=status, facts=facts)]

    assert codes
    assert ReasonCode.READY not in codes or codes == [ReasonCode.READY]


def test_a_queue_whose_workers_are_all_quiet_says_how_to_let_them_go_on() -> None:
    found = reason(facts={"awake": False})

    assert found.code is ReasonCode.WORKERS_QUIET
    assert "packhorse workers resume" in found.text
