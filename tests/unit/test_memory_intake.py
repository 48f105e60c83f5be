# SPDX-License-Identifier: MIT
"""Submitting to queues that are closed, full or shedding, in the reference store."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.clock import SECOND_US
from packhorse.errors import IdempotencyMismatch, QueueClosed, QueueFull
from packhorse.job import DeadReason, IdempotencyRule, JobStatus, Priority, UniqueRule
from packhorse.policies.retention import Retention
from packhorse.settlement import SettlementKind
from packhorse.stores.requests import ClaimRequest, JobFilter, QueueSettings
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial, state_of, wakes_of

ROOM = f"room:{QUEUE}"


def bounded(**settings: Any) -> Trial:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, **settings))
    return trial


def close(trial: Trial, *, closed: bool = True) -> bool:
    return trial.run(trial.store.queues.close_queue(QUEUE, closed=closed))


# ---------------------------------------------------------------------------------------- closed


def test_a_closed_queue_refuses_new_jobs_and_goes_on_with_the_rest() -> None:
    trial = bounded()
    trial.submit(new_job("old"))

    assert close(trial)
    assert not close(trial)

    with pytest.raises(QueueClosed) as refused:
        trial.submit(new_job("fine", queue="other"), new_job("new"))
    assert refused.value.queue == QUEUE
    assert trial.search() == ["old"]
    assert trial.submit(new_job("old"))[0].deduplicated
    assert trial.claim_only().id == "old"
    assert close(trial, closed=False)
    assert not trial.submit(new_job("new"))[0].deduplicated


# ----------------------------------------------------------------------------------------- depth


@pytest.mark.req("S2-15")
@pytest.mark.parametrize("on_full", ["reject", "wait"])
def test_a_full_queue_refuses_the_whole_submit_with_depth_and_limit(on_full: str) -> None:
    trial = bounded(max_depth=3, on_full=on_full)
    trial.submit(new_job("a"), new_job("b", delay_us=SECOND_US))

    with pytest.raises(QueueFull) as refused:
        trial.submit(new_job("elsewhere", queue="other"), new_job("c"), new_job("d"))

    assert (refused.value.queue, refused.value.depth, refused.value.limit) == (QUEUE, 2, 3)
    assert sorted(trial.search()) == ["a", "b"]
    trial.submit(new_job("c"))


def test_what_is_deduplicated_needs_no_room() -> None:
    trial = bounded(max_depth=1)
    unique = UniqueRule("k")
    trial.submit(new_job("a", unique=unique))

    assert trial.submit(new_job("a"), new_job("b", unique=unique))[1].job_id == "a"


def test_a_retry_takes_a_queue_over_its_limit_and_only_submits_wait() -> None:
    trial = bounded(max_depth=1)
    job = trial.take(new_job("a"))
    trial.submit(new_job("b"))

    trial.end(job, SettlementKind.FAILED)

    assert trial.run(trial.store.queues.depth(QUEUE)) == 2


def test_a_claim_makes_room_and_wakes_those_who_wait_for_it() -> None:
    trial = bounded(max_depth=1)
    trial.submit(new_job("a"))
    trial.renew()

    assert ROOM in _wakes_of_claim(trial)


def test_a_cancel_and_an_expiry_make_room_too() -> None:
    trial = bounded(max_depth=2)
    trial.submit(new_job("a"), new_job("b", deadline_us=trial.now_us() + 1))
    trial.advance_us(1)

    assert ROOM in wakes_of(trial, trial.store.jobs.cancel("a"))
    assert ROOM in wakes_of(trial, trial.store.upkeep.expire(limit=1))


def test_nobody_is_woken_for_room_in_a_queue_without_a_limit() -> None:
    trial = memory_trial()
    trial.submit(new_job("a"))
    trial.renew()

    assert _wakes_of_claim(trial) == set()


def _wakes_of_claim(trial: Trial) -> set[str]:
    request = ClaimRequest("anna", (QUEUE,), ("send_email",), 1, SECOND_US)
    return wakes_of(trial, trial.store.jobs.claim(request))


# ------------------------------------------------------------------------------------------ drop


@pytest.mark.req("S2-17")
def test_a_full_queue_that_drops_gives_up_the_least_urgent_of_old_and_new() -> None:
    trial = bounded(max_depth=3, on_full="drop", dead_letter="shelf")
    low, high = Priority.BACKGROUND, Priority.HIGH
    trial.submit(new_job("low", priority=low), new_job("normal"), new_job("later", delay_us=1))

    answers = trial.submit(new_job("high", priority=high), new_job("low2", priority=low))

    assert [answer.status for answer in answers] == [JobStatus.QUEUED, JobStatus.DEAD]
    assert not any(answer.deduplicated for answer in answers)
    for name in ("low", "low2"):
        record = trial.record(name)
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.SHED)
        assert record.dead_letter == "shelf"
    assert trial.run(trial.store.queues.depth(QUEUE)) == 3
    assert [job.id for job in trial.claim()] == ["high", "normal"]


def test_of_equals_the_latest_goes() -> None:
    trial = bounded(max_depth=2, on_full="drop")

    trial.submit(*(new_job(name) for name in "abcd"))

    assert [trial.status(name) is JobStatus.DEAD for name in "abcd"] == [False, False, True, True]


def test_a_job_that_is_shed_at_once_takes_no_turn_of_its_tenant() -> None:
    trial = bounded(max_depth=1, on_full="drop", fair=True)
    trial.submit(new_job("a", tenant="t"))

    trial.submit(new_job("shed", tenant="t"))

    assert state_of(trial).jobs["shed"].place is None
    assert state_of(trial).last_passes[QUEUE, Priority.NORMAL] == {"t": 0}


# ----------------------------------------------------------------------------------- idempotency


def same(key: str = "k", digest: str = "d", window_us: int = 60 * SECOND_US) -> IdempotencyRule:
    return IdempotencyRule(key, digest, window_us)


@pytest.mark.req("S0-18")
@pytest.mark.parametrize("delay_us", [0, SECOND_US])
def test_a_second_submit_of_a_key_is_the_first_job(delay_us: int) -> None:
    trial = memory_trial()
    trial.submit(new_job("first", idempotency=same(), delay_us=delay_us))

    (answer,) = trial.submit(new_job("second", idempotency=same()))

    assert (answer.job_id, answer.deduplicated) == ("first", True)
    assert trial.search() == ["first"]


@pytest.mark.req("S0-17", "S0-19")
def test_a_completed_job_and_its_result_answer_until_the_window_ends() -> None:
    trial = memory_trial()
    job = trial.take(new_job("first", idempotency=same()))
    trial.end(job, retention=_short())
    trial.advance_us(60 * SECOND_US - 1)
    trial.run(trial.store.upkeep.prune(limit=10))

    (answer,) = trial.submit(new_job("second", idempotency=same()))
    assert (answer.job_id, answer.status) == ("first", JobStatus.COMPLETED)
    assert trial.record("first").result is not None
    trial.advance_us(1)
    trial.run(trial.store.upkeep.prune(limit=10))
    (answer,) = trial.submit(new_job("third", idempotency=same()))

    assert (answer.job_id, answer.deduplicated) == ("third", False)
    assert trial.find("first") is None


def _short() -> Retention:
    return Retention(finished_us=SECOND_US, results_us=SECOND_US, dead_us=SECOND_US)


@pytest.mark.req("S0-20")
@pytest.mark.parametrize("kind", [SettlementKind.DEAD, SettlementKind.CANCELLED])
def test_a_job_that_was_given_up_does_not_hold_its_key(kind: SettlementKind) -> None:
    trial = memory_trial()
    trial.end(trial.take(new_job("first", idempotency=same())), kind)

    assert not trial.submit(new_job("second", idempotency=same()))[0].deduplicated


def test_the_same_key_with_another_payload_is_a_mistake_and_stores_nothing() -> None:
    trial = memory_trial()
    trial.submit(new_job("first", idempotency=same()))

    with pytest.raises(IdempotencyMismatch) as refused:
        trial.submit(new_job("fine"), new_job("second", idempotency=same(digest="other")))

    assert refused.value.job_id == "first"
    assert trial.search() == ["first"]


def test_keys_of_other_tenants_and_tasks_are_other_keys() -> None:
    trial = memory_trial()
    answers = trial.submit(
        new_job("a", idempotency=same(), tenant="a"),
        new_job("b", idempotency=same(), tenant="b"),
        new_job("c", idempotency=same(), tenant="a", task="resize"),
    )

    assert not any(answer.deduplicated for answer in answers)


def test_the_same_key_twice_in_one_call_is_one_job_and_another_payload_is_a_mistake() -> None:
    trial = memory_trial()

    answers = trial.submit(new_job("a", idempotency=same()), new_job("b", idempotency=same()))

    assert [(each.job_id, each.deduplicated) for each in answers] == [("a", False), ("a", True)]
    with pytest.raises(IdempotencyMismatch):
        trial.submit(
            new_job("c", idempotency=same("other")), new_job("d", idempotency=same("other", "e"))
        )
    assert trial.search() == ["a"]


def test_a_removed_job_does_not_hold_its_keys() -> None:
    trial = memory_trial()
    trial.finish(new_job("a", idempotency=same(), unique=UniqueRule("u")))
    trial.run(trial.store.jobs.delete(JobFilter(), limit=1))

    assert state_of(trial).idempotent == {}
    assert state_of(trial).unique == {}
