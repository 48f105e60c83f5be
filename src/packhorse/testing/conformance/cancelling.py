# SPDX-License-Identifier: MIT
"""`JobStore.cancel` and `JobStore.note_progress`."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus, Progress
from packhorse.core.lifecycle import CancelAnswer, cancel
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import ProgressNote
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    OWNER_KINDS,
    TASK,
    new_job,
    rescue_of,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import given, limit_queue, limit_task, submit

#: How a claimed job reaches each status.
_AFTER_CLAIM = {
    JobStatus.COMPLETED: SettlementKind.COMPLETED,
    JobStatus.FAILED: SettlementKind.FAILED,
    JobStatus.TIMEOUT: SettlementKind.TIMEOUT,
    JobStatus.CANCELLED: SettlementKind.CANCELLED,
    JobStatus.DEAD: SettlementKind.DEAD,
}.items()

_statuses = pytest.mark.parametrize("status", JobStatus)


def bring_to(trial: Trial, status: JobStatus, job_id: str) -> None:
    """Put a new job into a status."""
    trial.submit(new_job(job_id, delay_us=SECOND_US if status is JobStatus.PENDING else 0))
    if status in (JobStatus.PENDING, JobStatus.QUEUED):
        return
    job = trial.claim_only()
    for reached, kind in _AFTER_CLAIM:
        if reached is status:
            trial.end(job, kind)
    assert trial.status(job_id) is status


class TestCancelling:
    """Finish a waiting job as cancelled, flag a running one."""

    @_statuses
    def test_the_answer_is_what_lifecycle_says(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        assert _cancel(trial, "job") is cancel(status)

    @pytest.mark.req("S1-45")
    @pytest.mark.parametrize(
        "status", [JobStatus.PENDING, JobStatus.QUEUED, JobStatus.FAILED, JobStatus.TIMEOUT]
    )
    def test_a_waiting_job_is_finished_as_cancelled_and_never_runs(
        self, trial: Trial, status: JobStatus
    ) -> None:
        bring_to(trial, status, "job")
        trial.advance_us(1)

        _cancel(trial, "job")

        record = trial.record("job")
        assert record.status is JobStatus.CANCELLED
        assert record.finished_us == record.updated_us == trial.now_us()
        assert (record.dead_reason, record.dead_letter) == (None, None)
        trial.advance_us(60 * SECOND_US)
        assert trial.claim() == ()

    def test_a_parked_job_can_be_cancelled(self, trial: Trial) -> None:
        trial.submit(new_job("parked", task="resize"))
        trial.renew(BEN, queues=("default",), tasks=(TASK,))
        trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=10))

        assert _cancel(trial, "parked") is CancelAnswer.CANCELLED
        assert trial.status("parked") is JobStatus.CANCELLED

    @pytest.mark.req("S1-45")
    def test_a_running_job_is_flagged_and_goes_on(self, trial: Trial) -> None:
        job = trial.take()

        assert _cancel(trial, job.id) is CancelAnswer.FLAGGED

        record = trial.record(job.id)
        assert record.status is JobStatus.PROCESSING
        assert record.cancel_requested
        assert record.finished_us is None
        assert _cancel(trial, job.id) is CancelAnswer.FLAGGED

    @pytest.mark.req("S1-45", "X-15")
    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_a_flag_wins_over_every_later_settlement(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        _cancel(trial, job.id)

        verdict = trial.end(job, kind)

        own = kind is SettlementKind.CANCELLED
        assert verdict is (Verdict.APPLIED if own else Verdict.CANCELLED)
        record = trial.record(job.id)
        assert record.status is JobStatus.CANCELLED
        assert record.result is None
        assert (record.dead_reason, record.dead_letter) == (None, None)
        assert record.finished_us == trial.now_us()

    def test_a_flag_wins_over_a_rescue(self, trial: Trial) -> None:
        job = trial.take()
        _cancel(trial, job.id)
        trial.let_lease_expire()

        assert trial.rescue(ANNA) == {job.id: Verdict.CANCELLED}
        assert trial.status(job.id) is JobStatus.CANCELLED

    @pytest.mark.req("S1-45")
    @pytest.mark.parametrize("flagged", [False, True])
    def test_a_job_whose_worker_is_gone_ends_at_once(self, trial: Trial, *, flagged: bool) -> None:
        job = trial.take()
        if flagged:
            _cancel(trial, job.id)
        trial.let_lease_expire()

        assert _cancel(trial, job.id) is CancelAnswer.CANCELLED

        record = trial.record(job.id)
        assert (record.status, record.finished_us) == (JobStatus.CANCELLED, trial.now_us())
        assert (record.counters.attempts, record.counters.crashes) == (1, 1)
        assert record.error == rescue_of(job).error
        (attempt,) = trial.history(job.id)
        assert (attempt.status, attempt.will_retry) == (JobStatus.CANCELLED, False)
        assert attempt.error == record.error
        assert trial.orphans(ANNA) == {}

    def test_a_job_held_too_long_ends_at_once_however_alive_its_worker_is(
        self, trial: Trial
    ) -> None:
        held, overdue = trial.take(new_job("a")), trial.take(new_job("b", timeout_us=1))
        trial.advance_us(31 * SECOND_US)
        trial.renew(ANNA)

        assert _cancel(trial, overdue.id) is CancelAnswer.CANCELLED
        assert _cancel(trial, held.id) is CancelAnswer.FLAGGED

    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_an_owner_that_lives_after_all_is_stale(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        trial.let_lease_expire()
        _cancel(trial, job.id)
        before = trial.picture(job.id)
        trial.renew(ANNA)

        assert trial.end(job, kind) is Verdict.STALE
        assert trial.picture(job.id) == before

    def test_what_a_lost_job_held_is_free_once_it_is_cancelled(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        limit_queue(trial, concurrency=1)
        submit(trial, "lost", "next", ordering_key="line")
        assert given(trial) == ["lost"]
        trial.let_lease_expire()
        assert given(trial, BEN) == []

        _cancel(trial, "lost")

        assert given(trial, BEN) == ["next"]

    @pytest.mark.req("S3-14")
    @pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD])
    def test_a_finished_job_is_left_as_it_is(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")
        before = trial.picture("job")
        trial.advance_us(1)

        assert _cancel(trial, "job") is CancelAnswer.FINISHED
        assert trial.picture("job") == before

    @pytest.mark.req("S3-14")
    def test_an_unknown_job_is_unknown(self, trial: Trial) -> None:
        assert _cancel(trial, "unknown") is CancelAnswer.UNKNOWN

    @pytest.mark.req("S3-39")
    def test_a_job_of_another_tenant_is_unknown_and_untouched(self, trial: Trial) -> None:
        trial.submit(new_job("theirs", tenant="acme"), new_job("nobodys"))
        before = trial.picture("theirs"), trial.picture("nobodys")

        assert _cancel(trial, "theirs", tenant="other") is CancelAnswer.UNKNOWN
        assert _cancel(trial, "theirs", tenant="") is CancelAnswer.UNKNOWN
        assert _cancel(trial, "nobodys", tenant="acme") is CancelAnswer.UNKNOWN
        assert (trial.picture("theirs"), trial.picture("nobodys")) == before

    def test_a_job_of_the_tenant_is_cancelled(self, trial: Trial) -> None:
        trial.submit(new_job("ours", tenant="acme"))

        assert _cancel(trial, "ours", tenant="acme") is CancelAnswer.CANCELLED

    @pytest.mark.req("S3-15")
    def test_other_jobs_go_on(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abc"))
        a, b = trial.claim(limit=2)

        _cancel(trial, "b")

        assert trial.end(a) is Verdict.APPLIED
        assert trial.end(b) is Verdict.CANCELLED
        assert [job.id for job in trial.claim()] == ["c"]

    def test_a_worker_can_read_which_of_its_jobs_are_to_be_cancelled(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abc"))
        trial.claim(ANNA, limit=2)
        trial.claim(BEN)
        assert _wanted(trial, ANNA) == set()

        _cancel(trial, "a")
        _cancel(trial, "c")

        assert (_wanted(trial, ANNA), _wanted(trial, BEN)) == ({"a"}, {"c"})

    def test_a_job_no_longer_held_is_not_read_as_to_be_cancelled(self, trial: Trial) -> None:
        job = trial.take()
        _cancel(trial, job.id)
        trial.end(job)

        assert _wanted(trial, ANNA) == set()
        assert _wanted(trial, "unknown") == set()


class TestProgress:
    """Keep the newest progress of each job whose fence is current; others are stale."""

    @pytest.mark.req("S2-2")
    def test_the_newest_progress_is_kept(self, trial: Trial) -> None:
        job = trial.take()
        newest = Progress(done=2, total=3, note="two of three")

        assert _note(trial, job, Progress(done=1)) is Verdict.APPLIED
        assert trial.record(job.id).progress == Progress(done=1)
        assert _note(trial, job, newest) is Verdict.APPLIED
        assert trial.record(job.id).progress == newest

    def test_numbers_of_progress_read_back_as_one_kind(self, trial: Trial) -> None:
        job = trial.take()

        _note(trial, job, Progress(done=1, total=2))

        progress = trial.record(job.id).progress
        assert progress is not None
        assert (type(progress.done), type(progress.total)) == (float, float)

    def test_of_several_notes_in_one_call_the_last_is_kept(self, trial: Trial) -> None:
        trial.submit(new_job("a"), new_job("b"))
        a, b = trial.claim()
        notes = [
            ProgressNote(a.id, a.fence, Progress(done=1)),
            ProgressNote(b.id, b.fence + 1, Progress(done=9)),
            ProgressNote(a.id, a.fence, Progress(done=2)),
        ]

        verdicts = trial.run(trial.store.jobs.note_progress(notes))

        assert verdicts == (Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED)
        assert trial.record("a").progress == Progress(done=2)
        assert trial.record("b").progress is None

    def test_no_notes_are_answered_with_nothing(self, trial: Trial) -> None:
        assert trial.run(trial.store.jobs.note_progress([])) == ()

    def test_progress_changes_nothing_else_that_matters(self, trial: Trial) -> None:
        job = trial.take()
        _note(trial, job, Progress(done=1))

        record = trial.record(job.id)
        assert (record.status, record.fence) == (JobStatus.PROCESSING, job.fence)
        assert trial.settle(settlement_of(SettlementKind.COMPLETED, job)) == (Verdict.APPLIED,)


def _cancel(trial: Trial, job_id: str, tenant: str | None = None) -> CancelAnswer:
    return trial.run(trial.store.jobs.cancel(job_id, tenant=tenant))


def _wanted(trial: Trial, worker: str) -> set[str]:
    wanted = trial.run(trial.store.leases.cancelled(worker))
    return set(wanted)


def _note(trial: Trial, job: Job, progress: Progress) -> Verdict:
    note = ProgressNote(job.id, job.fence, progress)
    (verdict,) = trial.run(trial.store.jobs.note_progress([note]))
    return verdict
