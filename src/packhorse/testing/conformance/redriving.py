# SPDX-License-Identifier: MIT
"""`JobStore.redrive`: operators run finished jobs again, and waiting ones now."""

from __future__ import annotations

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, Counters, JobStatus
from packhorse.core.lifecycle import redrive_allowed
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import QueueSettings, RedriveAnswer
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.samples import ANNA, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial

_finished = pytest.mark.parametrize("status", sorted(TERMINAL))
_waiting = pytest.mark.parametrize(
    "status", [JobStatus.PENDING, JobStatus.FAILED, JobStatus.TIMEOUT]
)


class TestRedriving:
    """Make finished jobs ready again with fresh budgets, and waiting ones due now."""

    @pytest.mark.parametrize("status", JobStatus)
    def test_what_may_be_redriven_is_what_lifecycle_says(
        self, trial: Trial, status: JobStatus
    ) -> None:
        bring_to(trial, status, "job")
        before = trial.picture("job")
        allowed = redrive_allowed(status)

        (answer,) = _redrive(trial, "job")

        assert answer is (RedriveAnswer.REDRIVEN if allowed else RedriveAnswer.REFUSED)
        assert allowed or trial.picture("job") == before

    def test_each_item_is_answered_for_itself_in_order(self, trial: Trial) -> None:
        bring_to(trial, JobStatus.DEAD, "dead")
        trial.submit(new_job("ready"))

        answers = _redrive(trial, "unknown", "ready", "dead")

        assert answers == (RedriveAnswer.UNKNOWN, RedriveAnswer.REFUSED, RedriveAnswer.REDRIVEN)

    def test_an_item_named_twice_is_redriven_once(self, trial: Trial) -> None:
        bring_to(trial, JobStatus.DEAD, "dead")

        assert _redrive(trial, "dead", "dead") == (RedriveAnswer.REDRIVEN, RedriveAnswer.REFUSED)

    @pytest.mark.req("S2-12")
    @_finished
    def test_a_finished_job_is_ready_again(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")
        trial.advance_us(SECOND_US)

        _redrive(trial, "job")

        record = trial.record("job")
        assert record.status is JobStatus.QUEUED
        assert record.due_us == record.updated_us == trial.now_us()
        assert record.finished_us is None
        assert trial.claim_only().id == "job"

    @_waiting
    def test_a_waiting_job_is_due_now(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        _redrive(trial, "job")

        record = trial.record("job")
        assert (record.status, record.due_us) == (JobStatus.QUEUED, trial.now_us())
        assert trial.claim_only().id == "job"

    def test_id_fence_history_and_other_counters_stay(self, trial: Trial) -> None:
        _through_everything(trial, "job")
        before, history = trial.picture("job")
        assert before is not None

        _redrive(trial, "job")

        after = trial.record("job")
        stayed = ("id", "fence", "created_us", "payload", "queue", "priority", "tags", "tenant")
        assert [getattr(after, name) for name in stayed] == [
            getattr(before, name) for name in stayed
        ]
        counters = ("attempts", "crashes", "releases")
        assert [getattr(after.counters, name) for name in counters] == [
            getattr(before.counters, name) for name in counters
        ]
        assert trial.history("job") == history

    def test_the_budgets_begin_at_zero(self, trial: Trial) -> None:
        _through_everything(trial, "job")
        before = trial.record("job").counters
        assert before == Counters(
            attempts=5, failures=1, crashes=2, lone_crashes=1, snoozes=1, releases=1
        )

        _redrive(trial, "job")

        after = trial.record("job").counters
        assert (after.failures, after.snoozes, after.lone_crashes) == (0, 0, 0)

    def test_a_dead_jobs_error_reason_and_shelf_are_cleared(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        trial.finish(new_job("job", queue="mail"), SettlementKind.DEAD)
        assert trial.record("job").dead_letter == "mail_dead"

        _redrive(trial, "job")

        record = trial.record("job")
        assert (record.error, record.dead_reason, record.dead_letter) == (None, None, None)

    def test_a_completed_jobs_result_is_cleared(self, trial: Trial) -> None:
        trial.finish(new_job("job"))

        _redrive(trial, "job")

        record = trial.record("job")
        assert record.result is None
        assert not record.result_expired

    def test_a_cancel_flag_is_cleared(self, trial: Trial) -> None:
        job = trial.take(new_job("job"))
        trial.run(trial.store.jobs.cancel("job"))
        trial.end(job)

        _redrive(trial, "job")

        assert not trial.record("job").cancel_requested
        assert trial.end(trial.claim_only()) is Verdict.APPLIED
        assert trial.status("job") is JobStatus.COMPLETED

    def test_a_deadline_that_has_passed_is_dropped(self, trial: Trial) -> None:
        trial.submit(new_job("job", deadline_us=trial.now_us() + SECOND_US))
        trial.advance_us(SECOND_US)
        trial.run(trial.store.upkeep.expire(limit=10))

        _redrive(trial, "job")

        assert trial.record("job").deadline_us is None
        assert trial.run(trial.store.upkeep.expire(limit=10)) == ()
        assert trial.claim_only().id == "job"

    def test_a_deadline_still_to_come_is_kept(self, trial: Trial) -> None:
        deadline_us = trial.now_us() + 60 * SECOND_US
        trial.finish(new_job("job", deadline_us=deadline_us), SettlementKind.DEAD)

        _redrive(trial, "job")

        assert trial.record("job").deadline_us == deadline_us
        trial.advance_us(60 * SECOND_US)
        assert len(trial.run(trial.store.upkeep.expire(limit=10))) == 1

    def test_a_redriven_job_takes_a_new_place_at_the_end(self, trial: Trial) -> None:
        trial.finish(new_job("old"), SettlementKind.DEAD)
        trial.submit(new_job("pending", delay_us=SECOND_US), new_job("ready"))

        _redrive(trial, "pending", "old")
        trial.submit(new_job("new"))

        assert [job.id for job in trial.claim()] == ["ready", "pending", "old", "new"]

    @pytest.mark.req("S3-39")
    def test_a_job_of_another_tenant_is_unknown_and_untouched(self, trial: Trial) -> None:
        trial.finish(new_job("theirs", tenant="acme"), SettlementKind.DEAD)
        before = trial.picture("theirs")

        answers = trial.run(trial.store.jobs.redrive(["theirs"], tenant="other"))

        assert answers == (RedriveAnswer.UNKNOWN,)
        assert trial.picture("theirs") == before
        ours = trial.run(trial.store.jobs.redrive(["theirs"], tenant="acme"))
        assert ours == (RedriveAnswer.REDRIVEN,)

    def test_a_redriven_job_lives_as_long_as_its_new_end_says(self, trial: Trial) -> None:
        trial.finish(new_job("job"))
        trial.advance_us(23 * 3600 * SECOND_US)
        _redrive(trial, "job")
        trial.advance_us(2 * 3600 * SECOND_US)
        trial.renew()

        assert trial.run(trial.store.upkeep.prune(limit=10)) == 0
        trial.end(trial.claim_only())
        assert trial.run(trial.store.upkeep.prune(limit=10)) == 0


def _redrive(trial: Trial, *job_ids: str) -> tuple[RedriveAnswer, ...]:
    return trial.run(trial.store.jobs.redrive(job_ids))


def _through_everything(trial: Trial, job_id: str) -> None:
    """Return a job that was released, snoozed, lost twice (once alone), failed, and died."""
    trial.make_suspect(new_job(job_id))
    trial.claim_only(quarantine=True)
    trial.let_lease_expire()
    trial.rescue(ANNA)
    trial.advance_us(60 * SECOND_US)
    for kind in (SettlementKind.RELEASED, SettlementKind.SNOOZED):
        trial.settle(settlement_of(kind, trial.claim_any()))
        trial.advance_us(60 * SECOND_US)
    given_up = settlement_of(SettlementKind.DEAD, trial.claim_any())
    trial.settle(msgspec.structs.replace(given_up, failures=1))
