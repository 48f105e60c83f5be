# SPDX-License-Identifier: MIT
"""The fencing matrix: every write about a running job, in every possible situation.

A stale writer changes nothing and is told so. A situation prepares a job and says with which
fence the write comes; the matrix crosses all of them with all kinds of write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus, Progress
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.requests import JobFilter, ProgressNote
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    OWNER_KINDS,
    new_job,
    rescue_of,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial

Write = Callable[[Trial, Job], Verdict]
Situation = Callable[[Trial], Job]

_HALF = Progress(done=1, total=2, note="half")


def _settling(kind: SettlementKind) -> Write:
    def write(trial: Trial, job: Job) -> Verdict:
        (verdict,) = trial.settle(settlement_of(kind, job))
        return verdict

    return write


def _noting(trial: Trial, job: Job) -> Verdict:
    note = ProgressNote(job.id, job.fence, _HALF)
    (verdict,) = trial.run(trial.store.jobs.note_progress([note]))
    return verdict


#: Every write about a running job that answers with a verdict.
_WRITES: Final[Mapping[str, Write]] = MappingProxyType(
    {kind.name.lower(): _settling(kind) for kind in SettlementKind} | {"progress": _noting}
)
_OWNER_WRITES: Final = tuple(name for name in _WRITES if name != "rescued")


def _with_fence(job: Job, step: int) -> Job:
    return msgspec.structs.replace(job, fence=job.fence + step)


# ------------------------------------------------------------- situations that make a write stale


def _older_fence(trial: Trial) -> Job:
    """The job has been claimed again twice; only the last settlement is remembered."""
    job = trial.take()
    trial.end(job, SettlementKind.RELEASED)
    trial.end(trial.claim_only(), SettlementKind.SNOOZED)
    trial.advance_us(5 * SECOND_US)
    assert trial.claim_only().fence > job.fence
    return job


def _future_fence(trial: Trial) -> Job:
    return _with_fence(trial.take(), 1)


def _unknown_job(trial: Trial) -> Job:
    return msgspec.structs.replace(trial.take(), id="unknown")


def _another_jobs_fence(trial: Trial) -> Job:
    """The fence is right for another job, which was claimed more often."""
    often = trial.take(new_job("often"))
    trial.end(often, SettlementKind.RELEASED)
    often = trial.claim_only()
    once = trial.take(new_job("once"))
    return msgspec.structs.replace(once, fence=often.fence)


def _after_rescue(trial: Trial) -> Job:
    job = trial.take()
    trial.let_lease_expire()
    assert trial.rescue(ANNA) == {job.id: Verdict.APPLIED}
    return job


def _after_rescue_and_ready(trial: Trial) -> Job:
    job = _after_rescue(trial)
    trial.advance_us(2 * SECOND_US)
    trial.run(trial.store.upkeep.promote(limit=10))
    assert trial.status(job.id) is JobStatus.QUEUED
    return job


def _after_rescue_and_claim(trial: Trial) -> Job:
    job = _after_rescue(trial)
    trial.advance_us(2 * SECOND_US)
    assert trial.claim_only(BEN, quarantine=True).id == job.id
    return job


def _after_release_by_renewal(trial: Trial) -> Job:
    job = trial.take()
    assert trial.renew(ANNA, held=()).released == 1
    return job


def _after_release_by_renewal_and_claim(trial: Trial) -> Job:
    job = _after_release_by_renewal(trial)
    trial.claim_only(BEN)
    return job


def _after_leaving(trial: Trial) -> Job:
    job = trial.take()
    assert trial.run(trial.store.leases.leave(ANNA)) == 1
    return job


def _after_redrive_and_claim(trial: Trial) -> Job:
    job = trial.take()
    trial.end(job, SettlementKind.RELEASED)
    trial.end(trial.claim_only(), SettlementKind.DEAD)
    trial.run(trial.store.jobs.redrive([job.id]))
    trial.claim_only(BEN)
    return job


def _after_delete(trial: Trial) -> Job:
    job = trial.finish(new_job())
    assert trial.run(trial.store.jobs.delete(JobFilter(), limit=1)).removed == 1
    return job


def _never_claimed(trial: Trial) -> Job:
    """The writer guesses the fence of a waiting job."""
    job = trial.take(new_job("template"))
    trial.submit(new_job("queued"))
    return msgspec.structs.replace(job, id="queued", fence=trial.record("queued").fence)


def _never_due(trial: Trial) -> Job:
    job = trial.take(new_job("template"))
    trial.submit(new_job("pending", delay_us=SECOND_US))
    return msgspec.structs.replace(job, id="pending", fence=trial.record("pending").fence)


def _cancelled_while_waiting(trial: Trial) -> Job:
    job = trial.take(new_job("template"))
    trial.submit(new_job("cancelled"))
    trial.run(trial.store.jobs.cancel("cancelled"))
    return msgspec.structs.replace(job, id="cancelled", fence=trial.record("cancelled").fence)


_STALE: Final[Mapping[str, Situation]] = MappingProxyType(
    {
        situation.__name__.strip("_"): situation
        for situation in (
            *(_older_fence, _future_fence, _unknown_job, _another_jobs_fence),
            *(_after_rescue, _after_rescue_and_ready, _after_rescue_and_claim),
            *(_after_release_by_renewal, _after_release_by_renewal_and_claim, _after_leaving),
            *(_after_redrive_and_claim, _after_delete),
            *(_never_claimed, _never_due, _cancelled_while_waiting),
        )
    }
)


class TestFencing:
    """Every write about a running job is guarded by job id, fence and status."""

    @pytest.mark.parametrize("write", _OWNER_WRITES)
    def test_the_right_fence_is_applied(self, trial: Trial, write: str) -> None:
        job = trial.take()

        assert _WRITES[write](trial, job) is Verdict.APPLIED

    def test_the_right_fence_is_applied_to_a_rescue_of_a_lost_job(self, trial: Trial) -> None:
        job = trial.take()
        trial.let_lease_expire()

        assert trial.settle(rescue_of(job)) == (Verdict.APPLIED,)

    @pytest.mark.parametrize("write", _OWNER_WRITES)
    def test_a_late_owner_whose_job_was_not_rescued_is_still_right(
        self, trial: Trial, write: str
    ) -> None:
        job = trial.take()
        trial.let_lease_expire()

        assert _WRITES[write](trial, job) is Verdict.APPLIED

    @pytest.mark.req("S1-44")
    @pytest.mark.parametrize("write", _WRITES)
    @pytest.mark.parametrize("situation", _STALE)
    def test_a_stale_write_changes_nothing_and_is_told_so(
        self, trial: Trial, situation: str, write: str
    ) -> None:
        job = _STALE[situation](trial)
        before = trial.picture(job.id)

        assert _WRITES[write](trial, job) is Verdict.STALE
        assert trial.picture(job.id) == before

    @pytest.mark.parametrize("situation", _STALE)
    def test_a_renewal_that_names_a_stale_claim_keeps_and_wins_back_nothing(
        self, trial: Trial, situation: str
    ) -> None:
        job = _STALE[situation](trial)
        before = trial.picture(job.id)
        # A worker that names another fence does not know that it holds the job.
        given_back = before[0] is not None and (before[0].status, before[0].worker) == (
            *(JobStatus.PROCESSING, ANNA),
        )

        trial.renew(ANNA, held=((job.id, job.fence),))

        if given_back:
            assert trial.status(job.id) is JobStatus.QUEUED
            assert trial.record(job.id).counters.releases >= 1
        else:
            assert trial.picture(job.id) == before

    @pytest.mark.parametrize("situation", ["older_fence", "future_fence", "after_rescue_and_claim"])
    def test_a_stale_rescue_of_a_lost_job_changes_nothing(
        self, trial: Trial, situation: str
    ) -> None:
        job = _STALE[situation](trial)
        trial.let_lease_expire()
        before = trial.picture(job.id)

        assert trial.settle(rescue_of(job)) == (Verdict.STALE,)
        assert trial.picture(job.id) == before

    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_the_same_settlement_sent_again_is_applied_and_changes_nothing(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        settlement = settlement_of(kind, job)
        trial.settle(settlement)
        before = trial.picture(job.id)
        trial.advance_us(1)

        assert trial.settle(settlement) == (Verdict.APPLIED,)
        assert trial.settle(settlement) == (Verdict.APPLIED,)
        assert trial.picture(job.id) == before

    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_the_same_settlement_is_recognised_after_the_job_was_claimed_again(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        settlement = _settled_then_claimed_again(trial, kind)
        before = trial.picture(settlement.job_id)

        assert trial.settle(settlement) == (Verdict.APPLIED,)
        assert trial.picture(settlement.job_id) == before

    @pytest.mark.parametrize("second", _WRITES)
    @pytest.mark.parametrize("first", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_the_same_fence_settles_only_once(
        self, trial: Trial, first: SettlementKind, second: str
    ) -> None:
        job = trial.take()
        trial.end(job, first)
        before = trial.picture(job.id)
        same = second == first.name.lower()

        verdict = _WRITES[second](trial, job)

        assert verdict is (Verdict.APPLIED if same else Verdict.STALE)
        assert trial.picture(job.id) == before

    def test_a_rescue_is_refused_while_the_owner_lives(self, trial: Trial) -> None:
        job = trial.take()
        before = trial.picture(job.id)

        assert trial.settle(rescue_of(job)) == (Verdict.STALE,)
        assert trial.picture(job.id) == before

    def test_a_rescue_is_refused_once_the_owner_has_renewed(self, trial: Trial) -> None:
        job = trial.take()
        trial.let_lease_expire()
        trial.renew(ANNA)
        before = trial.picture(job.id)

        assert trial.settle(rescue_of(job)) == (Verdict.STALE,)
        assert trial.picture(job.id) == before

    def test_a_rescue_is_never_remembered_as_a_settlement(self, trial: Trial) -> None:
        job = _after_rescue(trial)
        before = trial.picture(job.id)

        assert trial.settle(rescue_of(job)) == (Verdict.STALE,)
        assert trial.picture(job.id) == before

    def test_fences_rise_over_release_rescue_and_redrive(self, trial: Trial) -> None:
        first = trial.take()
        trial.end(first, SettlementKind.RELEASED)
        second = trial.claim_only()
        trial.let_lease_expire()
        trial.rescue(ANNA)
        trial.advance_us(2 * SECOND_US)
        third = trial.claim_only(quarantine=True)
        trial.end(third, SettlementKind.DEAD)
        trial.run(trial.store.jobs.redrive([first.id]))

        assert first.fence < second.fence < third.fence == trial.record(first.id).fence


def _settled_then_claimed_again(trial: Trial, kind: SettlementKind) -> Settlement:
    job = trial.take()
    settlement = settlement_of(kind, job)
    trial.settle(settlement)
    trial.run(trial.store.jobs.redrive([job.id]))
    trial.advance_us(settlement.limit_us)
    assert trial.claim_only(BEN).fence > job.fence
    return settlement
