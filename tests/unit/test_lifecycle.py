# SPDX-License-Identifier: MIT
"""The state machine: every arrow of a job's life, from values alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, AttemptError, DeadReason, Job, JobStatus, RetryRule
from packhorse.core.lifecycle import (
    CancelAnswer,
    JobRules,
    cancel,
    hold_until_us,
    next_fence,
    redrive_allowed,
    settle,
    status_at_submit,
)
from packhorse.core.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from packhorse.core.policies.retention import Retention
from packhorse.core.policies.retry import retry_delay_us
from packhorse.core.settlement import Settlement, SettlementKind, refused

BROKEN = AttemptError(type="ValueError", message="broken", code="EXCEPTION")
LATE = AttemptError(type="Timeout", message="late", code="TASK_TIMEOUT")
KINDS = ("builtins.ValueError", "builtins.Exception")

outcomes = st.one_of(
    st.builds(Succeeded, st.just("1")),
    st.builds(
        Failed,
        st.just(BROKEN),
        kinds=st.sampled_from([(), KINDS]),
        asked=st.booleans(),
        retry_delay_us=st.none() | st.integers(0, 10**9),
    ),
    st.builds(TimedOut, st.just(LATE), deadline=st.booleans()),
    st.builds(Snoozed, st.integers(0, 10**9)),
    st.just(Cancelled()),
    st.builds(Released, st.booleans()),
    st.builds(GivenUp, st.sampled_from(DeadReason), st.just(BROKEN)),
)
limits = st.builds(
    JobRules,
    retry=st.builds(
        RetryRule, max_retries=st.integers(0, 5), retry_timeouts=st.booleans(), jitter=st.booleans()
    ),
    max_snoozes=st.none() | st.integers(0, 3),
    retention=st.builds(
        Retention,
        finished_us=st.none() | st.integers(0, 99),
        results_us=st.none() | st.integers(0, 99),
        dead_us=st.none() | st.integers(0, 99),
    ),
    result_keep_us=st.none() | st.integers(0, 99),
)
rolls = st.floats(0, 1, exclude_max=True)


def running(**changes: Any) -> Job:
    """A claimed job in its first attempt, with the changes a test is about."""
    job = Job(
        id="job",
        task="send_email",
        queue="mail",
        fence=7,
        payload="{}",
        priority=2,
        tenant="",
        attempts=0,
        failures=0,
        crashes=0,
        lone_crashes=0,
        snoozes=0,
        timeout_us=None,
        deadline_us=None,
        trace_id="",
        upstream_request_id=None,
        options=None,
        ready_us=0,
    )
    return msgspec.structs.replace(job, **changes)


def settled(outcome: Outcome, *, job: Job | None = None, **given_limits: Any) -> Settlement:
    return settle(job or running(), outcome, JobRules(**given_limits), roll=0.5)


# ----------------------------------------------------------------------------- submit and claim


@pytest.mark.req("S1-24")
@pytest.mark.parametrize(
    ("due_us", "status"),
    [(9, JobStatus.QUEUED), (10, JobStatus.QUEUED), (11, JobStatus.PENDING)],
)
def test_a_job_due_later_is_pending_and_one_due_now_is_queued(
    due_us: int, status: JobStatus
) -> None:
    assert status_at_submit(due_us, now_us=10) is status


@given(st.integers(0, 10**18), st.none() | st.integers(0, 10**18))
def test_a_fence_always_rises(fence: int, clock_us: int | None) -> None:
    higher = next_fence(fence, clock_us=clock_us)

    assert higher > fence
    assert clock_us is None or higher >= clock_us


def test_a_fence_rises_by_one_where_no_commit_can_be_lost() -> None:
    assert next_fence(4) == 5
    assert next_fence(4, clock_us=100) == 100
    assert next_fence(100, clock_us=4) == 101


def test_a_job_may_be_held_half_a_minute_longer_than_its_timeout() -> None:
    assert hold_until_us(1_000, 60 * SECOND_US) == 1_000 + 90 * SECOND_US


# --------------------------------------------------------------------------------------- settle


@given(outcomes, limits, rolls, st.integers(0, 6), st.integers(0, 4))
def test_every_outcome_is_settled_for_the_job_and_fence_it_came_from(
    outcome: Outcome, bounds: JobRules, roll: float, failures: int, snoozes: int
) -> None:
    job = running(failures=failures, snoozes=snoozes)

    settlement = settle(job, outcome, bounds, roll=roll)

    assert (settlement.job_id, settlement.fence) == (job.id, job.fence)
    assert settlement.kind is not SettlementKind.RESCUED
    assert settlement.crashes == settlement.lone_crashes == 0
    assert (settlement.status is JobStatus.DEAD) == (settlement.dead_reason is not None)
    assert settlement.delay_us == 0 or settlement.status not in TERMINAL
    assert settlement.ended or settlement.kind is SettlementKind.RELEASED
    assert settlement.failures + settlement.snoozes + settlement.releases <= 1


@given(outcomes, limits, rolls)
def test_every_settlement_carries_the_lifetimes_since_a_cancel_flag_may_end_any(
    outcome: Outcome, bounds: JobRules, roll: float
) -> None:
    settlement = settle(running(), outcome, bounds, roll=roll)

    results_us = bounds.retention.results_us
    own_us = bounds.result_keep_us
    assert settlement.keep_us == bounds.retention.finished_us
    assert settlement.dead_keep_us == bounds.retention.dead_us
    assert settlement.result_keep_us == (results_us if own_us is None else own_us)


def test_a_success_completes_the_job_with_its_result() -> None:
    settlement = settled(Succeeded('{"sent":true}'))

    assert (settlement.kind, settlement.status) == (SettlementKind.COMPLETED, JobStatus.COMPLETED)
    assert (settlement.result, settlement.error) == ('{"sent":true}', None)
    assert settlement.failures == 0


@pytest.mark.req("S1-33", "S2-9")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_a_job_fails_max_retries_times_before_it_is_dead(max_retries: int) -> None:
    rule = RetryRule(max_retries=max_retries)
    failed = Failed(BROKEN, kinds=KINDS)

    statuses = [
        settled(failed, job=running(failures=failures), retry=rule).status
        for failures in range(max_retries + 1)
    ]

    assert statuses == [JobStatus.FAILED] * max_retries + [JobStatus.DEAD]


@pytest.mark.req("S0-10", "X-13")
@given(
    st.lists(
        st.sampled_from(
            [Failed(BROKEN, kinds=KINDS), TimedOut(LATE), Released(started=True), Limited(5)]
        ),
        min_size=6,
    ),
    st.integers(0, 4),
)
def test_where_no_crash_may_be_a_handler_starts_no_more_than_max_retries_and_one(
    ends: list[Outcome], max_retries: int
) -> None:
    bounds = JobRules(retry=RetryRule(max_retries=max_retries), max_crashes=0)
    starts, failures, dead = 0, 0, False

    for end in ends:
        settlement = settle(running(failures=failures), end, bounds, roll=0.5)
        starts += not dead
        dead = dead or settlement.status is JobStatus.DEAD
        failures += settlement.failures

    assert (starts, dead) == (max_retries + 1, True)


@pytest.mark.req("X-13")
def test_a_last_start_that_is_given_back_is_the_end_and_says_why() -> None:
    settlement = settled(Released(started=True), max_crashes=0, retry=RetryRule(max_retries=0))

    assert settlement.dead_reason is DeadReason.WORKER_CRASHED
    assert settlement.error is not None
    assert settlement.error.code == "WORKER_STOPPED"
    assert "no more than 1 times" in settlement.error.message
    unstarted = settled(Released(started=False), max_crashes=0, retry=RetryRule(max_retries=0))
    assert unstarted.status is JobStatus.QUEUED


def test_a_failure_with_budget_left_waits_as_long_as_the_policy_says() -> None:
    settlement = settled(Failed(BROKEN, kinds=KINDS), job=running(failures=2))

    assert (settlement.kind, settlement.status) == (SettlementKind.FAILED, JobStatus.FAILED)
    assert settlement.delay_us == retry_delay_us(RetryRule(), 3, roll=0.5)
    assert (settlement.failures, settlement.error) == (1, BROKEN)
    assert not settlement.keep_place


def test_a_used_up_budget_makes_a_dead_letter_with_the_last_error() -> None:
    settlement = settled(Failed(BROKEN, kinds=KINDS), job=running(failures=3))

    assert (settlement.kind, settlement.status) == (SettlementKind.DEAD, JobStatus.DEAD)
    assert settlement.dead_reason is DeadReason.POISON_MESSAGE
    assert (settlement.failures, settlement.error) == (1, BROKEN)


def test_a_kind_that_is_not_to_be_retried_is_dead_at_once() -> None:
    rule = RetryRule(retry_on=("builtins.OSError",))

    assert settled(Failed(BROKEN, kinds=KINDS), retry=rule).status is JobStatus.DEAD


def test_a_retry_that_was_asked_for_is_given_whatever_its_kind() -> None:
    rule = RetryRule(retry_on=())
    asked = Failed(BROKEN, asked=True, retry_delay_us=42)

    settlement = settled(asked, retry=rule)
    assert (settlement.status, settlement.delay_us) == (JobStatus.FAILED, 42)
    assert settled(asked, job=running(failures=3), retry=rule).status is JobStatus.DEAD


def test_a_retry_asked_for_at_once_does_not_wait() -> None:
    assert settled(Failed(BROKEN, kinds=KINDS, retry_delay_us=0)).delay_us == 0


@pytest.mark.req("S1-31", "X-8")
def test_a_timeout_is_retried_while_the_budget_lasts() -> None:
    settlement = settled(TimedOut(LATE), job=running(failures=1))

    assert (settlement.kind, settlement.status) == (SettlementKind.TIMEOUT, JobStatus.TIMEOUT)
    assert settlement.delay_us == retry_delay_us(RetryRule(), 2, roll=0.5)
    assert (settlement.failures, settlement.error) == (1, LATE)


@pytest.mark.req("X-8")
@pytest.mark.parametrize(
    ("failures", "rule"), [(3, RetryRule()), (0, RetryRule(retry_timeouts=False))]
)
def test_a_timeout_is_final_when_the_budget_or_the_policy_says_so(
    failures: int, rule: RetryRule
) -> None:
    settlement = settled(TimedOut(LATE), job=running(failures=failures), retry=rule)

    assert settlement.status is JobStatus.DEAD
    assert settlement.dead_reason is DeadReason.POISON_MESSAGE
    assert settlement.error == LATE


def test_running_into_the_deadline_is_never_retried() -> None:
    settlement = settled(TimedOut(LATE, deadline=True))

    assert settlement.dead_reason is DeadReason.EXPIRED
    assert settlement.failures == 1


def test_a_snooze_waits_and_uses_up_no_retry() -> None:
    settlement = settled(Snoozed(42), job=running(snoozes=100))

    assert (settlement.kind, settlement.status) == (SettlementKind.SNOOZED, JobStatus.PENDING)
    assert (settlement.delay_us, settlement.snoozes, settlement.failures) == (42, 1, 0)


@pytest.mark.parametrize(
    ("snoozes", "status"), [(0, JobStatus.PENDING), (1, JobStatus.PENDING), (2, JobStatus.DEAD)]
)
def test_a_job_that_snoozes_more_often_than_it_may_is_snoozed_out(
    snoozes: int, status: JobStatus
) -> None:
    settlement = settled(Snoozed(42), job=running(snoozes=snoozes), max_snoozes=2)

    assert settlement.status is status
    if status is JobStatus.DEAD:
        assert settlement.dead_reason is DeadReason.SNOOZED_OUT
        assert settlement.error is not None
        assert "max_snoozes = 2" in settlement.error.message


def test_a_cancelled_attempt_ends_the_job() -> None:
    settlement = settled(Cancelled())

    assert (settlement.kind, settlement.status) == (SettlementKind.CANCELLED, JobStatus.CANCELLED)
    assert settlement.ended


@pytest.mark.parametrize("started", [True, False])
def test_a_release_keeps_the_place_and_costs_nothing(*, started: bool) -> None:
    settlement = settled(Released(started))

    assert (settlement.kind, settlement.status) == (SettlementKind.RELEASED, JobStatus.QUEUED)
    assert settlement.keep_place
    assert settlement.ended is started
    assert (settlement.releases, settlement.failures, settlement.delay_us) == (1, 0, 0)


@pytest.mark.parametrize("reason", DeadReason)
def test_what_is_given_up_is_dead_for_the_reason_given(reason: DeadReason) -> None:
    settlement = settled(GivenUp(reason, BROKEN))

    assert (settlement.kind, settlement.status) == (SettlementKind.DEAD, JobStatus.DEAD)
    assert (settlement.dead_reason, settlement.error) == (reason, BROKEN)
    assert settlement.failures == 0


def test_something_that_is_no_outcome_is_refused() -> None:
    with pytest.raises(AssertionError):
        settle(running(), "done", JobRules(), roll=0.5)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- cancel and redrive


@pytest.mark.req("S1-45", "S1-46")
@pytest.mark.parametrize("status", JobStatus)
def test_a_waiting_job_is_cancelled_a_running_one_flagged_and_a_finished_one_left(
    status: JobStatus,
) -> None:
    expected = CancelAnswer.CANCELLED
    if status in TERMINAL:
        expected = CancelAnswer.FINISHED
    if status is JobStatus.PROCESSING:
        expected = CancelAnswer.FLAGGED

    assert cancel(status) is expected


@pytest.mark.parametrize("status", JobStatus)
def test_everything_but_ready_and_running_jobs_may_be_redriven(status: JobStatus) -> None:
    assert redrive_allowed(status) is (status not in {JobStatus.QUEUED, JobStatus.PROCESSING})


# ---------------------------------------------------------------------------------- refused


def test_what_a_store_cannot_hold_becomes_simpler_until_nothing_simpler_is_left() -> None:
    error = AttemptError(type="Ü", message="ö" * 2_000, code="X", reason="exception:Ü", stack="…")
    failed = Settlement("job", 7, SettlementKind.FAILED, JobStatus.FAILED, failures=1, error=error)

    plain = refused(failed, "no")
    assert plain is not None
    dead = refused(plain, "no ü")
    assert dead is not None

    assert (plain.kind, plain.status, plain.failures) == (failed.kind, failed.status, 1)
    assert plain.error == AttemptError(r"\xdc", r"\xf6" * 125, "X", r"exception:\xdc")
    assert (dead.job_id, dead.fence, dead.dead_reason) == ("job", 7, DeadReason.REJECTED)
    assert dead.error is not None
    assert dead.error.message.endswith(r"redrive the job (no \xfc)")
    assert refused(dead, "no") is None


def test_a_result_a_store_cannot_hold_makes_the_job_dead_at_once() -> None:
    completed = Settlement("job", 7, SettlementKind.COMPLETED, JobStatus.COMPLETED, result="'ü'")

    dead = refused(completed, "no")

    assert dead is not None
    assert (dead.status, dead.result, dead.fence) == (JobStatus.DEAD, None, 7)


@pytest.mark.req("S1-46")
@pytest.mark.parametrize("status", JobStatus)
def test_a_status_says_whether_it_is_final(status: JobStatus) -> None:
    assert status.is_final is (status in {"completed", "cancelled", "dead"})
    assert status.is_final is (cancel(status) is CancelAnswer.FINISHED)
