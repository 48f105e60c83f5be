# SPDX-License-Identifier: MIT
"""`max_depth`: a full queue refuses, or drops the least urgent; free room wakes producers."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, IdempotencyRule, JobStatus, NewJob, Priority, UniqueRule
from packhorse.core.policies.depth import OnFull
from packhorse.core.settlement import SettlementKind
from packhorse.errors import IdempotencyMismatch, PayloadError, QueueFull
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, QueueSettings
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, TIMEOUT_US, new_job
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import SILENCE_S, given, heard, limit_queue, submit

_ROOM: Final = f"room:{QUEUE}"
_LEAST: Final = Priority.BACKGROUND
_CLAIM: Final = ClaimRequest(ANNA, (QUEUE,), (TASK,), 1, TIMEOUT_US)

_refusing = pytest.mark.parametrize("on_full", ["reject", "wait"])
#: Some stores handle jobs with keys on another path.
_keyed = pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])


class TestFullQueues:
    """A submit that would exceed the depth is refused as a whole."""

    @pytest.mark.req("S2-15")
    @_keyed
    @_refusing
    def test_a_full_queue_refuses_the_whole_submit_with_depth_and_limit(
        self, trial: Trial, on_full: OnFull, *, keyed: bool
    ) -> None:
        limit_queue(trial, max_depth=3, on_full=on_full)
        submit(trial, "a")
        submit(trial, "b", delay_us=SECOND_US)

        with pytest.raises(QueueFull) as refused:
            trial.submit(new_job("elsewhere", queue="other"), *_jobs("c", "d", keyed=keyed))

        assert (refused.value.queue, refused.value.depth, refused.value.limit) == (QUEUE, 2, 3)
        assert sorted(trial.search()) == ["a", "b"]
        trial.submit(*_jobs("c", keyed=keyed))

    @_keyed
    def test_depth_is_told_as_it_was_before_the_call(self, trial: Trial, *, keyed: bool) -> None:
        limit_queue(trial, max_depth=2)

        with pytest.raises(QueueFull) as refused:
            trial.submit(*_jobs("a", "b", "c", keyed=keyed))

        assert (refused.value.depth, refused.value.limit) == (0, 2)
        assert trial.search() == []

    def test_running_and_finished_jobs_do_not_count(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        trial.finish(new_job("finished"))
        trial.take(new_job("running"))

        submit(trial, "waits")
        with pytest.raises(QueueFull):
            submit(trial, "one too many")

    @_keyed
    def test_what_is_there_already_needs_no_room(self, trial: Trial, *, keyed: bool) -> None:
        limit_queue(trial, max_depth=1)
        trial.submit(*_jobs("a", keyed=keyed))

        (again,) = trial.submit(*_jobs("a", keyed=keyed))

        assert again.deduplicated

    def test_a_job_that_another_answers_for_needs_no_room(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        rules = {"unique": UniqueRule("k"), "idempotency": _same()}
        submit(trial, "holder", **rules)

        by_unique, by_idempotency = trial.submit(
            new_job("b", unique=rules["unique"]), new_job("c", idempotency=rules["idempotency"])
        )

        assert (by_unique.job_id, by_idempotency.job_id) == ("holder", "holder")

    def test_an_id_twice_in_one_call_needs_room_once(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)

        assert len(submit(trial, "a", "a")) == 2

    def test_payload_and_keys_are_judged_before_depth(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        submit(trial, "a", idempotency=_same())

        with pytest.raises(PayloadError):
            submit(trial, "b", payload=b"\xff")
        with pytest.raises(IdempotencyMismatch):
            submit(trial, "c", idempotency=_same(digest="another"))

    def test_a_retry_takes_a_queue_over_its_limit_and_only_submits_wait(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        job = trial.take(new_job("a"))
        submit(trial, "b")

        trial.end(job, SettlementKind.FAILED)

        assert _depth(trial) == 2

    def test_a_redrive_needs_no_room(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        trial.finish(new_job("a"), SettlementKind.DEAD)
        submit(trial, "b")

        trial.run(trial.store.jobs.redrive(["a"]))

        assert _depth(trial) == 2

    def test_a_limit_changed_at_run_time_holds_for_the_next_submit(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        submit(trial, "a")
        limit_queue(trial, max_depth=2)
        submit(trial, "b")
        limit_queue(trial, max_depth=1)

        with pytest.raises(QueueFull):
            submit(trial, "c")
        limit_queue(trial)
        submit(trial, "c")

    @_keyed
    def test_submits_at_once_never_exceed_the_limit(self, trials: Trials, *, keyed: bool) -> None:
        with trials.fresh() as trial:
            limit_queue(trial, max_depth=10)
            stores = [trial.elsewhere() for _ in range(4)]

            answers = at_once(
                *(
                    partial(_submit_all, store, f"{number}-", keyed=keyed)
                    for number, store in enumerate(stores)
                )
            )

            assert sum(answers) == 10
            assert _depth(trial) == 10

    # ------------------------------------------------------------------------------------ room

    @_refusing
    def test_a_claim_makes_room_and_wakes_those_who_wait_for_it(
        self, trial: Trial, on_full: OnFull
    ) -> None:
        limit_queue(trial, max_depth=1, on_full=on_full)
        submit(trial, "a")
        trial.renew()

        assert heard(trial, _ROOM, lambda store: store.jobs.claim(_CLAIM))
        submit(trial, "b")

    def test_a_cancel_makes_room(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        submit(trial, "a")

        assert heard(trial, _ROOM, lambda store: store.jobs.cancel("a"))

    def test_an_expiry_makes_room(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        submit(trial, "a", deadline_us=trial.now_us() + 1)
        trial.advance_us(1)

        assert heard(trial, _ROOM, lambda store: store.upkeep.expire(limit=1))

    def test_a_raised_limit_makes_room(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        raised = QueueSettings(QUEUE, max_depth=2)

        assert heard(trial, _ROOM, lambda store: store.queues.override(QUEUE, raised))

    def test_room_in_a_queue_without_a_limit_wakes_no_listener(self, trial: Trial) -> None:
        submit(trial, "a")
        trial.renew()

        assert not heard(trial, _ROOM, lambda store: store.jobs.claim(_CLAIM), SILENCE_S)


class TestDropping:
    """A full queue with `on_full=drop` drops its least urgent jobs, the latest first."""

    @pytest.mark.req("S2-17")
    @_keyed
    def test_the_least_urgent_of_old_and_new_go(self, trial: Trial, *, keyed: bool) -> None:
        limit_queue(trial, max_depth=3, on_full="drop", dead_letter="shelf")
        submit(trial, "low", priority=_LEAST)
        submit(trial, "normal")
        submit(trial, "later", delay_us=1)

        (high, low) = _jobs("high", "low2", keyed=keyed)
        answers = trial.submit(_with(high, Priority.HIGH), _with(low, _LEAST))

        assert [answer.status for answer in answers] == [JobStatus.QUEUED, JobStatus.DEAD]
        assert not any(answer.deduplicated for answer in answers)
        assert [sorted(answer.shed) for answer in answers] == [[], ["low", "low2"]]
        for name in ("low", "low2"):
            record = trial.record(name)
            assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.SHED)
            assert record.dead_letter == "shelf"
        assert _depth(trial) == 3
        assert given(trial) == ["high", "normal"]

    def test_of_equals_the_latest_goes(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=2, on_full="drop")

        submit(trial, *"abcd")

        dead = [trial.status(name) is JobStatus.DEAD for name in "abcd"]
        assert dead == [False, False, True, True]

    def test_a_running_job_is_never_dropped(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1, on_full="drop")
        trial.take(new_job("running", priority=_LEAST))

        submit(trial, "a", "b")

        assert trial.status("running") is JobStatus.PROCESSING
        assert trial.status("b") is JobStatus.DEAD

    def test_a_job_that_is_dropped_at_once_takes_no_turn_of_its_tenant(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=2, on_full="drop")
        submit(trial, "u1", tenant="u")
        submit(trial, "t1", tenant="t")
        submit(trial, *(f"dropped-{number}" for number in range(20)), tenant="t")
        trial.claim()

        submit(trial, "t2", tenant="t")
        submit(trial, "u2", tenant="u")

        assert given(trial) == ["t2", "u2"]

    def test_a_job_that_is_dropped_for_the_first_of_a_tenant_is_not_given_away(
        self, trial: Trial
    ) -> None:
        """The first job with a tenant gives every job of its call a pass."""
        limit_queue(trial, max_depth=2, on_full="drop")
        plain = [new_job(name) for name in ("a", "b")]

        trial.submit(*plain, new_job("urgent", priority=0, tenant="acme"))

        assert trial.status("b") is JobStatus.DEAD
        assert given(trial) == ["urgent", "a"]

    def test_a_dropped_job_gives_its_keys_back(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1, on_full="drop")
        submit(trial, "a", unique=UniqueRule("k"), idempotency=_same(), priority=_LEAST)
        submit(trial, "b")
        assert trial.status("a") is JobStatus.DEAD

        (answer,) = submit(trial, "c", unique=UniqueRule("k"), idempotency=_same(), queue="other")

        assert not answer.deduplicated

    def test_a_dropped_job_wakes_its_waiters(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1, on_full="drop")
        submit(trial, "a", priority=_LEAST)
        trial.run(trial.store.jobs.await_finish("a"))

        assert heard(trial, "job:a", lambda store: store.jobs.submit([new_job("b")]))

    def test_a_dropped_job_can_be_redriven(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1, on_full="drop")
        submit(trial, "a", "b")

        trial.run(trial.store.jobs.redrive(["b"]))

        assert trial.status("b") is JobStatus.QUEUED


def _same(digest: str = "d") -> IdempotencyRule:
    return IdempotencyRule("k", digest, 60 * SECOND_US)


def _jobs(*names: str, keyed: bool) -> list[NewJob]:
    """Return jobs of these names, each with its own key if there are keys."""
    return [new_job(name, unique=UniqueRule(name) if keyed else None) for name in names]


def _with(job: NewJob, priority: Priority) -> NewJob:
    return new_job(job.id, unique=job.unique, priority=priority)


def _submit_all(store: Store, prefix: str, *, keyed: bool) -> int:
    """Submit five jobs one by one; return how many were accepted."""
    stored = 0
    for job in _jobs(*(f"{prefix}{number}" for number in range(5)), keyed=keyed):
        stored += _let_in(store, job)
    return stored


def _let_in(store: Store, job: NewJob) -> bool:
    try:
        store.run(store.jobs.submit([job]))
    except QueueFull:
        return False
    return True


def _depth(trial: Trial, queue: str = QUEUE) -> Any:
    return trial.run(trial.store.queues.depth(queue))
