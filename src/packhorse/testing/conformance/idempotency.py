# SPDX-License-Identifier: MIT
"""One job for one idempotency key, and its result as long as the key's window lasts."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import IdempotencyRule, JobStatus, NewJob
from packhorse.core.policies.retention import Retention
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import IdempotencyMismatch, QueueClosed
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter, RedriveAnswer
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import redrive, submit

_WINDOW_US: Final = 60 * SECOND_US
_SHORT: Final = Retention(finished_us=SECOND_US, results_us=SECOND_US, dead_us=SECOND_US)


class TestIdempotency:
    """A submit with a key that a job holds is answered with that job."""

    @pytest.mark.req("S0-18")
    @pytest.mark.parametrize("stage", ["waits", "queued", "runs", "failed"])
    def test_a_second_submit_of_a_key_is_the_first_job(self, trial: Trial, stage: str) -> None:
        submit(trial, "first", idempotency=_same(), delay_us=SECOND_US if stage == "waits" else 0)
        if stage in ("runs", "failed"):
            job = trial.claim_only()
            if stage == "failed":
                trial.end(job, SettlementKind.FAILED)
        before = trial.picture("first")

        (answer,) = submit(trial, "second", idempotency=_same())

        assert (answer.job_id, answer.deduplicated) == ("first", True)
        assert answer.status is trial.status("first")
        assert trial.search() == ["first"]
        assert trial.picture("first") == before

    @pytest.mark.req("S0-17")
    def test_a_completed_job_and_its_result_answer_until_the_window_ends(
        self, trial: Trial
    ) -> None:
        job = trial.take(new_job("first", idempotency=_same()))
        trial.end(job, retention=_SHORT)
        trial.advance_us(_WINDOW_US - 1)
        _prune(trial)

        (answer,) = submit(trial, "second", idempotency=_same())
        assert (answer.job_id, answer.status) == ("first", JobStatus.COMPLETED)
        assert trial.record("first").result is not None
        trial.advance_us(1)
        _prune(trial)
        (answer,) = submit(trial, "third", idempotency=_same())

        assert (answer.job_id, answer.deduplicated) == ("third", False)
        assert trial.find("first") is None

    @pytest.mark.req("S0-19")
    def test_a_worker_lost_before_it_settled_leaves_one_job_of_the_key_and_one_result(
        self, trial: Trial
    ) -> None:
        lost = trial.take(new_job("first", idempotency=_same()), worker="lost")
        trial.let_lease_expire()
        (while_lost,) = submit(trial, "second", idempotency=_same())
        assert trial.rescue("lost") == {"first": Verdict.APPLIED}
        trial.advance_us(2 * SECOND_US)
        again = trial.claim_any()
        late = trial.end(lost)
        assert trial.end(again) is Verdict.APPLIED

        (afterwards,) = submit(trial, "third", idempotency=_same())

        assert [while_lost.job_id, afterwards.job_id] == ["first", "first"]
        assert late is Verdict.STALE
        assert afterwards.status is JobStatus.COMPLETED
        assert trial.record("first").result is not None
        assert trial.search() == ["first"]

    def test_a_result_kept_longer_than_the_window_outlasts_the_key(self, trial: Trial) -> None:
        trial.finish(new_job("first", idempotency=_same()))
        trial.advance_us(_WINDOW_US)
        _prune(trial)

        (answer,) = submit(trial, "second", idempotency=_same())

        assert not answer.deduplicated
        assert trial.record("first").result is not None

    def test_an_unfinished_job_holds_its_key_beyond_the_window(self, trial: Trial) -> None:
        submit(trial, "first", idempotency=_same())
        trial.advance_us(2 * _WINDOW_US)

        (answer,) = submit(trial, "second", idempotency=_same())

        assert answer.job_id == "first"

    @pytest.mark.req("S0-20")
    @pytest.mark.parametrize("kind", [SettlementKind.DEAD, SettlementKind.CANCELLED])
    def test_a_job_that_was_given_up_does_not_hold_its_key(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        trial.finish(new_job("first", idempotency=_same()), kind)

        (answer,) = submit(trial, "second", idempotency=_same())

        assert not answer.deduplicated

    def test_the_same_key_with_another_payload_is_a_mistake_and_stores_nothing(
        self, trial: Trial
    ) -> None:
        submit(trial, "first", idempotency=_same())

        with pytest.raises(IdempotencyMismatch) as refused:
            trial.submit(new_job("fine"), new_job("second", idempotency=_same(digest="other")))

        assert refused.value.job_id == "first"
        assert trial.search() == ["first"]

    def test_digests_that_were_made_in_different_ways_are_not_compared(self, trial: Trial) -> None:
        submit(trial, "first", idempotency=_same(digest="d"))

        (answer,) = submit(trial, "second", idempotency=_same(digest="2:d"))
        assert (answer.job_id, answer.deduplicated) == ("first", True)

        submit(trial, "third", idempotency=_same("other", digest="2:d"))
        with pytest.raises(IdempotencyMismatch):
            submit(trial, "fourth", idempotency=_same("other", digest="2:e"))

    def test_keys_of_other_tenants_and_tasks_are_other_keys(self, trial: Trial) -> None:
        answers = trial.submit(
            new_job("a", idempotency=_same(), tenant="a"),
            new_job("b", idempotency=_same(), tenant="b"),
            new_job("c", idempotency=_same(), tenant="a", task="resize"),
        )

        assert not any(answer.deduplicated for answer in answers)

    def test_the_same_key_in_another_queue_is_the_same(self, trial: Trial) -> None:
        submit(trial, "first", idempotency=_same())

        (answer,) = submit(trial, "second", idempotency=_same(), queue="other")

        assert answer.job_id == "first"

    def test_each_of_a_bulk_is_answered_for_itself(self, trial: Trial) -> None:
        submit(trial, "known", idempotency=_same("k1"))

        answers = trial.submit(
            new_job("plain"),
            new_job("again", idempotency=_same("k1")),
            new_job("new", idempotency=_same("k2")),
            new_job("twice", idempotency=_same("k2")),
        )

        found = [(answer.job_id, answer.deduplicated) for answer in answers]
        assert found == [("plain", False), ("known", True), ("new", False), ("new", True)]

    def test_each_of_a_bulk_holds_its_key(self, trial: Trial) -> None:
        trial.submit(*[new_job(name, idempotency=_same(name)) for name in ("a", "b", "c")])

        answers = trial.submit(*[new_job(f"{key}2", idempotency=_same(key)) for key in "abc"])

        assert [(one.job_id, one.deduplicated) for one in answers] == [
            ("a", True),
            ("b", True),
            ("c", True),
        ]

    def test_the_same_key_with_another_payload_in_one_call_is_a_mistake(self, trial: Trial) -> None:
        with pytest.raises(IdempotencyMismatch):
            trial.submit(
                new_job("c", idempotency=_same()), new_job("d", idempotency=_same(digest="e"))
            )

        assert trial.search() == []

    def test_a_removed_job_does_not_hold_its_key(self, trial: Trial) -> None:
        trial.finish(new_job("a", idempotency=_same()))
        trial.run(trial.store.jobs.delete(JobFilter(), limit=1))

        (answer,) = submit(trial, "b", idempotency=_same(digest="another"))

        assert not answer.deduplicated

    def test_a_redrive_is_refused_where_the_key_has_a_new_holder(self, trial: Trial) -> None:
        trial.finish(new_job("old", idempotency=_same()), SettlementKind.DEAD)
        trial.finish(new_job("new", idempotency=_same()))

        assert redrive(trial, "old") is RedriveAnswer.CONFLICT
        trial.advance_us(_WINDOW_US)
        assert redrive(trial, "old") is RedriveAnswer.REDRIVEN

    def test_a_refused_submit_takes_no_key(self, trial: Trial) -> None:
        trial.run(trial.store.queues.close_queue("closed", closed=True))

        with pytest.raises(QueueClosed):
            trial.submit(new_job("a", idempotency=_same()), new_job("b", queue="closed"))
        (answer,) = submit(trial, "c", idempotency=_same(digest="another"))

        assert (answer.job_id, answer.deduplicated) == ("c", False)

    def test_beside_submits_that_are_rolled_back_one_is_stored_once(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            trial.run(trial.store.queues.close_queue("closed", closed=True))
            stores = [trial.elsewhere() for _ in range(4)]
            refused = new_job("refused", queue="closed")
            calls = [
                [new_job(f"job-{number}", idempotency=_same()), *([refused] if number % 2 else [])]
                for number in range(4)
            ]

            answers = at_once(
                *(partial(_try, store, call) for store, call in zip(stores, calls, strict=True))
            )

            (stored,) = trial.search()
            assert answers[1::2] == [None, None]
            assert set(answers[::2]) == {stored}
            assert stored in ("job-0", "job-2")


def _same(key: str = "k", digest: str = "d") -> IdempotencyRule:
    return IdempotencyRule(key, digest, _WINDOW_US)


def _prune(trial: Trial) -> None:
    trial.run(trial.store.upkeep.prune(limit=10))


def _try(store: Store, jobs: list[NewJob]) -> str | None:
    """Return the job that answers for the first of these; None if the submit is refused."""
    try:
        return store.run(store.jobs.submit(jobs))[0].job_id
    except QueueClosed:
        return None
