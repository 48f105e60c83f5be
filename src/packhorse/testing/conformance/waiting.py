# SPDX-License-Identifier: MIT
"""Jobs that wait for a signal: it makes them due, also while they are settled."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus, OnConflict, UniqueRule
from packhorse.core.policies.attachments import (
    Attachments,
)
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.attachments import DeliverAnswer
from packhorse.testing.conformance.samples import QUEUE, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import cancel, heard, redrive, submit

_DELIVERED: Final = DeliverAnswer.DELIVERED
_LONG_US: Final = 3600 * SECOND_US
_NUMBER: Final = 2**63 - 1  #: as large as a sender's may be


class TestWaiting:
    """A job that waits for a signal is due at once when one comes, also while it is settled."""

    def test_a_signal_makes_a_job_due_that_waits_for_one(self, trial: Trial) -> None:
        self._wait(trial, "a")
        assert (trial.status("a"), _of(trial, "a").waiting) == (JobStatus.PENDING, True)
        assert trial.claim() == ()

        assert _deliver(trial, "a", "n", b"1") is _DELIVERED

        assert trial.record("a").due_us == trial.now_us()
        assert [job.id for job in trial.claim()] == ["a"]
        assert not _of(trial, "a").waiting

    def test_without_a_signal_it_is_due_when_it_said(self, trial: Trial) -> None:
        self._wait(trial, "a")
        trial.advance_us(_LONG_US)

        assert [job.id for job in trial.claim()] == ["a"]

    def test_one_that_came_while_it_ran_is_not_lost(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        _deliver(trial, "a", "n", b"1")

        assert trial.settle(_waiting(job, seen=0)) == (Verdict.APPLIED,)

        assert trial.status("a") is JobStatus.QUEUED
        assert [one.id for one in trial.claim()] == ["a"]

    def test_one_that_it_has_seen_does_not_wake_it_again(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        _deliver(trial, "a", "n", b"1")

        trial.settle(_waiting(job, seen=1))

        assert trial.status("a") is JobStatus.PENDING
        _deliver(trial, "a", "other", b"2")
        assert [one.id for one in trial.claim()] == ["a"]

    def test_once_it_has_run_again_a_signal_leaves_it_where_it_waits(self, trial: Trial) -> None:
        self._wait(trial, "a")
        _deliver(trial, "a", "n", b"1")
        trial.end(trial.claim_only(), SettlementKind.SNOOZED)
        before = trial.record("a").due_us

        _deliver(trial, "a", "n", b"2")

        assert (trial.record("a").due_us, _of(trial, "a").waiting) == (before, False)

    def test_a_cancel_and_a_deadline_win_over_waiting(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        cancel(trial, "a")
        assert trial.settle(_waiting(job, seen=0)) == (Verdict.CANCELLED,)
        late = trial.take(new_job("b", deadline_us=trial.now_us() + SECOND_US))
        assert trial.settle(_waiting(late, seen=0)) == (Verdict.EXPIRED,)
        soon = trial.take(new_job("c", deadline_us=trial.now_us() + SECOND_US))
        _deliver(trial, "c", "n", b"1")
        assert trial.settle(_waiting(soon, seen=0)) == (Verdict.APPLIED,)
        assert trial.status("c") is JobStatus.QUEUED

    def test_settled_twice_it_waits_once(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        waiting = _waiting(job, seen=0)

        assert trial.settle(waiting, waiting) == (Verdict.APPLIED,) * 2
        _deliver(trial, "a", "n", b"1")
        trial.claim()
        assert trial.settle(waiting) == (Verdict.APPLIED,)  # as before; nothing changes
        assert trial.status("a") is JobStatus.PROCESSING

    def test_workers_are_woken_when_it_is_due(self, trial: Trial) -> None:
        self._wait(trial, "a")

        assert heard(
            trial, f"queue:{QUEUE}", lambda store: store.attachments.deliver("a", "n", b"1")
        )

    def test_jobs_with_keys_wait_and_wake_alike(self, trial: Trial) -> None:
        unique = UniqueRule("u", on_conflict=OnConflict.REJECT)
        for name, said in (("order", {"ordering_key": "k"}), ("unique", {"unique": unique})):
            self._wait(trial, name, **said)
            _deliver(trial, name, "n", b"1")
            (job,) = trial.claim()
            assert (job.id, trial.end(job)) == (name, Verdict.APPLIED)

    def test_however_a_signal_and_the_settlement_race_the_job_is_woken(self, trial: Trial) -> None:
        for turn in range(10):
            job = trial.take(new_job(f"job-{turn}"))

            async def race(job: Job = job) -> None:
                signal = trial.store.attachments.deliver(job.id, "n", b"1")
                settling = trial.store.jobs.settle([_waiting(job, seen=0)])
                await asyncio.gather(trial.arun(signal), trial.arun(settling))

            trial.play(race())
            (woken,) = trial.claim()
            assert (woken.id, trial.end(woken)) == (job.id, Verdict.APPLIED)

    def test_one_that_is_sent_again_by_its_number_is_one(self, trial: Trial) -> None:
        submit(trial, "a")
        submit(trial, "b")
        for number in (_NUMBER, 7, _NUMBER, 7, 0, 0):
            assert _deliver(trial, "a", "n", b"%d" % number, delivery=number) is _DELIVERED

        assert _deliver(trial, "b", "n", b"", delivery=_NUMBER) is _DELIVERED
        kept = _of(trial, "a")
        assert kept.signals == {"n": (b"%d" % _NUMBER, b"7", b"0", b"0")}
        assert (kept.deliveries, kept.delivered) == ((7, _NUMBER), 4)
        assert _of(trial, "b").delivered == 1

    def test_one_that_was_kept_is_told_so_again_when_the_job_is_over(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        _deliver(trial, "a", "n", b"1", delivery=_NUMBER)
        trial.end(job)

        again = _deliver(trial, "a", "n", b"1", delivery=_NUMBER)

        assert (again, _of(trial, "a").delivered) == (_DELIVERED, 1)
        assert _deliver(trial, "a", "n", b"1", delivery=8) is DeliverAnswer.FINISHED
        redrive(trial, "a")
        assert _of(trial, "a") == Attachments()
        assert _deliver(trial, "a", "n", b"1", delivery=_NUMBER) is _DELIVERED
        assert _of(trial, "a").delivered == 1

    def test_one_that_was_kept_does_not_wake_the_job_again(self, trial: Trial) -> None:
        job = trial.take(new_job("a"))
        _deliver(trial, "a", "n", b"1", delivery=_NUMBER)
        trial.settle(_waiting(job, seen=1))

        _deliver(trial, "a", "n", b"1", delivery=_NUMBER)

        assert (_of(trial, "a").waiting, trial.claim()) == (True, ())

    def _wait(self, trial: Trial, name: str, **said: object) -> None:
        job = trial.take(new_job(name, **said))
        assert trial.settle(_waiting(job, seen=0)) == (Verdict.APPLIED,)


def _waiting(job: Job, *, seen: int) -> Settlement:
    """Return the settlement of an attempt that waits for a signal, for an hour at most."""
    settled = settlement_of(SettlementKind.SNOOZED, job)
    return msgspec.structs.replace(settled, delay_us=_LONG_US, snoozes=0, waits=seen)


def _deliver(
    trial: Trial, job_id: str, name: str, value: bytes, *, delivery: int = 0
) -> DeliverAnswer:
    return trial.run(trial.store.attachments.deliver(job_id, name, value, delivery=delivery))


def _of(trial: Trial, job_id: str) -> Attachments:
    found = trial.run(trial.store.attachments.attachments(job_id))
    assert found is not None
    return found
