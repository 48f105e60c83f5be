# SPDX-License-Identifier: MIT
"""`JobStore.settle`: every transition out of processing, as `lifecycle.resolve` decides it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.job import TERMINAL, Counters, DeadReason, Job, JobRecord, JobStatus
from packhorse.core.lifecycle import JobRules, resolve
from packhorse.core.policies.retry import retry_delay_us
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import (
    ANNA,
    EXCEPTION,
    OWNER_KINDS,
    new_job,
    rescue_of,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial, Trials

_FAR_US = 3600 * SECOND_US
_kinds = pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())


class TestSettling:
    """Write each settlement whose fence is current, and answer each in order."""

    def test_each_settlement_is_answered_in_order(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abc"))
        a, b, c = trial.claim()
        trial.run(trial.store.jobs.cancel("b"))
        stale = msgspec.structs.replace(_completed(a), fence=a.fence + 1)

        verdicts = trial.settle(_completed(c), stale, _completed(b), _completed(a))

        assert verdicts == (Verdict.APPLIED, Verdict.STALE, Verdict.CANCELLED, Verdict.APPLIED)

    def test_no_settlements_are_answered_with_nothing(self, trial: Trial) -> None:
        assert trial.settle() == ()

    def test_two_settlements_of_one_job_in_one_call_are_taken_in_order(self, trial: Trial) -> None:
        job = trial.take()
        failed = settlement_of(SettlementKind.FAILED, job)

        verdicts = trial.settle(failed, _completed(job), failed)

        assert verdicts == (Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED)
        assert trial.status(job.id) is JobStatus.FAILED
        assert trial.record(job.id).counters.attempts == 1

    @_kinds
    def test_a_settlement_writes_what_lifecycle_resolves(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        for cancel_requested, deadline_us in _situations():
            job = _taken(trial, deadline_us, cancel_requested=cancel_requested)
            _check_resolved(trial, settlement_of(kind, job))

    def test_a_rescue_writes_what_lifecycle_resolves(self, trial: Trial) -> None:
        for cancel_requested, deadline_us in _situations():
            job = _taken(trial, deadline_us, cancel_requested=cancel_requested)
            trial.let_lease_expire()
            _check_resolved(trial, rescue_of(job))

    @a_few_examples
    @given(
        kind=st.sampled_from(OWNER_KINDS),
        delay_us=st.integers(0, 4),
        deadline_us=st.none() | st.integers(1, 6),
        cancel_requested=st.booleans(),
    )
    def test_any_delay_and_deadline_come_to_what_lifecycle_resolves(
        self,
        trials: Trials,
        kind: SettlementKind,
        delay_us: int,
        deadline_us: int | None,
        *,
        cancel_requested: bool,
    ) -> None:
        with trials.fresh() as trial:
            job = _taken(trial, deadline_us, cancel_requested=cancel_requested)
            settlement = settlement_of(kind, job)
            if settlement.status not in TERMINAL and kind is not SettlementKind.RELEASED:
                settlement = msgspec.structs.replace(settlement, delay_us=delay_us)

            _check_resolved(trial, settlement)

    @pytest.mark.req("S2-25")
    def test_a_completed_job_keeps_its_result(self, trial: Trial) -> None:
        job = trial.finish(new_job())

        record = trial.record(job.id)
        assert record.status is JobStatus.COMPLETED
        assert record.result == b'{"sent":true}'
        assert record.finished_us == record.updated_us == trial.now_us()
        assert record.error is None

    @pytest.mark.req("S3-30")
    def test_a_failed_job_waits_for_its_retry_with_its_error(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, SettlementKind.FAILED)

        record = trial.record(job.id)
        delay_us = retry_delay_us(JobRules().retry, 1, roll=0.5)
        assert record.status is JobStatus.FAILED
        assert record.due_us == trial.now_us() + delay_us
        assert record.error == EXCEPTION
        assert record.finished_us is None
        trial.advance_us(delay_us - 1)
        assert trial.claim() == ()
        trial.advance_us(1)
        assert trial.claim_only().id == job.id

    def test_a_snoozed_job_is_pending_until_its_delay_has_passed(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, SettlementKind.SNOOZED)

        assert trial.status(job.id) is JobStatus.PENDING
        trial.advance_us(5 * SECOND_US - 1)
        assert trial.claim() == ()
        trial.advance_us(1)
        assert trial.claim_only().id == job.id

    @pytest.mark.req("S4-12")
    def test_a_released_job_is_ready_at_once(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, SettlementKind.RELEASED)

        assert trial.status(job.id) is JobStatus.QUEUED
        assert trial.claim_only().id == job.id

    @pytest.mark.req("S1-40", "S4-17")
    def test_a_dead_job_is_put_on_the_shelf_of_its_queue(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        trial.finish(new_job("dead", queue="mail"), SettlementKind.DEAD)
        trial.finish(new_job("fine", queue="mail"))

        record = trial.record("dead")
        assert (record.status, record.queue) == (JobStatus.DEAD, "mail")
        assert (record.dead_letter, record.dead_reason) == ("mail_dead", DeadReason.REJECTED)
        assert trial.record("fine").dead_letter is None

    @pytest.mark.req("S1-41")
    def test_a_dead_job_of_a_queue_without_a_shelf_is_kept_with_its_reason(
        self, trial: Trial
    ) -> None:
        job = trial.finish(new_job(), SettlementKind.DEAD)

        record = trial.record(job.id)
        assert (record.dead_letter, record.dead_reason) == (None, DeadReason.REJECTED)
        assert record.error == EXCEPTION

    def test_a_job_that_expires_or_crashes_out_is_put_on_the_shelf_too(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        deadline_us = trial.now_us() + 1
        job = trial.take(new_job("expired", queue="mail", deadline_us=deadline_us))

        assert trial.end(job, SettlementKind.FAILED) is Verdict.EXPIRED
        record = trial.record("expired")
        assert (record.dead_letter, record.dead_reason) == ("mail_dead", DeadReason.EXPIRED)

    @pytest.mark.req("S1-37")
    @_kinds
    def test_a_settlement_adds_its_counts(self, trial: Trial, kind: SettlementKind) -> None:
        job = trial.take()
        before = trial.record(job.id).counters
        settlement = settlement_of(kind, job)

        trial.settle(settlement)

        assert trial.record(job.id).counters == _added(before, settlement)

    def test_look_ahead_given_back_raises_only_the_releases(self, trial: Trial) -> None:
        job = trial.take()
        settlement = settlement_of(SettlementKind.RELEASED, job)

        trial.settle(msgspec.structs.replace(settlement, ended=False))

        assert trial.record(job.id).counters == Counters(releases=1)
        assert trial.history(job.id) == ()

    @pytest.mark.req("S1-47")
    @_kinds
    def test_a_settlement_is_dated_by_the_stores_clock(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        trial.advance_us(SECOND_US)
        trial.end(job, kind)

        record = trial.record(job.id)
        assert record.updated_us == trial.now_us()
        assert record.finished_us == (trial.now_us() if record.status in TERMINAL else None)

    @pytest.mark.req("S1-46")
    @pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.DEAD])
    def test_a_finished_job_changes_no_more_by_itself(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.finish(new_job(), kind)
        before = trial.picture(job.id)
        trial.advance_us(_FAR_US)

        trial.run(trial.store.upkeep.promote(limit=10))
        trial.run(trial.store.upkeep.expire(limit=10))
        trial.run(trial.store.upkeep.park(after_us=1, limit=10))

        assert trial.claim() == ()
        assert trial.orphans(ANNA) == {}
        assert trial.picture(job.id) == before

    def test_another_job_is_not_touched(self, trial: Trial) -> None:
        trial.submit(new_job("settled"), new_job("running"), new_job("waiting", delay_us=_FAR_US))
        settled, running = trial.claim()
        others = (running.id, "waiting")
        before = [trial.picture(name) for name in others]

        trial.end(settled)

        assert [trial.picture(name) for name in others] == before


def _completed(job: Job) -> Settlement:
    return settlement_of(SettlementKind.COMPLETED, job)


def _situations() -> Iterator[tuple[bool, int | None]]:
    """Yield situations: with and without a cancel flag, and with no, a far or a near deadline."""
    for cancel_requested in (False, True):
        for deadline_us in (None, _FAR_US, SECOND_US, 1):
            yield cancel_requested, deadline_us


def _taken(trial: Trial, deadline_us: int | None, *, cancel_requested: bool) -> Job:
    """Return a running job; the deadline counts from now."""
    deadline = None if deadline_us is None else trial.now_us() + deadline_us
    # Each job has its own rate key: a limited one before it may have closed its rate.
    job = trial.take(new_job(queue="mail", deadline_us=deadline, rate_key=new_id()))
    if cancel_requested:
        trial.run(trial.store.jobs.cancel(job.id))
    return job


def _check_resolved(trial: Trial, settlement: Settlement) -> None:
    before = trial.record(settlement.job_id)
    expected = resolve(
        settlement,
        cancel_requested=before.cancel_requested,
        deadline_us=before.deadline_us,
        now_us=trial.now_us(),
    )

    (verdict,) = trial.settle(settlement)

    after = trial.record(settlement.job_id)
    assert verdict is expected.verdict
    assert (after.status, after.dead_reason) == (expected.status, expected.dead_reason)
    if after.status not in TERMINAL:
        assert after.due_us == expected.due_us
    assert after.counters == _added(before.counters, settlement)
    assert after.fence == before.fence
    _check_result(after, settlement)
    # Remove the job: the next situation claims the only job there is.
    trial.run(trial.store.jobs.cancel(settlement.job_id))


def _check_result(after: JobRecord, settlement: Settlement) -> None:
    """Check that only a completed job has a result."""
    kept = settlement.result if after.status is JobStatus.COMPLETED else None
    assert after.result == (None if kept is None else kept.encode())


def _added(counters: Counters, settlement: Settlement) -> Counters:
    """Return the counters after a settlement that applied."""
    return Counters(
        attempts=counters.attempts + settlement.ended,
        failures=counters.failures + settlement.failures,
        crashes=counters.crashes + settlement.crashes,
        lone_crashes=counters.lone_crashes + settlement.lone_crashes,
        snoozes=counters.snoozes + settlement.snoozes,
        releases=counters.releases + settlement.releases,
    )
