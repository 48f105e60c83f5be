# SPDX-License-Identifier: MIT
"""`LeaseStore.orphans` and rescues: jobs that were lost with their worker run again."""

from __future__ import annotations

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Counters, DeadReason, JobOptions, JobStatus, RetryRule
from packhorse.core.lifecycle import (
    HOLD_GRACE_US,
    MAX_CRASHES_DEFAULT,
    JobRules,
    Orphan,
    hold_until_us,
    rescue,
    settle,
)
from packhorse.core.outcome import Released
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    LEASE_US,
    TIMEOUT_US,
    new_job,
    rescue_of,
)
from packhorse.testing.conformance.trial import Trial


class TestOrphans:
    """Processing jobs whose owner has lost its right to them."""

    def test_a_job_of_a_named_worker_whose_lease_expired_is_an_orphan(self, trial: Trial) -> None:
        options = JobOptions(max_crashes=2)
        trial.submit(new_job("job", options=options), new_job("beside"))
        job, _ = trial.claim(ANNA)
        expires_us = trial.now_us() + LEASE_US
        trial.let_lease_expire()

        assert trial.orphans(ANNA)["job"] == Orphan(
            job_id="job",
            fence=job.fence,
            crashes=0,
            lone_crashes=0,
            alone=False,
            worker=ANNA,
            lost_us=expires_us,
            now_us=trial.now_us(),
            max_crashes=2,
        )

    def test_a_job_whose_worker_lives_is_no_orphan(self, trial: Trial) -> None:
        trial.take(worker=ANNA)
        trial.advance_us(LEASE_US - 1)

        assert trial.orphans(ANNA) == {}

    def test_a_worker_that_renewed_in_between_has_no_orphans(self, trial: Trial) -> None:
        trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.renew(ANNA)

        assert trial.orphans(ANNA) == {}

    def test_only_the_workers_named_are_looked_at(self, trial: Trial) -> None:
        mine = trial.take(worker=ANNA)
        theirs = trial.take(worker=BEN)
        trial.let_lease_expire()

        assert list(trial.orphans(ANNA)) == [mine.id]
        assert sorted(trial.orphans(ANNA, BEN)) == sorted([mine.id, theirs.id])
        assert trial.orphans() == {}

    def test_a_job_held_too_long_is_an_orphan_however_alive_its_worker(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        limit_us = hold_until_us(trial.now_us(), TIMEOUT_US)
        trial.advance_us(limit_us - trial.now_us())
        trial.renew(ANNA)

        orphan = trial.orphans()[job.id]
        assert (orphan.worker, orphan.lost_us) == (ANNA, limit_us)
        assert list(trial.orphans(ANNA)) == [job.id]

    def test_a_job_is_held_no_longer_than_its_deadline_allows(self, trial: Trial) -> None:
        deadline_us = trial.now_us() + SECOND_US
        limit_us = hold_until_us(trial.now_us(), TIMEOUT_US, deadline_us)
        job = trial.take(new_job(deadline_us=deadline_us), worker=ANNA)
        trial.advance_us(limit_us - 1 - trial.now_us())
        trial.renew(ANNA)
        assert trial.orphans() == {}

        trial.advance_us(1)

        assert trial.orphans()[job.id].lost_us == limit_us == deadline_us + HOLD_GRACE_US
        trial.rescue()
        assert trial.record(job.id).dead_reason is DeadReason.EXPIRED

    def test_a_hold_moves_along_with_the_clock_when_its_holder_saw_that_set(
        self, trial: Trial
    ) -> None:
        step_us = 10 * hold_until_us(0, TIMEOUT_US)
        job = trial.take(worker=ANNA)
        limit_us = hold_until_us(trial.now_us(), TIMEOUT_US)
        trial.advance_us(step_us)
        trial.renew(ANNA)
        assert list(trial.orphans()) == [job.id]

        trial.renew(ANNA, held=((job.id, job.fence),), step_us=step_us)

        assert trial.orphans() == {}
        assert trial.settle(rescue_of(job)) == (Verdict.STALE,)
        trial.advance_us(limit_us + step_us - trial.now_us())
        trial.renew(ANNA)
        assert trial.orphans()[job.id].lost_us == limit_us + step_us

    def test_a_hold_given_after_the_clock_was_set_or_to_another_stays(self, trial: Trial) -> None:
        step_us = 10 * SECOND_US
        theirs = trial.take(worker=BEN)
        trial.advance_us(step_us - 1)
        mine = trial.take(worker=ANNA)
        trial.renew(ANNA, step_us=step_us)
        trial.advance_us(hold_until_us(0, TIMEOUT_US))

        assert sorted(trial.orphans()) == sorted([mine.id, theirs.id])

    def test_a_settled_job_is_no_orphan(self, trial: Trial) -> None:
        trial.end(trial.take(worker=ANNA), SettlementKind.FAILED)
        trial.let_lease_expire()

        assert trial.orphans(ANNA) == {}

    def test_no_more_than_the_limit_is_told(self, trial: Trial) -> None:
        trial.submit(*(new_job() for _ in range(5)))
        trial.claim(ANNA)
        trial.let_lease_expire()

        found = trial.run(trial.store.leases.orphans([ANNA], limit=2))

        assert len({orphan.job_id for orphan in found}) == 2

    def test_looking_changes_nothing(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        before = trial.picture(job.id)

        assert trial.orphans(ANNA) == trial.orphans(ANNA)
        assert trial.picture(job.id) == before


class TestRescuing:
    """A rescue applies only while the owner's lease is gone or the hold limit has passed."""

    @pytest.mark.req("S2-3", "S3-26", "S1-42")
    def test_a_lost_job_runs_again(self, trial: Trial) -> None:
        lost = trial.take(new_job("job"), worker=ANNA)
        trial.let_lease_expire()

        assert trial.rescue(ANNA) == {"job": Verdict.APPLIED}

        trial.advance_us(2 * SECOND_US)
        again = trial.claim_only(BEN, quarantine=True)
        assert again.fence > lost.fence
        assert trial.end(again) is Verdict.APPLIED
        assert trial.status("job") is JobStatus.COMPLETED

    def test_a_rescue_counts_a_crash_and_an_attempt_and_no_failure(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)

        assert trial.record(job.id).counters == Counters(attempts=1, crashes=1)

    def test_the_nth_rescue_waits_longer_each_time(self, trial: Trial) -> None:
        trial.submit(new_job("job", options=JobOptions(max_crashes=9)))
        for crashes in range(1, 4):
            trial.claim_any(ANNA)
            lost_us = trial.now_us() + LEASE_US
            trial.let_lease_expire()
            trial.rescue(ANNA)

            record = trial.record("job")
            assert record.counters.crashes == crashes
            assert record.due_us == max(trial.now_us(), lost_us + 2**crashes * SECOND_US)
            trial.advance_us(record.due_us - trial.now_us())

    def test_a_rescue_long_after_the_loss_does_not_wait(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.advance_us(10 * LEASE_US)

        trial.rescue(ANNA)

        assert trial.status(job.id) is JobStatus.QUEUED

    def test_a_rescued_job_keeps_its_place(self, trial: Trial) -> None:
        trial.lose_in_reverse(new_job("first"), new_job("second"))
        assert trial.record("first").due_us > trial.record("second").due_us

        assert [job.id for job in trial.claim(quarantine=True)] == ["first", "second"]

    def test_a_job_held_too_long_is_rescued_from_a_living_worker(self, trial: Trial) -> None:
        job = trial.take(new_job(timeout_us=SECOND_US), worker=ANNA)
        trial.advance_us(hold_until_us(0, SECOND_US))
        trial.renew(ANNA)

        assert trial.rescue() == {job.id: Verdict.APPLIED}
        assert trial.end(job) is Verdict.STALE

    def test_losses_among_others_never_kill_a_job(self, trial: Trial) -> None:
        trial.submit(new_job("job"))
        for _ in range(MAX_CRASHES_DEFAULT + 2):
            trial.claim_any(ANNA)
            trial.let_lease_expire()
            orphan = trial.orphans(ANNA)["job"]
            trial.settle(rescue(_among_others(orphan)))
            trial.advance_us(600 * SECOND_US)

        assert trial.status("job") is not JobStatus.DEAD

    @pytest.mark.req("S4-26")
    def test_a_job_lost_alone_too_often_is_given_up(self, trial: Trial) -> None:
        trial.make_suspect(new_job("job"))
        for _ in range(MAX_CRASHES_DEFAULT):
            trial.claim_only(quarantine=True)
            trial.let_lease_expire()
            trial.rescue(ANNA)
            trial.advance_us(600 * SECOND_US)

        record = trial.record("job")
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.WORKER_CRASHED)
        assert record.counters.lone_crashes == MAX_CRASHES_DEFAULT
        assert record.counters.crashes == MAX_CRASHES_DEFAULT + 1
        assert record.error is not None
        assert record.error.code == "WORKER_LOST"

    @pytest.mark.req("X-13")
    def test_a_job_that_may_not_crash_is_given_up_at_its_first_loss(self, trial: Trial) -> None:
        trial.take(new_job("job", options=JobOptions(max_crashes=0)), worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)

        record = trial.record("job")
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.WORKER_CRASHED)

    @pytest.mark.req("X-13", "S0-10")
    def test_where_no_crash_may_be_a_job_given_back_after_it_began_starts_no_more_than_it_may(
        self, trial: Trial
    ) -> None:
        limits = JobRules(retry=RetryRule(max_retries=2), max_crashes=0)
        trial.submit(new_job("job", options=JobOptions(retry=limits.retry, max_crashes=0)))

        for _ in range(3):
            job = trial.claim_only()
            trial.settle(settle(job, Released(started=True), limits, roll=0.5))

        record = trial.record("job")
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.WORKER_CRASHED)
        assert (record.counters.attempts, record.counters.releases) == (3, 3)
        assert record.error is not None
        assert record.error.code == "WORKER_STOPPED"
        assert trial.claim() == ()

    def test_a_rescue_after_the_deadline_expires_the_job(self, trial: Trial) -> None:
        job = trial.take(new_job(deadline_us=trial.now_us() + LEASE_US), worker=ANNA)
        trial.let_lease_expire()

        assert trial.rescue(ANNA) == {job.id: Verdict.EXPIRED}
        assert trial.record(job.id).dead_reason is DeadReason.EXPIRED

    def test_a_rescue_of_one_worker_leaves_the_others_alone(self, trial: Trial) -> None:
        lost = trial.take(worker=ANNA)
        trial.let_lease_expire()
        running = trial.take(worker=BEN)

        assert trial.rescue(ANNA, BEN) == {lost.id: Verdict.APPLIED}
        assert trial.status(running.id) is JobStatus.PROCESSING
        assert trial.settle(rescue_of(running)) == (Verdict.STALE,)


def _among_others(orphan: Orphan) -> Orphan:
    return msgspec.structs.replace(orphan, alone=False)
