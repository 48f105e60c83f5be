# SPDX-License-Identifier: MIT
"""`LeaseStore`: live workers, and the jobs that a live or leaving worker holds."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Counters, JobStatus
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import ExpiredLease, ExpiredLeases, Totals, WorkerRecord
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial


class TestLeases:
    """A worker's time-bound right to the jobs it holds."""

    def test_a_first_renewal_begins_a_lease(self, trial: Trial) -> None:
        renewed = trial.renew(ANNA)

        assert renewed.now_us == trial.now_us()
        assert renewed.expires_us == trial.now_us() + LEASE_US
        assert renewed.released == 0

    def test_a_renewal_extends_the_lease_from_now(self, trial: Trial) -> None:
        trial.renew(ANNA)
        trial.advance_us(10 * SECOND_US)

        renewed = trial.renew(ANNA, lease_us=2 * LEASE_US)

        assert renewed.expires_us == trial.now_us() + 2 * LEASE_US
        assert not renewed.lapsed

    @pytest.mark.req("S3-26")
    def test_a_renewal_that_comes_late_counts_from_when_it_was_asked_for(
        self, trial: Trial
    ) -> None:
        """It waited in a cut wire; by now its worker is dead, and its jobs wait for a rescue."""
        job = trial.take(worker=ANNA)
        asked_us = trial.now_us()
        trial.advance_us(LEASE_US - 1)

        late = trial.renew(ANNA, asked_us=asked_us)

        assert (late.expires_us, late.lapsed) == (asked_us + LEASE_US, False)
        trial.advance_us(1)
        assert set(trial.orphans(ANNA)) == {job.id}
        [worker] = _workers(trial)
        assert worker.expires_us == late.expires_us

    def test_a_renewal_that_comes_later_than_a_lease_begins_none(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        asked_us = trial.now_us()
        trial.advance_us(2 * LEASE_US)

        late = trial.renew(ANNA, held=((job.id, job.fence),), asked_us=asked_us)

        assert (late.expires_us, late.lapsed) == (asked_us + LEASE_US, True)
        assert set(trial.orphans(ANNA)) == {job.id}
        assert trial.ask(ANNA).lease_lost

    @pytest.mark.parametrize("known", [True, False])
    def test_a_renewal_that_comes_after_a_newer_one_takes_nothing_from_it(
        self, trial: Trial, *, known: bool
    ) -> None:
        asked_us = trial.now_us()
        trial.advance_us(10 * SECOND_US)
        newer = trial.renew(ANNA, asked_us=trial.now_us()) if known else None

        late = trial.renew(ANNA, asked_us=asked_us)

        assert late.expires_us == (newer.expires_us if newer else asked_us + LEASE_US)
        assert [worker.expires_us for worker in _workers(trial)] == [late.expires_us]

    def test_a_renewal_is_never_counted_from_later_than_now(self, trial: Trial) -> None:
        """The store's clock was set back; what was granted before it lasts no longer for it."""
        trial.renew(ANNA, lease_us=3 * LEASE_US)

        renewed = trial.renew(ANNA, asked_us=trial.now_us() + LEASE_US)

        assert renewed.expires_us == trial.now_us() + LEASE_US
        assert [worker.expires_us for worker in _workers(trial)] == [renewed.expires_us]

    def test_a_lease_that_had_run_out_is_told_as_lapsed(self, trial: Trial) -> None:
        trial.renew(ANNA)
        trial.advance_us(LEASE_US)

        assert trial.renew(ANNA).lapsed
        assert not trial.renew(ANNA).lapsed

    def test_a_worker_that_the_store_does_not_know_is_told_that_it_had_no_lease(
        self, trial: Trial
    ) -> None:
        assert trial.renew(ANNA).lapsed
        assert not trial.renew(ANNA).lapsed
        trial.run(trial.store.leases.leave(ANNA))
        assert trial.renew(ANNA).lapsed

    def test_a_renewed_worker_keeps_its_jobs_beyond_one_lease(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        for _ in range(5):
            trial.advance_us(LEASE_US // 3)
            trial.renew(ANNA)

        assert trial.orphans(ANNA) == {}
        assert trial.claim(BEN) == ()
        assert trial.end(job) is Verdict.APPLIED

    def test_a_renewal_of_no_length_ends_the_lease_and_leaves_its_jobs_to_rescue(
        self, trial: Trial
    ) -> None:
        job = trial.take(worker=ANNA)

        trial.renew(ANNA, lease_us=0)

        assert set(trial.orphans(ANNA)) == {job.id}

    def test_a_lapsed_worker_keeps_what_was_not_rescued(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()

        trial.renew(ANNA, held=((job.id, job.fence),))

        assert trial.status(job.id) is JobStatus.PROCESSING
        assert trial.end(job) is Verdict.APPLIED

    def test_one_workers_lease_is_not_anothers(self, trial: Trial) -> None:
        trial.renew(ANNA)
        trial.advance_us(LEASE_US - 1)
        trial.renew(BEN)
        trial.advance_us(1)
        trial.submit(new_job())

        assert trial.ask(ANNA).lease_lost
        assert len(trial.ask(BEN).jobs) == 1

    def test_leaving_ends_the_lease_at_once(self, trial: Trial) -> None:
        trial.renew(ANNA)

        assert trial.run(trial.store.leases.leave(ANNA)) == 0

        trial.submit(new_job())
        assert trial.ask(ANNA).lease_lost
        assert not any(record.live for record in _workers(trial))

    @pytest.mark.req("S4-12")
    def test_leaving_releases_whatever_is_held_and_says_how_much(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abc"))
        trial.claim(ANNA, limit=2)
        trial.claim(BEN, limit=1)

        assert trial.run(trial.store.leases.leave(ANNA)) == 2

        assert [trial.status(name) for name in "abc"] == [
            *(JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.PROCESSING)
        ]
        assert trial.record("a").counters == Counters(releases=1)
        assert [job.id for job in trial.claim(BEN)] == ["a", "b"]

    def test_leaving_twice_or_unknown_releases_nothing(self, trial: Trial) -> None:
        trial.take(worker=ANNA)
        trial.run(trial.store.leases.leave(ANNA))

        assert trial.run(trial.store.leases.leave(ANNA)) == 0
        assert trial.run(trial.store.leases.leave("unknown")) == 0

    def test_a_worker_that_left_may_come_back(self, trial: Trial) -> None:
        trial.renew(ANNA)
        trial.run(trial.store.leases.leave(ANNA))
        trial.submit(new_job("job"))

        assert trial.claim_only(ANNA).id == "job"


class TestRenewalOfWhatIsHeld:
    """When `held` is given, processing jobs of this worker that are not in it are released."""

    def test_jobs_it_does_not_name_are_released_in_their_old_place(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abcd"))
        a, b, c = trial.claim(ANNA, limit=3)

        renewed = trial.renew(ANNA, held=((b.id, b.fence),))

        assert renewed.released == 2
        assert trial.status("b") is JobStatus.PROCESSING
        assert [job.id for job in trial.claim(BEN)] == [a.id, c.id, "d"]

    def test_only_releases_rises(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.advance_us(SECOND_US)

        trial.renew(ANNA, held=())

        record = trial.record(job.id)
        assert record.status is JobStatus.QUEUED
        assert record.counters == Counters(releases=1)
        assert record.fence == job.fence
        assert trial.history(job.id) == ()

    @pytest.mark.parametrize("step", [-1, 1])
    def test_a_job_named_with_another_fence_is_not_held(self, trial: Trial, step: int) -> None:
        job = trial.take(worker=ANNA)

        assert trial.renew(ANNA, held=((job.id, job.fence + step),)).released == 1
        assert trial.status(job.id) is JobStatus.QUEUED

    def test_saying_nothing_releases_nothing(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)

        assert trial.renew(ANNA, held=None).released == 0
        assert trial.status(job.id) is JobStatus.PROCESSING

    def test_another_workers_jobs_are_not_touched(self, trial: Trial) -> None:
        job = trial.take(worker=BEN)
        before = trial.picture(job.id)

        assert trial.renew(ANNA, held=()).released == 0
        assert trial.picture(job.id) == before

    @pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.FAILED])
    def test_naming_a_job_that_is_settled_changes_nothing(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take(worker=ANNA)
        trial.end(job, kind)
        before = trial.picture(job.id)

        assert trial.renew(ANNA, held=((job.id, job.fence), ("unknown", 1))).released == 0
        assert trial.picture(job.id) == before

    def test_naming_a_job_another_worker_has_by_now_does_not_win_it_back(
        self, trial: Trial
    ) -> None:
        job = trial.take(worker=ANNA)
        trial.renew(ANNA, held=())
        trial.claim_only(BEN)
        before = trial.picture(job.id)

        assert trial.renew(ANNA, held=((job.id, job.fence),)).released == 0
        assert trial.picture(job.id) == before

    def test_a_released_job_that_is_to_be_cancelled_is_cancelled(self, trial: Trial) -> None:
        job = trial.take(worker=ANNA)
        trial.run(trial.store.jobs.cancel(job.id))

        trial.renew(ANNA, held=())

        assert trial.status(job.id) is JobStatus.CANCELLED


class TestWorkers:
    """The known workers by id, live or not, and expired leases of workers that hold jobs."""

    def test_a_worker_is_shown_as_it_described_itself(self, trial: Trial) -> None:
        began_us = trial.now_us()
        trial.renew(ANNA)
        trial.advance_us(SECOND_US)
        trial.renew(
            ANNA,
            queues=(QUEUE, "mail"),
            tasks=(TASK, "resize"),
            host="stable",
            pid=7,
            version="1.2",
            concurrency=5,
            quiet=True,
        )

        assert _workers(trial) == (
            WorkerRecord(
                worker=ANNA,
                host="stable",
                pid=7,
                version="1.2",
                queues=(QUEUE, "mail"),
                tasks=(TASK, "resize"),
                concurrency=5,
                quiet=True,
                running=0,
                started_us=began_us,
                renewed_us=trial.now_us(),
                expires_us=trial.now_us() + LEASE_US,
                live=True,
            ),
        )

    def test_a_worker_is_shown_with_as_many_jobs_as_it_holds_now(self, trial: Trial) -> None:
        trial.renew(BEN)
        first, _ = trial.take(), trial.take()
        assert [record.running for record in _workers(trial)] == [2, 0]

        trial.end(first)

        assert [record.running for record in _workers(trial)] == [1, 0]

    @pytest.mark.req("S1-64")
    def test_totals_of_a_worker_only_rise(self, trial: Trial) -> None:
        trial.renew(ANNA, totals=Totals(3, 1, 7_000_000))
        trial.renew(BEN, totals=Totals(2**40, 5, 2**50))
        trial.renew(ANNA)  # a supervisor renews without totals
        trial.renew(ANNA, totals=Totals(2, 4, 8_000_000))

        told = {record.worker: record.totals for record in _workers(trial)}
        assert told == {ANNA: Totals(3, 4, 8_000_000), BEN: Totals(2**40, 5, 2**50)}

    def test_a_worker_is_quiet_until_it_says_otherwise(self, trial: Trial) -> None:
        trial.renew(ANNA, quiet=True)
        assert [record.quiet for record in _workers(trial)] == [True]

        trial.renew(ANNA)

        assert [record.quiet for record in _workers(trial)] == [False]

    def test_workers_are_in_the_order_of_their_ids_live_or_not(self, trial: Trial) -> None:
        trial.renew("carl")
        trial.renew(ANNA)
        trial.advance_us(LEASE_US)
        trial.renew(BEN)

        shown = [(record.worker, record.live) for record in _workers(trial)]
        assert shown == [(ANNA, False), (BEN, True), ("carl", False)]

    def test_an_expired_lease_over_held_jobs_is_told(self, trial: Trial) -> None:
        trial.take(worker=ANNA)
        expires_us = trial.now_us() + LEASE_US
        trial.advance_us(LEASE_US - 1)
        assert _expired(trial) == ()
        trial.advance_us(1)

        assert _expired(trial) == (ExpiredLease(ANNA, expires_us, LEASE_US),)

    def test_a_worker_that_holds_nothing_is_not_told(self, trial: Trial) -> None:
        trial.end(trial.take(worker=ANNA))
        trial.let_lease_expire()

        assert _expired(trial) == ()

    def test_a_worker_that_renewed_is_not_told(self, trial: Trial) -> None:
        trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.renew(ANNA)

        assert _expired(trial) == ()

    def test_a_look_tells_the_clock_also_when_nothing_has_expired(self, trial: Trial) -> None:
        assert trial.run(trial.store.leases.expired()) == ExpiredLeases(trial.now_us(), ())

    def test_every_expired_worker_is_told_once(self, trial: Trial) -> None:
        for worker in (ANNA, BEN):
            trial.submit(new_job(), new_job())
            trial.claim(worker)
        trial.let_lease_expire()

        assert sorted(lease.worker for lease in _expired(trial)) == [ANNA, BEN]


def _workers(trial: Trial) -> tuple[WorkerRecord, ...]:
    return trial.run(trial.store.leases.workers())


def _expired(trial: Trial) -> tuple[ExpiredLease, ...]:
    return trial.run(trial.store.leases.expired()).leases
