# SPDX-License-Identifier: MIT
"""Races that other systems lose, each in its worst order, step by step.

A *zombie* is a paused worker whose jobs others have rescued, and which wakes up again.
`contention` tests the same with threads that run at the same time.
"""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus, Progress
from packhorse.core.lifecycle import CancelAnswer, rescue
from packhorse.core.policies.retention import DAY_US
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import JobFilter, ProgressNote, RedriveAnswer
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, new_job, rescue_of
from packhorse.testing.conformance.trial import Trial


class TestRaces:
    """One job, and two callers that both act on it."""

    def test_rescue_against_complete_when_the_job_completed_in_between(self, trial: Trial) -> None:
        """A rescuer reads, the owner completes, the rescuer writes: the job must not run again."""
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        seen = trial.orphans(ANNA)[job.id]
        assert trial.end(job) is Verdict.APPLIED

        assert trial.settle(rescue(seen)) == (Verdict.STALE,)

        assert trial.status(job.id) is JobStatus.COMPLETED
        trial.advance_us(60 * SECOND_US)
        assert trial.claim(quarantine=True) == trial.claim() == ()

    def test_rescue_against_complete_when_the_rescue_came_first(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)

        assert trial.end(job) is Verdict.STALE
        assert trial.record(job.id).result is None

    def test_rescue_against_release_and_a_new_claim(self, trial: Trial) -> None:
        """The rescuer read the job before its present owner claimed it."""
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        seen = trial.orphans(ANNA)[job.id]
        trial.end(job, SettlementKind.RELEASED)
        successor = trial.claim_only(BEN)
        trial.let_lease_expire()

        assert trial.settle(rescue(seen)) == (Verdict.STALE,)
        assert trial.end(successor) is Verdict.APPLIED

    def test_zombie_complete_does_not_finish_its_successors_run(self, trial: Trial) -> None:
        zombie, successor = _haunted(trial)

        assert trial.end(zombie) is Verdict.STALE

        assert trial.status(zombie.id) is JobStatus.PROCESSING
        assert trial.end(successor) is Verdict.APPLIED
        assert len(trial.history(zombie.id)) == 2

    def test_zombie_fail_does_not_start_a_third_run(self, trial: Trial) -> None:
        zombie, successor = _haunted(trial)

        assert trial.end(zombie, SettlementKind.FAILED) is Verdict.STALE

        trial.advance_us(60 * SECOND_US)
        assert trial.claim(ANNA, quarantine=True) == trial.claim(ANNA) == ()
        assert trial.end(successor) is Verdict.APPLIED
        assert trial.record(zombie.id).counters.failures == 0

    def test_zombie_complete_does_not_overwrite_a_cancel(self, trial: Trial) -> None:
        zombie, successor = _haunted(trial)
        trial.run(trial.store.jobs.cancel(zombie.id))
        assert trial.end(successor) is Verdict.CANCELLED

        assert trial.end(zombie) is Verdict.STALE
        assert trial.status(zombie.id) is JobStatus.CANCELLED

    def test_zombie_complete_does_not_swallow_its_successors_retry(self, trial: Trial) -> None:
        zombie, successor = _haunted(trial)
        trial.end(successor, SettlementKind.FAILED)

        assert trial.end(zombie) is Verdict.STALE

        trial.advance_us(60 * SECOND_US)
        assert trial.claim_any().id == zombie.id

    def test_zombie_does_not_keep_its_successors_run_alive(self, trial: Trial) -> None:
        zombie, _ = _haunted(trial)
        trial.advance_us(LEASE_US // 2)

        trial.renew(ANNA, held=((zombie.id, zombie.fence),))
        note = ProgressNote(zombie.id, zombie.fence, Progress(done=1))
        assert trial.run(trial.store.jobs.note_progress([note])) == (Verdict.STALE,)

        trial.advance_us(LEASE_US // 2)
        assert list(trial.orphans(BEN)) == [zombie.id]

    def test_zombie_does_not_give_its_successors_run_back(self, trial: Trial) -> None:
        zombie, successor = _haunted(trial)

        assert trial.renew(ANNA, held=()).released == 0
        assert trial.run(trial.store.leases.leave(ANNA)) == 0
        assert trial.end(zombie, SettlementKind.RELEASED) is Verdict.STALE

        assert trial.status(zombie.id) is JobStatus.PROCESSING
        assert trial.end(successor) is Verdict.APPLIED

    def test_a_merely_slow_worker_whose_job_was_not_rescued_completes(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()

        assert trial.end(job) is Verdict.APPLIED
        assert trial.status(job.id) is JobStatus.COMPLETED

    def test_a_slow_workers_job_is_given_to_another_and_never_failed(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)

        record = trial.record(job.id)
        assert record.status is JobStatus.PENDING
        assert record.counters.failures == 0

    def test_renew_against_rescue_when_the_owner_came_back_in_between(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        seen = trial.orphans(ANNA)[job.id]
        trial.renew(ANNA, held=((job.id, job.fence),))

        assert trial.settle(rescue(seen)) == (Verdict.STALE,)
        assert trial.end(job) is Verdict.APPLIED

    def test_renew_against_rescue_when_the_rescue_came_first(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)
        before = trial.picture(job.id)

        renewed = trial.renew(ANNA, held=((job.id, job.fence),))

        assert renewed.lapsed
        assert renewed.released == 0
        assert trial.picture(job.id) == before

    def test_two_rescuers_that_saw_the_same_count_one_crash(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        seen = trial.orphans(ANNA)[job.id]

        assert trial.settle(rescue(seen)) == (Verdict.APPLIED,)
        assert trial.settle(rescue(seen)) == (Verdict.STALE,)

        assert trial.record(job.id).counters.crashes == 1
        assert len(trial.history(job.id)) == 1

    def test_one_rescue_that_is_too_late_does_not_stop_the_others(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abc"))
        a, b, c = trial.claim(ANNA)
        trial.let_lease_expire()
        trial.end(b)

        verdicts = trial.settle(rescue_of(a), rescue_of(b), rescue_of(c))

        assert verdicts == (Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED)

    def test_a_claim_whose_answer_was_lost_is_given_back_at_no_cost(self, trial: Trial) -> None:
        lost = trial.take(worker=ANNA)

        trial.renew(ANNA, held=())

        again = trial.claim_only(ANNA)
        assert (again.id, again.attempts, again.crashes) == (lost.id, 0, 0)

    def test_cancel_against_complete_when_the_job_completed_first(self, trial: Trial) -> None:
        job = trial.finish(new_job())

        assert trial.run(trial.store.jobs.cancel(job.id)) is CancelAnswer.FINISHED
        assert trial.status(job.id) is JobStatus.COMPLETED
        assert trial.record(job.id).result is not None

    def test_cancel_against_complete_when_the_wish_came_first(self, trial: Trial) -> None:
        job = trial.take()
        assert trial.run(trial.store.jobs.cancel(job.id)) is CancelAnswer.FLAGGED

        assert trial.end(job) is Verdict.CANCELLED
        assert trial.record(job.id).result is None

    def test_redrive_against_a_job_that_runs_by_now(self, trial: Trial) -> None:
        """Two operators see a dead job; the second redrives it when it already runs."""
        job = trial.finish(new_job(), SettlementKind.DEAD)
        trial.run(trial.store.jobs.redrive([job.id]))
        running = trial.claim_only(BEN)

        assert trial.run(trial.store.jobs.redrive([job.id])) == (RedriveAnswer.REFUSED,)

        assert trial.end(running) is Verdict.APPLIED
        assert trial.claim() == ()

    def test_redrive_against_a_conflict_loses_no_item(self, trial: Trial) -> None:
        """A job that cannot be redriven does not stop the others, and is not lost."""
        trial.finish(new_job("first"), SettlementKind.DEAD)
        trial.finish(new_job("last"), SettlementKind.DEAD)
        trial.take(new_job("running"), worker=BEN)

        answers = trial.run(trial.store.jobs.redrive(["first", "running", "gone", "last"]))

        assert answers == (
            RedriveAnswer.REDRIVEN,
            RedriveAnswer.REFUSED,
            RedriveAnswer.UNKNOWN,
            RedriveAnswer.REDRIVEN,
        )
        assert trial.status("running") is JobStatus.PROCESSING
        assert [job.id for job in trial.claim()] == ["first", "last"]

    @pytest.mark.parametrize("claimed", [False, True])
    def test_prune_against_claim_of_a_redriven_job(self, trial: Trial, *, claimed: bool) -> None:
        """The lifetime of its first end has passed, but the job was redriven."""
        job = trial.finish(new_job())
        trial.advance_us(DAY_US)
        trial.run(trial.store.jobs.redrive([job.id]))
        if claimed:
            trial.claim_only()

        assert trial.run(trial.store.upkeep.prune(limit=10)) == 0
        assert trial.run(trial.store.jobs.delete(JobFilter(), limit=10)).removed == 0
        assert trial.find(job.id) is not None

    def test_a_write_to_a_pruned_job_of_a_reused_id_is_stale(self, trial: Trial) -> None:
        old = trial.take(new_job("reused"))
        trial.end(old, SettlementKind.RELEASED)
        trial.end(trial.claim_only())
        trial.advance_us(DAY_US)
        trial.run(trial.store.upkeep.prune(limit=10))
        trial.submit(new_job("reused"))

        assert trial.end(old) is Verdict.STALE
        assert trial.status("reused") is JobStatus.QUEUED


def _haunted(trial: Trial) -> tuple[Job, Job]:
    """Return a job that Ben runs, after its first owner, Anna, lost it; she is about to wake."""
    zombie = trial.take(worker=ANNA)
    trial.let_lease_expire()
    assert trial.rescue(ANNA) == {zombie.id: Verdict.APPLIED}
    trial.advance_us(2 * SECOND_US)
    successor = trial.claim_only(BEN, quarantine=True)
    assert (successor.id, successor.attempt) == (zombie.id, 2)
    return zombie, successor
