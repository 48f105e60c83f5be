# SPDX-License-Identifier: MIT
"""`InspectionStore.history`: one line per ended attempt, written by `JobStore.settle`."""

from __future__ import annotations

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import AttemptRecord, JobStatus
from packhorse.core.lifecycle import JobRules
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    EXCEPTION,
    OWNER_KINDS,
    TIMEOUT,
    new_job,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial

#: A long history keeps this many lines at each end.
_KEPT = 25

_LINES = (
    (SettlementKind.COMPLETED, JobStatus.COMPLETED, False, None),
    (SettlementKind.FAILED, JobStatus.FAILED, True, EXCEPTION),
    (SettlementKind.TIMEOUT, JobStatus.TIMEOUT, True, TIMEOUT),
    (SettlementKind.SNOOZED, JobStatus.PENDING, True, None),
    (SettlementKind.CANCELLED, JobStatus.CANCELLED, False, None),
    (SettlementKind.RELEASED, JobStatus.QUEUED, True, None),
)


class TestHistories:
    """One record per ended attempt, in order: the first and the last 25."""

    def test_a_job_that_never_ran_has_no_history(self, trial: Trial) -> None:
        trial.submit(new_job("new"))

        assert trial.history("new") == ()
        assert trial.history("unknown") == ()

    def test_a_running_attempt_is_not_history_yet(self, trial: Trial) -> None:
        job = trial.take()

        assert trial.history(job.id) == ()

    @pytest.mark.req("S1-38")
    @pytest.mark.parametrize(
        ("kind", "status", "will_retry", "error"), _LINES, ids=[line[0].name for line in _LINES]
    )
    def test_an_ended_attempt_is_one_line(
        self,
        trial: Trial,
        kind: SettlementKind,
        status: JobStatus,
        error: object,
        *,
        will_retry: bool,
    ) -> None:
        started_us = trial.now_us()
        job = trial.take(worker=BEN)
        trial.advance_us(SECOND_US)
        trial.end(job, kind)

        (line,) = trial.history(job.id)
        assert (line.attempt, line.status, line.will_retry) == (1, status, will_retry)
        assert (line.started_us, line.finished_us) == (started_us, trial.now_us())
        assert (line.worker, line.error) == (BEN, error)

    @pytest.mark.req("S1-39")
    def test_an_attempt_that_gave_its_job_up_is_not_retried(self, trial: Trial) -> None:
        job = trial.finish(new_job(), SettlementKind.DEAD)

        (line,) = trial.history(job.id)
        assert not line.will_retry
        assert line.error == EXCEPTION

    @pytest.mark.req("S1-39")
    def test_a_retry_that_the_deadline_forbids_is_not_announced(self, trial: Trial) -> None:
        job = trial.take(new_job(deadline_us=trial.now_us() + 1))

        assert trial.end(job, SettlementKind.FAILED) is Verdict.EXPIRED

        (line,) = trial.history(job.id)
        assert not line.will_retry
        assert line.error == EXCEPTION

    @pytest.mark.req("S1-39")
    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_an_attempt_whose_job_was_cancelled_is_not_retried(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.cancel(job.id))
        trial.end(job, kind)

        (line,) = trial.history(job.id)
        assert (line.status, line.will_retry) == (JobStatus.CANCELLED, False)

    def test_a_lost_attempt_is_a_failed_line_that_says_so(self, trial: Trial) -> None:
        started_us = trial.now_us()
        job = trial.take(worker=ANNA)
        trial.let_lease_expire()
        trial.rescue(ANNA)

        (line,) = trial.history(job.id)
        assert (line.attempt, line.status, line.will_retry) == (1, JobStatus.FAILED, True)
        assert line.error is not None
        assert line.error.code == "WORKER_LOST"
        assert (line.started_us, line.finished_us) == (started_us, trial.now_us())
        assert line.worker == ANNA

    def test_a_settlement_that_ended_no_execution_adds_no_line(self, trial: Trial) -> None:
        job = trial.take()
        released = settlement_of(SettlementKind.RELEASED, job)
        trial.settle(msgspec.structs.replace(released, ended=False))

        assert trial.history(job.id) == ()

    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_a_repeated_settlement_adds_no_second_line(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        trial.end(job, kind)
        trial.end(job, kind)

        assert len(trial.history(job.id)) == 1

    @pytest.mark.req("S1-37", "S1-38")
    def test_attempts_are_numbered_from_one_in_order(self, trial: Trial) -> None:
        trial.submit(new_job("tried"))
        kinds = (SettlementKind.FAILED, SettlementKind.RELEASED, SettlementKind.COMPLETED)
        for kind in kinds:
            trial.end(trial.claim_only(), kind)
            trial.advance_us(60 * SECOND_US)

        history = trial.history("tried")
        assert [line.attempt for line in history] == [1, 2, 3]
        assert [line.status for line in history] == [
            *(JobStatus.FAILED, JobStatus.QUEUED, JobStatus.COMPLETED)
        ]
        assert trial.record("tried").counters.attempts == 3

    def test_look_ahead_given_back_takes_no_number(self, trial: Trial) -> None:
        trial.submit(new_job("tried"))
        released = settlement_of(SettlementKind.RELEASED, trial.claim_only())
        trial.settle(msgspec.structs.replace(released, ended=False))

        trial.end(trial.claim_only())

        assert [line.attempt for line in trial.history("tried")] == [1]

    @pytest.mark.parametrize("extra", [0, 1, 12])
    def test_of_a_long_history_the_first_and_last_are_kept(self, trial: Trial, extra: int) -> None:
        attempts = 2 * _KEPT + extra
        for line in _long_history(trial, "tried", attempts):
            assert line.status is JobStatus.QUEUED

        numbers = [line.attempt for line in trial.history("tried")]
        assert numbers[:_KEPT] == list(range(1, _KEPT + 1))
        assert numbers[_KEPT:] == list(range(attempts - _KEPT + 1, attempts + 1))
        assert trial.record("tried").counters.attempts == attempts

    def test_histories_of_different_jobs_are_apart(self, trial: Trial) -> None:
        trial.finish(new_job("a"))
        trial.finish(new_job("b"), SettlementKind.DEAD)

        assert [line.status for line in trial.history("a")] == [JobStatus.COMPLETED]
        assert [line.will_retry for line in trial.history("b")] == [False]
        assert trial.history("b")[0].error == EXCEPTION

    def test_a_redriven_job_goes_on_with_its_history(self, trial: Trial) -> None:
        trial.finish(new_job("again"), SettlementKind.DEAD)
        trial.run(trial.store.jobs.redrive(["again"]))
        job = trial.claim_only()

        assert job.attempt == 2
        trial.end(job, retry=JobRules().retry)
        assert [line.attempt for line in trial.history("again")] == [1, 2]


def _long_history(trial: Trial, job_id: str, attempts: int) -> tuple[AttemptRecord, ...]:
    trial.submit(new_job(job_id))
    for _ in range(attempts):
        trial.end(trial.claim_only(), SettlementKind.RELEASED)
    return trial.history(job_id)
