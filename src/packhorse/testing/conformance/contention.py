# SPDX-License-Identifier: MIT
"""Races between threads, each with its own `Store` object.

Whichever thread is first, the answers and the state must agree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus
from packhorse.core.lifecycle import CancelAnswer, rescue
from packhorse.core.policies.retention import DAY_US
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, JobFilter, RedriveAnswer, Renewal
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    LEASE_US,
    QUEUE,
    TASK,
    TIMEOUT_US,
    new_job,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial, Trials

T = TypeVar("T")

#: How often each race is run.
_ROUNDS: Final = 8
#: How long a thread may wait for the others to be ready.
_PATIENCE_S: Final = 30.0

_COMPLETED: Final = SettlementKind.COMPLETED


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Run all actions in threads that start together; return the answers in order, or raise."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        start.wait(_PATIENCE_S)
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        running = [pool.submit(run, action) for action in actions]
        return [each.result(_PATIENCE_S) for each in running]


class TestContention:
    """Several callers at once, each with its own connection."""

    @pytest.mark.req("S4-1", "S2-23")
    def test_claimers_at_once_share_the_jobs_and_never_a_job(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            names = [str(number) for number in range(60)]
            trial.submit(*(new_job(name) for name in names))
            workers = [f"worker-{number}" for number in range(4)]
            for worker in workers:
                trial.renew(worker)
            stores = [trial.elsewhere() for _ in workers]

            pairs = zip(stores, workers, strict=True)
            shares = at_once(*(partial(_drain, *pair, limit=3) for pair in pairs))

            assert sorted(job.id for share in shares for job in share) == sorted(names)
            for share in shares:
                numbers = [int(job.id) for job in share]
                assert numbers == sorted(numbers)

    def test_submitting_one_id_at_once_stores_it_once(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(4)]
            for number in range(_ROUNDS):
                jobs = [new_job(f"job-{number}", created_by=str(who)) for who in range(4)]

                answers = at_once(
                    *(
                        partial(store.run, store.jobs.submit([job]))
                        for store, job in zip(stores, jobs, strict=True)
                    )
                )

                new = [who for who, (answer,) in enumerate(answers) if not answer.deduplicated]
                assert [str(who) for who in new] == [trial.record(f"job-{number}").created_by]
            assert len(trial.claim()) == _ROUNDS

    def test_rescue_against_complete(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            for _ in range(_ROUNDS):
                job = trial.take(worker=ANNA)
                trial.let_lease_expire()
                settlement = _rescue(trial, job)

                completed, rescued = at_once(
                    partial(_settle, here, settlement_of(_COMPLETED, job)),
                    partial(_settle, there, settlement),
                )

                assert {completed, rescued} == {Verdict.APPLIED, Verdict.STALE}
                won = completed is Verdict.APPLIED
                assert trial.status(job.id) is (JobStatus.COMPLETED if won else JobStatus.PENDING)
                assert trial.record(job.id).counters.crashes == int(not won)
                assert len(trial.history(job.id)) == 1

    def test_rescuers_at_once_count_one_crash(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(3)]
            for _ in range(_ROUNDS):
                job = trial.take(worker=ANNA)
                trial.let_lease_expire()
                settlement = _rescue(trial, job)

                verdicts = at_once(*(partial(_settle, store, settlement) for store in stores))

                assert sorted(verdicts) == [Verdict.APPLIED, Verdict.STALE, Verdict.STALE]
                assert trial.record(job.id).counters.crashes == 1

    def test_renew_against_rescue(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            for _ in range(_ROUNDS):
                job = trial.take(worker=ANNA)
                trial.let_lease_expire()
                settlement = _rescue(trial, job)
                renewal = Renewal(ANNA, LEASE_US, held=((job.id, job.fence),))

                results: list[Any] = at_once(
                    partial(here.run, here.leases.renew(renewal)),
                    partial(_settle, there, settlement),
                )

                rescued = results[1] is Verdict.APPLIED
                assert trial.end(job) is (Verdict.STALE if rescued else Verdict.APPLIED)

    def test_cancel_against_complete(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            for _ in range(_ROUNDS):
                job = trial.take()

                results: list[Any] = at_once(
                    partial(_settle, here, settlement_of(_COMPLETED, job)),
                    partial(there.run, there.jobs.cancel(job.id)),
                )

                story = tuple(results), trial.status(job.id)
                assert story in (
                    ((Verdict.APPLIED, CancelAnswer.FINISHED), JobStatus.COMPLETED),
                    ((Verdict.CANCELLED, CancelAnswer.FLAGGED), JobStatus.CANCELLED),
                )

    def test_cancel_against_claim(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            trial.renew(BEN)
            for number in range(_ROUNDS):
                trial.submit(new_job(str(number)))

                results: list[Any] = at_once(
                    partial(_claim, here, BEN, limit=1),
                    partial(there.run, there.jobs.cancel(str(number))),
                )

                claimed = bool(results[0])
                answer = CancelAnswer.FLAGGED if claimed else CancelAnswer.CANCELLED
                assert results[1] is answer
                assert trial.record(str(number)).cancel_requested or not claimed

    def test_redrive_at_once_runs_a_job_once_more(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(3)]
            for _ in range(_ROUNDS):
                job = trial.finish(new_job(), SettlementKind.DEAD)

                answers = at_once(
                    *(partial(store.run, store.jobs.redrive([job.id])) for store in stores)
                )

                assert sorted(answer for (answer,) in answers) == [
                    *(RedriveAnswer.REDRIVEN, RedriveAnswer.REFUSED, RedriveAnswer.REFUSED)
                ]
                assert trial.end(trial.claim_only()) is Verdict.APPLIED

    @pytest.mark.parametrize("remove", ["prune", "delete"])
    def test_removal_against_redrive_takes_all_or_nothing(
        self, trials: Trials, remove: str
    ) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            for _ in range(_ROUNDS):
                job = trial.finish(new_job())
                trial.advance_us(DAY_US)

                results: list[Any] = at_once(
                    partial(here.run, here.jobs.redrive([job.id])),
                    partial(_remove, there, remove),
                )

                kept = results[0] == (RedriveAnswer.REDRIVEN,)
                assert results[1] == int(not kept)
                claimed = [each.id for each in trial.claim()]
                assert claimed == ([job.id] if kept else [])
                if kept:
                    trial.run(trial.store.jobs.cancel(job.id))

    def test_removal_against_claim_never_removes_what_runs(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            here, there = trial.elsewhere(), trial.elsewhere()
            trial.renew(BEN)
            for number in range(_ROUNDS):
                trial.submit(new_job(str(number)))

                at_once(partial(_claim, here, BEN, limit=1), partial(_remove, there, "delete"))

                assert trial.status(str(number)) is JobStatus.PROCESSING

    def test_the_same_settlement_at_once_counts_once(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(3)]
            for _ in range(_ROUNDS):
                settlement = settlement_of(SettlementKind.FAILED, trial.take())

                verdicts = at_once(*(partial(_settle, store, settlement) for store in stores))

                assert set(verdicts) == {Verdict.APPLIED}
                assert trial.record(settlement.job_id).counters.attempts == 1

    def test_promoting_at_once_makes_each_job_ready_once(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(3)]
            names = [str(number) for number in range(_ROUNDS)]
            trial.submit(*(new_job(name, delay_us=int(name) + 1) for name in names))
            trial.advance_us(SECOND_US)

            counts = at_once(
                *(partial(store.run, store.upkeep.promote(limit=100)) for store in stores)
            )

            assert sum(counts) == _ROUNDS
            assert [job.id for job in trial.claim()] == names

    def test_claims_release_and_rescue_at_once_lose_nothing(self, trials: Trials) -> None:
        """Workers claim, complete and give back; every job ends completed, and only once."""
        with trials.fresh() as trial:
            names = [str(number) for number in range(24)]
            trial.submit(*(new_job(name) for name in names))
            workers = [f"worker-{number}" for number in range(3)]
            for worker in workers:
                trial.renew(worker)
            stores = [trial.elsewhere() for _ in workers]

            pairs = zip(stores, workers, strict=True)
            at_once(*(partial(_work, *pair) for pair in pairs))

            for name in names:
                record = trial.record(name)
                assert record.status is JobStatus.COMPLETED
                assert record.counters.attempts == record.counters.releases + 1
                assert record.counters.releases <= 1


def _drain(store: Store, worker: str, *, limit: int) -> list[Job]:
    drained: list[Job] = []
    while claimed := _claim(store, worker, limit=limit):
        drained += claimed
    return drained


def _claim(store: Store, worker: str, *, limit: int) -> tuple[Job, ...]:
    request = ClaimRequest(worker, (QUEUE,), (TASK,), limit, TIMEOUT_US)
    return store.run(store.jobs.claim(request)).jobs


def _settle(store: Store, settlement: Settlement) -> Verdict:
    (verdict,) = store.run(store.jobs.settle([settlement]))
    return verdict


def _remove(store: Store, how: str) -> int:
    if how == "prune":
        return store.run(store.upkeep.prune(limit=10))
    return store.run(store.jobs.delete(JobFilter(), limit=10)).removed


def _work(store: Store, worker: str) -> None:
    """Give every job back the first time, complete it the second."""
    while claimed := _claim(store, worker, limit=2):
        for job in claimed:
            kind = _COMPLETED if job.attempts else SettlementKind.RELEASED
            assert _settle(store, settlement_of(kind, job)) is Verdict.APPLIED


def _rescue(trial: Trial, job: Job) -> Settlement:
    """Rescue a job as a suspect, so that the next round takes another job."""
    return msgspec.structs.replace(rescue(trial.orphans(ANNA)[job.id]), suspect=True)
