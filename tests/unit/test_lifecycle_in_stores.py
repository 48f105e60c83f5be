# SPDX-License-Identifier: MIT
"""The rules that run inside a store: what a settlement comes to, and what a rescue decides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, AttemptError, DeadReason, JobStatus
from packhorse.core.lifecycle import (
    MAX_CRASHES_DEFAULT,
    RESCUE_WAIT_US_MAX,
    Orphan,
    Resolved,
    attempt_status,
    rescue,
    resolve,
)
from packhorse.core.settlement import Settlement, SettlementKind, Verdict

NOW_US = 1_000_000
BROKEN = AttemptError(type="ValueError", message="broken", code="EXCEPTION")
LATE = AttemptError(type="Timeout", message="late", code="TASK_TIMEOUT")

#: Each kind with the status it gives a job; a rescue may also give it up.
STATUS_OF = {
    SettlementKind.COMPLETED: JobStatus.COMPLETED,
    SettlementKind.FAILED: JobStatus.FAILED,
    SettlementKind.TIMEOUT: JobStatus.TIMEOUT,
    SettlementKind.SNOOZED: JobStatus.PENDING,
    SettlementKind.CANCELLED: JobStatus.CANCELLED,
    SettlementKind.RELEASED: JobStatus.QUEUED,
    SettlementKind.DEAD: JobStatus.DEAD,
    SettlementKind.RESCUED: JobStatus.PENDING,
    SettlementKind.LIMITED: JobStatus.QUEUED,
}
kinds = st.sampled_from(SettlementKind)


def settlement(kind: SettlementKind, **changes: Any) -> Settlement:
    status = STATUS_OF[kind]
    reason = DeadReason.REJECTED if status is JobStatus.DEAD else None
    given_values = {"status": status, "dead_reason": reason} | changes
    return Settlement(job_id="job", fence=7, kind=kind, **given_values)


def resolved(
    what: Settlement, *, cancel_requested: bool = False, deadline_us: int | None = None
) -> Resolved:
    return resolve(what, cancel_requested=cancel_requested, deadline_us=deadline_us, now_us=NOW_US)


def orphan(**changes: Any) -> Orphan:
    lost: dict[str, Any] = {
        "job_id": "job",
        "fence": 7,
        "crashes": 0,
        "lone_crashes": 0,
        "alone": False,
        "worker": "anna",
        "lost_us": NOW_US,
        "now_us": NOW_US,
    }
    return Orphan(**(lost | changes))


# -------------------------------------------------------------------------------------- resolve


@pytest.mark.parametrize("kind", SettlementKind)
def test_without_flag_and_deadline_a_settlement_is_applied_as_it_is(kind: SettlementKind) -> None:
    what = settlement(kind)
    status = JobStatus.QUEUED if what.status is JobStatus.PENDING else what.status

    assert resolved(what) == Resolved(status, Verdict.APPLIED, NOW_US, what.dead_reason)


@pytest.mark.parametrize("kind", SettlementKind)
def test_a_cancel_flag_wins_over_every_settlement(kind: SettlementKind) -> None:
    answer = resolved(settlement(kind), cancel_requested=True, deadline_us=0)

    own = kind is SettlementKind.CANCELLED
    assert answer.status is JobStatus.CANCELLED
    assert answer.verdict is (Verdict.APPLIED if own else Verdict.CANCELLED)
    assert answer.dead_reason is None


def test_a_job_that_waits_is_due_after_its_delay() -> None:
    answer = resolved(settlement(SettlementKind.SNOOZED, delay_us=5))

    assert (answer.status, answer.due_us) == (JobStatus.PENDING, NOW_US + 5)


def test_a_snooze_of_no_time_is_queued_at_once_and_a_retry_of_none_stays_failed() -> None:
    assert resolved(settlement(SettlementKind.SNOOZED)).status is JobStatus.QUEUED
    assert resolved(settlement(SettlementKind.FAILED)).status is JobStatus.FAILED


@pytest.mark.parametrize(
    ("deadline_us", "verdict"),
    [
        (NOW_US + 6, Verdict.APPLIED),
        (NOW_US + 5, Verdict.EXPIRED),
        (NOW_US + 4, Verdict.EXPIRED),
    ],
)
def test_a_retry_at_or_after_the_deadline_is_dead_expired(
    deadline_us: int, verdict: Verdict
) -> None:
    answer = resolved(settlement(SettlementKind.FAILED, delay_us=5), deadline_us=deadline_us)

    assert answer.verdict is verdict
    if verdict is Verdict.EXPIRED:
        assert (answer.status, answer.dead_reason) == (JobStatus.DEAD, DeadReason.EXPIRED)


@pytest.mark.parametrize(
    "kind", [SettlementKind.COMPLETED, SettlementKind.CANCELLED, SettlementKind.DEAD]
)
def test_a_deadline_that_has_passed_does_not_touch_what_ends_anyway(kind: SettlementKind) -> None:
    assert resolved(settlement(kind), deadline_us=0).verdict is Verdict.APPLIED


@given(
    kind=kinds,
    delay_us=st.integers(0, 10),
    deadline_us=st.none() | st.integers(NOW_US - 5, NOW_US + 15),
    cancel_requested=st.booleans(),
)
def test_whatever_is_settled_the_answer_is_consistent(
    kind: SettlementKind, delay_us: int, deadline_us: int | None, *, cancel_requested: bool
) -> None:
    answer = resolved(
        settlement(kind, delay_us=delay_us),
        cancel_requested=cancel_requested,
        deadline_us=deadline_us,
    )

    assert answer.status is not JobStatus.PROCESSING
    assert answer.verdict is not Verdict.STALE
    assert (answer.status is JobStatus.DEAD) == (answer.dead_reason is not None)
    if answer.status not in TERMINAL:
        assert answer.due_us == NOW_US + delay_us
        assert deadline_us is None or answer.due_us < deadline_us
    else:
        assert answer.due_us == NOW_US


# ------------------------------------------------------------------------------- attempt_status


@pytest.mark.req("S1-39")
@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (SettlementKind.COMPLETED, (JobStatus.COMPLETED, False)),
        (SettlementKind.FAILED, (JobStatus.FAILED, True)),
        (SettlementKind.TIMEOUT, (JobStatus.TIMEOUT, True)),
        (SettlementKind.SNOOZED, (JobStatus.PENDING, True)),
        (SettlementKind.CANCELLED, (JobStatus.CANCELLED, False)),
        (SettlementKind.RELEASED, (JobStatus.QUEUED, True)),
        (SettlementKind.RESCUED, (JobStatus.FAILED, True)),
    ],
)
def test_an_attempt_is_shown_as_it_ended(
    kind: SettlementKind, shown: tuple[JobStatus, bool]
) -> None:
    what = settlement(kind, error=BROKEN)

    assert attempt_status(what, resolved(what)) == shown


@pytest.mark.req("S1-31", "X-8")
@pytest.mark.parametrize(
    ("error", "status"),
    [(BROKEN, JobStatus.FAILED), (LATE, JobStatus.TIMEOUT), (None, JobStatus.FAILED)],
)
def test_the_last_attempt_of_a_dead_job_is_shown_as_failed_or_timed_out(
    error: AttemptError | None, status: JobStatus
) -> None:
    what = settlement(SettlementKind.DEAD, error=error)

    assert attempt_status(what, resolved(what)) == (status, False)


def test_a_retry_that_never_comes_is_not_promised() -> None:
    what = settlement(SettlementKind.SNOOZED, delay_us=5)

    assert attempt_status(what, resolved(what, deadline_us=NOW_US)) == (JobStatus.PENDING, False)


@pytest.mark.parametrize("kind", SettlementKind)
def test_an_attempt_whose_job_was_flagged_is_shown_as_cancelled(kind: SettlementKind) -> None:
    what = settlement(kind, error=LATE)
    answer = resolved(what, cancel_requested=True)

    assert attempt_status(what, answer) == (JobStatus.CANCELLED, False)


# --------------------------------------------------------------------------------------- rescue


@pytest.mark.req("S2-3", "S3-26")
@pytest.mark.parametrize(("crashes", "wait_s"), [(0, 2), (1, 4), (2, 8), (8, 512), (9, 600)])
def test_the_nth_rescue_waits_longer_each_time_counted_from_the_loss(
    crashes: int, wait_s: int
) -> None:
    at_once = rescue(orphan(crashes=crashes))
    later = rescue(orphan(crashes=crashes, now_us=NOW_US + SECOND_US))

    assert at_once.delay_us == wait_s * SECOND_US
    assert later.delay_us == at_once.delay_us - SECOND_US


@given(st.integers(0, 10**9), st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_rescue_never_waits_less_than_nothing_or_more_than_ten_minutes(
    crashes: int, lost_us: int, now_us: int
) -> None:
    lost = orphan(crashes=crashes, lost_us=min(lost_us, now_us), now_us=now_us)

    assert 0 <= rescue(lost).delay_us <= RESCUE_WAIT_US_MAX


def test_losing_a_machine_makes_a_suspect_and_never_a_dead_job() -> None:
    what = rescue(orphan(crashes=1_000))

    assert (what.kind, what.status) == (SettlementKind.RESCUED, JobStatus.PENDING)
    assert (what.crashes, what.lone_crashes) == (1, 0)
    assert what.keep_place
    assert what.error is not None
    assert what.error.code == "WORKER_LOST"
    assert "anna" in what.error.message


def test_a_job_that_takes_its_worker_down_alone_too_often_is_dead() -> None:
    fates = [
        rescue(orphan(alone=True, lone_crashes=crashes)).status
        for crashes in range(MAX_CRASHES_DEFAULT)
    ]

    assert fates == [JobStatus.PENDING, JobStatus.PENDING, JobStatus.DEAD]


def test_a_guilty_job_is_given_up_at_once_with_its_reason() -> None:
    what = rescue(orphan(alone=True, lone_crashes=2))

    assert what.dead_reason is DeadReason.WORKER_CRASHED
    assert (what.delay_us, what.crashes, what.lone_crashes) == (0, 1, 1)


def test_earlier_lone_crashes_do_not_condemn_a_job_lost_among_others() -> None:
    assert rescue(orphan(alone=False, lone_crashes=9)).status is JobStatus.PENDING


@pytest.mark.parametrize("alone", [True, False])
def test_a_job_that_may_never_crash_is_dead_at_its_first_loss(*, alone: bool) -> None:
    what = rescue(orphan(alone=alone, max_crashes=0))

    assert what.dead_reason is DeadReason.WORKER_CRASHED


def test_a_job_may_set_its_own_limit_of_crashes() -> None:
    assert rescue(orphan(alone=True, max_crashes=1)).status is JobStatus.DEAD
    patient = orphan(alone=True, lone_crashes=3, max_crashes=5)
    assert rescue(patient).status is JobStatus.PENDING
