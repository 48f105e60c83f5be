# SPDX-License-Identifier: MIT
"""Unique keys in the reference store: every mode, and who holds the key when."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.clock import SECOND_US
from packhorse.job import IdempotencyRule, JobStatus, NewJob, OnConflict, UniqueRule, UniqueScope
from packhorse.policies.retention import Retention
from packhorse.settlement import SettlementKind
from packhorse.stores.requests import QueueSettings, RedriveAnswer, Submitted
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial, state_of, wakes_of

WINDOW_US = 60 * SECOND_US
SCOPES = list(UniqueScope)
ENDS = [SettlementKind.COMPLETED, SettlementKind.DEAD, SettlementKind.CANCELLED]


def unique(
    name: str,
    on_conflict: OnConflict = OnConflict.REJECT,
    scope: UniqueScope = UniqueScope.UNTIL_FINISHED,
    **changes: Any,
) -> NewJob:
    window_us = WINDOW_US if scope is UniqueScope.WINDOW else None
    rule = UniqueRule("k", scope, on_conflict, window_us)
    return new_job(name, unique=rule, payload=f'"{name}"'.encode(), **changes)


def submitted(trial: Trial, job: NewJob) -> Submitted:
    (answer,) = trial.submit(job)
    return answer


def payload(trial: Trial, job_id: str) -> bytes:
    return trial.record(job_id).payload


def redrive(trial: Trial, job_id: str) -> RedriveAnswer:
    (answer,) = trial.run(trial.store.jobs.redrive([job_id]))
    return answer


# --------------------------------------------------------------------------------------- scopes


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        (UniqueScope.UNTIL_STARTED, [True, False, True, False]),
        (UniqueScope.UNTIL_FINISHED, [True, True, True, False]),
        (UniqueScope.WINDOW, [True, True, True, True]),
    ],
)
def test_a_key_is_held_while_its_scope_lasts(scope: UniqueScope, held: list[bool]) -> None:
    def holds(stage: int) -> bool:
        trial = memory_trial()
        trial.submit(unique("holder", scope=scope))
        if stage >= 1:
            job = trial.claim_only()
            kind = SettlementKind.COMPLETED if stage == 3 else SettlementKind.FAILED
            if stage >= 2:
                trial.end(job, kind)
        return submitted(trial, unique("new", scope=scope)).deduplicated

    assert [holds(stage) for stage in range(4)] == held


@pytest.mark.parametrize("kind", [SettlementKind.DEAD, SettlementKind.CANCELLED])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_job_that_was_given_up_holds_no_key(scope: UniqueScope, kind: SettlementKind) -> None:
    trial = memory_trial()
    trial.finish(unique("holder", scope=scope), kind)

    assert not submitted(trial, unique("new", scope=scope)).deduplicated


def test_a_window_ends_and_the_record_lasts_until_then() -> None:
    trial = memory_trial()
    scope = UniqueScope.WINDOW
    job = trial.take(unique("holder", scope=scope))
    trial.end(job, retention=Retention(finished_us=0, results_us=0))
    trial.advance_us(WINDOW_US - 1)
    trial.run(trial.store.upkeep.prune(limit=10))
    assert submitted(trial, unique("new", OnConflict.THROTTLE, scope)).job_id == "holder"

    trial.advance_us(1)

    assert not submitted(trial, unique("new", OnConflict.THROTTLE, scope)).deduplicated


def test_a_job_that_lost_its_key_does_not_take_it_back_by_waiting_again() -> None:
    trial = memory_trial()
    started = UniqueScope.UNTIL_STARTED
    old = trial.take(unique("old", scope=started))
    trial.submit(unique("new", scope=started))
    trial.end(old, SettlementKind.FAILED)

    assert submitted(trial, unique("third", scope=started)).job_id == "new"
    trial.run(trial.store.jobs.cancel("new"))
    assert not submitted(trial, unique("third", scope=started)).deduplicated


def test_other_tenants_and_tasks_have_keys_of_their_own() -> None:
    trial = memory_trial()
    answers = trial.submit(
        unique("a"), unique("b", tenant="acme"), unique("c", task="resize"), unique("d")
    )

    assert [answer.job_id for answer in answers] == ["a", "b", "c", "a"]


# ---------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("mode", [OnConflict.REPLACE, OnConflict.PRESERVE_RUN_AT])
def test_a_waiting_holder_gets_the_new_payload_and_keeps_place_and_due(mode: OnConflict) -> None:
    trial = memory_trial()
    trial.submit(unique("holder", mode, delay_us=5 * SECOND_US))
    due_us = trial.record("holder").due_us

    answer = submitted(trial, unique("new", mode, delay_us=9 * SECOND_US))

    assert (answer.job_id, answer.deduplicated) == ("holder", True)
    assert (payload(trial, "holder"), trial.record("holder").due_us) == (b'"new"', due_us)


def test_a_replaced_job_keeps_its_place_and_a_debounced_one_loses_it() -> None:
    trial = memory_trial()
    trial.submit(unique("holder"), new_job("other"))
    trial.submit(unique("new", OnConflict.REPLACE))
    assert [job.id for job in trial.claim()] == ["holder", "other"]

    trial = memory_trial()
    trial.submit(unique("holder"), new_job("other"))
    trial.submit(unique("new", OnConflict.DEBOUNCE))
    assert [job.id for job in trial.claim()] == ["other", "holder"]


def test_a_debounced_holder_is_due_anew_and_workers_hear_of_it() -> None:
    trial = memory_trial()
    debounce = OnConflict.DEBOUNCE
    trial.submit(unique("holder", debounce, delay_us=5 * SECOND_US))
    trial.advance_us(SECOND_US)

    again = trial.store.jobs.submit([unique("new", debounce, delay_us=5 * SECOND_US)])

    assert wakes_of(trial, again) == {f"queue:{QUEUE}"}
    record = trial.record("holder")
    assert (record.status, record.payload) == (JobStatus.PENDING, b'"new"')
    assert record.due_us == trial.now_us() + 5 * SECOND_US


def test_a_debounced_retry_is_scheduled_like_a_new_job() -> None:
    trial = memory_trial()
    trial.end(trial.take(unique("holder")), SettlementKind.FAILED)

    answer = submitted(trial, unique("new", OnConflict.DEBOUNCE, delay_us=SECOND_US))

    assert answer.status is JobStatus.PENDING
    trial.advance_us(SECOND_US)
    assert trial.claim_only().payload == '"new"'


@pytest.mark.parametrize("mode", [mode for mode in OnConflict if mode != OnConflict.KEEP_LATEST])
def test_a_running_holder_answers_and_stays_as_it_is(mode: OnConflict) -> None:
    trial = memory_trial()
    trial.take(unique("holder", mode))
    before = trial.record("holder")

    answer = submitted(trial, unique("new", mode))

    assert (answer.job_id, answer.status) == ("holder", JobStatus.PROCESSING)
    assert trial.record("holder") == before
    assert state_of(trial).stashed == {}


def test_duplicates_in_one_call_meet_each_other_in_order() -> None:
    trial = memory_trial()
    answers = trial.submit(
        unique("a"),
        unique("b", OnConflict.REPLACE),
        unique("c"),
        unique("d", OnConflict.DEBOUNCE, delay_us=SECOND_US),
        unique("e", OnConflict.KEEP_LATEST),
    )

    assert [answer.job_id for answer in answers] == ["a"] * 5
    assert [answer.deduplicated for answer in answers] == [False, True, True, True, True]
    assert {answer.status for answer in answers} == {JobStatus.PENDING}
    assert payload(trial, "a") == b'"e"'


# ----------------------------------------------------------------------------------- keep latest


LATEST = OnConflict.KEEP_LATEST


@pytest.mark.parametrize("kind", ENDS)
def test_behind_a_running_holder_the_newest_waits_and_comes_in_when_it_ends(
    kind: SettlementKind,
) -> None:
    trial = memory_trial()
    holder = trial.take(unique("holder", LATEST))

    answers = [submitted(trial, unique(name, LATEST)) for name in ("second", "third")]

    assert [(each.job_id, each.deduplicated) for each in answers] == [("holder", True)] * 2
    assert trial.search() == ["holder"]
    trial.end(holder, kind)
    assert trial.find("second") is None
    assert trial.claim_only().payload == '"third"'
    assert submitted(trial, unique("fourth", LATEST)).job_id == "third"


def test_the_one_that_waits_is_kept_over_retries_and_a_newer_payload_outdates_it() -> None:
    trial = memory_trial()
    holder = trial.take(unique("holder", LATEST))
    trial.submit(unique("second", LATEST))
    trial.end(holder, SettlementKind.FAILED)
    assert state_of(trial).stashed

    trial.submit(unique("third", LATEST))
    trial.advance_us(60 * SECOND_US)
    again = trial.claim_only()
    assert again.payload == '"third"'
    trial.end(again)

    assert trial.search() == ["holder"]


def test_the_one_that_waits_comes_in_when_a_waiting_holder_is_cancelled() -> None:
    trial = memory_trial()
    holder = trial.take(unique("holder", LATEST))
    trial.submit(unique("second", LATEST))
    trial.end(holder, SettlementKind.FAILED)

    trial.run(trial.store.jobs.cancel("holder"))

    assert trial.status("second") is JobStatus.QUEUED


def test_a_full_or_closed_queue_does_not_keep_out_the_one_that_waited() -> None:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, max_depth=1))
    holder = trial.take(unique("holder", LATEST))
    trial.submit(unique("second", LATEST))
    trial.submit(new_job("other"))
    trial.run(trial.store.queues.close_queue(QUEUE, closed=True))

    trial.end(holder)

    assert trial.status("second") is JobStatus.QUEUED


def test_the_one_that_waited_does_not_come_in_twice() -> None:
    trial = memory_trial()
    same = IdempotencyRule("same", "d", WINDOW_US)
    holder = trial.take(unique("holder", LATEST))
    trial.submit(unique("second", LATEST, idempotency=same))
    trial.submit(new_job("instead", idempotency=same))
    trial.end(holder)
    assert trial.find("second") is None

    holder = trial.take(unique("again", LATEST, queue="other"))
    trial.submit(unique("twin", LATEST))
    trial.submit(new_job("twin"))
    trial.end(holder)
    assert trial.record("twin").payload == b'{"to":"a"}'


def test_who_takes_the_key_after_its_window_outdates_the_one_that_waits() -> None:
    trial = memory_trial()
    scope = UniqueScope.WINDOW
    holder = trial.take(unique("holder", LATEST, scope))
    trial.submit(unique("second", LATEST, scope))
    trial.advance_us(WINDOW_US)

    assert not submitted(trial, unique("third", LATEST, scope)).deduplicated
    trial.end(holder)

    assert trial.find("second") is None


# --------------------------------------------------------------------------------------- redrive


def test_a_redrive_is_refused_where_the_unique_key_has_a_new_holder() -> None:
    trial = memory_trial()
    trial.finish(unique("old"), SettlementKind.DEAD)
    trial.submit(unique("new"))
    before = trial.record("old")

    assert redrive(trial, "old") is RedriveAnswer.CONFLICT
    assert trial.record("old") == before
    trial.end(trial.claim_only())
    assert redrive(trial, "old") is RedriveAnswer.REDRIVEN
    assert submitted(trial, unique("third")).job_id == "old"


def test_a_redrive_is_refused_where_the_idempotency_key_has_a_new_holder() -> None:
    trial = memory_trial()
    same = IdempotencyRule("k", "d", WINDOW_US)
    trial.finish(new_job("old", idempotency=same), SettlementKind.DEAD)
    trial.finish(new_job("new", idempotency=same))

    assert redrive(trial, "old") is RedriveAnswer.CONFLICT
    trial.advance_us(WINDOW_US)
    assert redrive(trial, "old") is RedriveAnswer.REDRIVEN


def test_a_waiting_job_without_its_key_may_still_be_hurried() -> None:
    trial = memory_trial()
    started = UniqueScope.UNTIL_STARTED
    old = trial.take(unique("old", scope=started))
    trial.submit(unique("new", scope=started))
    trial.end(old, SettlementKind.FAILED)

    assert redrive(trial, "old") is RedriveAnswer.REDRIVEN
    assert submitted(trial, unique("third", scope=started)).job_id == "new"


def test_a_job_that_holds_its_own_key_is_redriven() -> None:
    trial = memory_trial()
    trial.finish(unique("old", scope=UniqueScope.WINDOW))

    assert redrive(trial, "old") is RedriveAnswer.REDRIVEN
