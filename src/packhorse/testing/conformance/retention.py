# SPDX-License-Identifier: MIT
"""`UpkeepStore.prune`: finished jobs are removed after their lifetime, unfinished ones never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, JobOptions, JobStatus
from packhorse.core.policies.retention import DAY_US, GHOST_US, Retention, is_ghost, may_prune
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial, Trials

_lifetimes = st.none() | st.integers(1, 6)


class TestPruning:
    """Remove records and results whose lifetime has passed."""

    @pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.CANCELLED])
    def test_a_finished_job_is_removed_with_its_history_after_its_lifetime(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.finish(new_job(), kind)

        trial.advance_us(DAY_US - 1)
        assert _prune(trial) == 0
        assert trial.find(job.id) is not None
        trial.advance_us(1)
        assert _prune(trial) == 1
        assert trial.picture(job.id) == (None, ())

    def test_a_removed_id_may_be_submitted_again(self, trial: Trial) -> None:
        trial.finish(new_job("job"))
        trial.advance_us(DAY_US)
        _prune(trial)

        (answer,) = trial.submit(new_job("job"))

        assert not answer.deduplicated
        assert trial.history("job") == ()

    def test_dead_letters_are_kept_for_ever_by_default(self, trial: Trial) -> None:
        trial.finish(new_job("job"), SettlementKind.DEAD)
        trial.advance_us(1000 * DAY_US)

        _prune(trial)
        assert trial.status("job") is JobStatus.DEAD

    def test_a_dead_letter_with_a_lifetime_is_removed_after_it(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, SettlementKind.DEAD, retention=Retention(dead_us=SECOND_US))
        trial.advance_us(SECOND_US)

        assert _prune(trial) == 1
        assert trial.find(job.id) is None

    def test_a_result_is_removed_after_its_own_lifetime(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, result_keep_us=SECOND_US)
        trial.advance_us(SECOND_US)

        assert _prune(trial) == 1

        record = trial.record(job.id)
        assert (record.status, record.result) == (JobStatus.COMPLETED, None)
        assert record.result_expired
        assert len(trial.history(job.id)) == 1
        assert _prune(trial) == 0

    def test_a_result_past_its_lifetime_is_not_shown_even_before_it_is_removed(
        self, trial: Trial
    ) -> None:
        job = trial.take()
        trial.end(job, result_keep_us=SECOND_US)

        assert trial.record(job.id).result is not None
        assert not trial.record(job.id).result_expired
        trial.advance_us(SECOND_US)
        assert trial.record(job.id).result is None
        assert trial.record(job.id).result_expired

    def test_a_record_goes_after_its_result(self, trial: Trial) -> None:
        job = trial.take()
        trial.end(job, result_keep_us=SECOND_US)
        trial.advance_us(SECOND_US)
        _prune(trial)
        trial.advance_us(DAY_US)

        assert _prune(trial) == 1
        assert trial.find(job.id) is None

    def test_a_waiting_job_cancelled_by_hand_lives_as_its_queue_says(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", retention=Retention(finished_us=SECOND_US)))
        for queue in ("mail", "plain"):
            trial.submit(new_job(queue, queue=queue))
            trial.run(trial.store.jobs.cancel(queue))

        trial.advance_us(SECOND_US)
        assert _prune(trial) == 1
        assert trial.find("mail") is None
        trial.advance_us(DAY_US)
        assert _prune(trial) == 1
        assert trial.find("plain") is None

    def test_an_expired_job_lives_as_its_queue_says_of_dead_ones(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", retention=Retention(dead_us=SECOND_US)))
        for queue in ("mail", "plain"):
            trial.submit(new_job(queue, queue=queue, deadline_us=trial.now_us()))
        assert len(trial.run(trial.store.upkeep.expire(limit=10))) == 2

        trial.advance_us(1000 * DAY_US)

        assert _prune(trial) == 1
        assert trial.find("mail") is None
        assert trial.status("plain") is JobStatus.DEAD

    @pytest.mark.parametrize("ended", [JobStatus.DEAD, JobStatus.CANCELLED])
    def test_a_job_that_ends_by_its_rescue_lives_as_its_queue_says(
        self, trial: Trial, ended: JobStatus
    ) -> None:
        kept = Retention(finished_us=SECOND_US, dead_us=SECOND_US)
        trial.declare(QueueSettings("mail", retention=kept))
        options = JobOptions(max_crashes=0)
        trial.submit(*(new_job(queue, queue=queue, options=options) for queue in ("mail", "plain")))
        trial.claim(queues=("mail", "plain"))
        if ended is JobStatus.CANCELLED:
            for queue in ("mail", "plain"):
                trial.run(trial.store.jobs.cancel(queue))
        trial.let_lease_expire()
        trial.rescue(ANNA)

        trial.advance_us(SECOND_US)

        assert _prune(trial) == 1
        assert trial.find("mail") is None
        assert trial.status("plain") is ended

    @pytest.mark.parametrize("status", sorted(set(JobStatus) - TERMINAL))
    def test_a_job_that_is_not_finished_is_never_removed(
        self, trial: Trial, status: JobStatus
    ) -> None:
        bring_to(trial, status, "job")
        trial.advance_us(1000 * DAY_US)

        _prune(trial)
        assert trial.find("job") is not None

    def test_no_more_than_the_limit_is_removed(self, trial: Trial) -> None:
        for _ in range(5):
            trial.finish(new_job())
        trial.advance_us(DAY_US)

        assert [_prune(trial, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert trial.search() == []

    @a_few_examples
    @given(keep_us=_lifetimes, result_us=_lifetimes, passed_us=st.integers(0, 7))
    def test_what_goes_when_is_what_the_policy_says(
        self, trials: Trials, keep_us: int | None, result_us: int | None, passed_us: int
    ) -> None:
        with trials.fresh() as trial:
            job = trial.take()
            trial.end(job, retention=Retention(finished_us=keep_us, results_us=result_us))
            finished_us = trial.now_us()
            trial.advance_us(passed_us)

            count = _prune(trial)

            gone = may_prune(finished_us, keep_us, trial.now_us())
            without_result = may_prune(finished_us, result_us, trial.now_us())
            assert count == int(gone or without_result)
            record = trial.find(job.id)
            assert (record is None) is gone
            assert record is None or (record.result is None) is without_result


class TestGhosts:
    """Remove records of workers that ended without leaving, once nothing needs them."""

    def test_a_ghost_is_removed_a_day_after_its_lease_ended_and_not_before(
        self, trial: Trial
    ) -> None:
        trial.renew(ANNA)

        trial.advance_us(LEASE_US + GHOST_US - 1)
        assert _prune(trial) == 0
        assert _workers(trial) == [ANNA]
        trial.advance_us(1)
        assert _prune(trial) == 1
        assert _workers(trial) == []
        assert _prune(trial) == 0

    def test_a_ghost_that_holds_a_job_stays_until_the_job_was_rescued(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.advance_us(LEASE_US + GHOST_US)

        assert _prune(trial) == 0
        assert _workers(trial) == [ANNA]
        assert trial.orphans(ANNA)[job.id].worker == ANNA
        assert trial.rescue(ANNA) == {job.id: Verdict.APPLIED}
        assert _prune(trial) == 1
        assert _workers(trial) == []

    def test_a_ghost_that_holds_a_job_does_not_keep_others_from_being_removed(
        self, trial: Trial
    ) -> None:
        trial.take(worker=ANNA)
        trial.renew(BEN)
        trial.advance_us(LEASE_US + GHOST_US)

        assert _prune(trial, limit=1) == 1
        assert _workers(trial) == [ANNA]

    def test_a_living_worker_is_never_removed(self, trial: Trial) -> None:
        trial.renew(ANNA, lease_us=1000 * DAY_US)
        trial.renew(BEN)
        trial.advance_us(999 * DAY_US)
        trial.renew(BEN)

        assert _prune(trial) == 0
        assert _workers(trial) == [ANNA, BEN]

    def test_no_more_than_the_limit_is_removed_jobs_and_ghosts_together(self, trial: Trial) -> None:
        for number in range(3):
            trial.finish(new_job())
            trial.renew(f"worker-{number}")
        trial.run(trial.store.leases.leave(ANNA))
        trial.advance_us(LEASE_US + GHOST_US)

        assert _prune(trial, limit=4) == 4
        assert trial.search() == []
        assert len(_workers(trial)) == 2
        assert [_prune(trial, limit=1) for _ in range(3)] == [1, 1, 0]

    def test_a_ghost_that_comes_back_begins_again_and_is_told_so(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.advance_us(LEASE_US)
        trial.rescue(ANNA)
        trial.advance_us(GHOST_US)
        _prune(trial)

        assert trial.ask(ANNA).lease_lost
        renewed = trial.renew(ANNA, held=((job.id, job.fence),))
        assert (renewed.lapsed, renewed.released) == (True, 0)
        assert trial.end(job) is Verdict.STALE
        assert not trial.renew(ANNA).lapsed
        assert trial.claim_any(ANNA).id == job.id

    @a_few_examples
    @given(ends_us=st.lists(st.integers(0, 4), max_size=3), limit=st.integers(0, 3))
    def test_who_goes_is_what_the_policy_says(
        self, trials: Trials, ends_us: list[int], limit: int
    ) -> None:
        with trials.fresh() as trial:
            for number, end_us in enumerate(ends_us):
                trial.renew(f"worker-{number}", lease_us=end_us)
            leases = {f"worker-{n}": trial.now_us() + end for n, end in enumerate(ends_us)}
            trial.advance_us(GHOST_US + 2)

            ghosts = {name for name, us in leases.items() if is_ghost(us, trial.now_us())}
            assert _prune(trial, limit=limit) == min(limit, len(ghosts))
            assert len(ghosts & {*_workers(trial)}) == max(0, len(ghosts) - limit)
            _prune(trial)
            assert _workers(trial) == sorted(leases.keys() - ghosts)


def _prune(trial: Trial, limit: int = EVERYTHING) -> int:
    return trial.run(trial.store.upkeep.prune(limit=limit))


def _workers(trial: Trial) -> list[str]:
    return [record.worker for record in trial.run(trial.store.leases.workers())]
