# SPDX-License-Identifier: MIT
"""One job for one unique key: every scope and every mode, in bulks and after roll-backs."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    IdempotencyRule,
    JobStatus,
    NewJob,
    OnConflict,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.policies.retention import Retention
from packhorse.core.settlement import SettlementKind
from packhorse.errors import QueueClosed
from packhorse.stores.requests import JobFilter, RedriveAnswer, Submitted
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import cancel, given, heard, limit_queue, redrive

_WINDOW_US: Final = 60 * SECOND_US
_ENDS: Final = (SettlementKind.COMPLETED, SettlementKind.DEAD, SettlementKind.CANCELLED)
_STARTED: Final = UniqueScope.UNTIL_STARTED
_LATEST: Final = OnConflict.KEEP_LATEST

_modes_but_latest = pytest.mark.parametrize(
    "mode", [mode for mode in OnConflict if mode != OnConflict.KEEP_LATEST]
)


class TestUniqueness:
    """The new job's mode decides what happens to the holder of the unique key."""

    # ----------------------------------------------------------------------------------- scopes

    @pytest.mark.parametrize("stage", ["waits", "runs", "failed", "completed"])
    @pytest.mark.parametrize(
        ("scope", "held"),
        [
            (UniqueScope.UNTIL_STARTED, ("waits", "failed")),
            (UniqueScope.UNTIL_FINISHED, ("waits", "runs", "failed")),
            (UniqueScope.WINDOW, ("waits", "runs", "failed", "completed")),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_key_is_held_while_its_scope_lasts(
        self, trial: Trial, scope: UniqueScope, held: tuple[str, ...], stage: str
    ) -> None:
        trial.submit(_unique("holder", scope=scope))
        if stage != "waits":
            job = trial.claim_only()
            kind = SettlementKind.COMPLETED if stage == "completed" else SettlementKind.FAILED
            if stage != "runs":
                trial.end(job, kind)

        answer = _submitted(trial, _unique("new", scope=scope))

        assert answer.deduplicated == (stage in held)
        assert answer.job_id == ("holder" if stage in held else "new")

    @pytest.mark.parametrize("kind", [SettlementKind.DEAD, SettlementKind.CANCELLED])
    @pytest.mark.parametrize("scope", UniqueScope)
    def test_a_job_that_was_given_up_holds_no_key(
        self, trial: Trial, scope: UniqueScope, kind: SettlementKind
    ) -> None:
        trial.finish(_unique("holder", scope=scope), kind)

        assert not _submitted(trial, _unique("new", scope=scope)).deduplicated

    def test_a_window_ends_and_the_record_lasts_until_then(self, trial: Trial) -> None:
        scope = UniqueScope.WINDOW
        job = trial.take(_unique("holder", scope=scope))
        trial.end(job, retention=Retention(finished_us=0, results_us=0))
        trial.advance_us(_WINDOW_US - 1)
        trial.run(trial.store.upkeep.prune(limit=10))
        assert _submitted(trial, _unique("new", OnConflict.THROTTLE, scope)).job_id == "holder"

        trial.advance_us(1)

        assert not _submitted(trial, _unique("new", OnConflict.THROTTLE, scope)).deduplicated

    def test_a_job_that_lost_its_key_does_not_take_it_back_by_waiting_again(
        self, trial: Trial
    ) -> None:
        old = trial.take(_unique("old", scope=_STARTED))
        trial.submit(_unique("new", scope=_STARTED))
        trial.end(old, SettlementKind.FAILED)

        assert _submitted(trial, _unique("third", scope=_STARTED)).job_id == "new"
        cancel(trial, "new")
        assert not _submitted(trial, _unique("third", scope=_STARTED)).deduplicated

    def test_other_tenants_and_tasks_have_keys_of_their_own(self, trial: Trial) -> None:
        answers = trial.submit(
            _unique("a"), _unique("b", tenant="acme"), _unique("c", task="resize"), _unique("d")
        )

        assert [answer.job_id for answer in answers] == ["a", "b", "c", "a"]

    def test_unique_and_idempotency_keys_never_meet(self, trial: Trial) -> None:
        trial.submit(_unique("a"))

        (answer,) = trial.submit(new_job("b", idempotency=IdempotencyRule("k", "d", _WINDOW_US)))

        assert not answer.deduplicated

    # ------------------------------------------------------------------------------------ modes

    @pytest.mark.parametrize("mode", [OnConflict.REJECT, OnConflict.THROTTLE])
    def test_a_holder_that_answers_stays_as_it_is(self, trial: Trial, mode: OnConflict) -> None:
        trial.submit(_unique("holder", mode))
        before = trial.picture("holder")

        answer = _submitted(trial, _unique("new", mode, delay_us=SECOND_US))

        assert (answer.job_id, answer.deduplicated) == ("holder", True)
        assert trial.picture("holder") == before
        assert trial.search() == ["holder"]

    @pytest.mark.parametrize("mode", [OnConflict.REPLACE, OnConflict.PRESERVE_RUN_AT, _LATEST])
    def test_a_waiting_holder_gets_the_new_payload_and_keeps_its_due(
        self, trial: Trial, mode: OnConflict
    ) -> None:
        trial.submit(_unique("holder", mode, delay_us=5 * SECOND_US))
        due_us = trial.record("holder").due_us

        answer = _submitted(trial, _unique("new", mode, delay_us=9 * SECOND_US))

        assert (answer.job_id, answer.deduplicated) == ("holder", True)
        assert trial.record("holder").payload == b'"new"'
        assert trial.record("holder").due_us == due_us

    @pytest.mark.parametrize(
        ("mode", "order"),
        [
            (OnConflict.REPLACE, ["holder", "other"]),
            (OnConflict.PRESERVE_RUN_AT, ["holder", "other"]),
            (OnConflict.DEBOUNCE, ["other", "holder"]),
        ],
    )
    def test_a_replaced_job_keeps_its_place_and_a_debounced_one_loses_it(
        self, trial: Trial, mode: OnConflict, order: list[str]
    ) -> None:
        trial.submit(_unique("holder"), new_job("other"))

        trial.submit(_unique("new", mode))

        assert given(trial) == order

    def test_a_debounced_holder_is_due_again_and_workers_hear_of_it(self, trial: Trial) -> None:
        debounce = OnConflict.DEBOUNCE
        trial.submit(_unique("holder", debounce, delay_us=5 * SECOND_US))
        trial.advance_us(SECOND_US)
        again = _unique("new", debounce, delay_us=5 * SECOND_US)

        assert heard(trial, f"queue:{QUEUE}", lambda store: store.jobs.submit([again]))

        record = trial.record("holder")
        assert (record.status, record.payload) == (JobStatus.PENDING, b'"new"')
        assert record.due_us == trial.now_us() + 5 * SECOND_US

    def test_a_debounced_retry_is_scheduled_like_a_new_job(self, trial: Trial) -> None:
        trial.end(trial.take(_unique("holder")), SettlementKind.FAILED)

        answer = _submitted(trial, _unique("new", OnConflict.DEBOUNCE, delay_us=SECOND_US))

        assert answer.status is JobStatus.PENDING
        trial.advance_us(SECOND_US)
        assert trial.claim_only().payload == '"new"'

    @_modes_but_latest
    def test_a_running_holder_answers_and_stays_as_it_is(
        self, trial: Trial, mode: OnConflict
    ) -> None:
        job = trial.take(_unique("holder", mode))
        before = trial.picture("holder")

        answer = _submitted(trial, _unique("new", mode))

        assert (answer.job_id, answer.status) == ("holder", JobStatus.PROCESSING)
        assert trial.picture("holder") == before
        trial.end(job)
        assert trial.search() == ["holder"]

    def test_duplicates_in_one_call_meet_each_other_in_order(self, trial: Trial) -> None:
        answers = trial.submit(
            _unique("a"),
            _unique("b", OnConflict.REPLACE),
            _unique("c"),
            _unique("d", OnConflict.DEBOUNCE, delay_us=SECOND_US),
            _unique("e", OnConflict.KEEP_LATEST),
        )

        assert [answer.job_id for answer in answers] == ["a"] * 5
        assert [answer.deduplicated for answer in answers] == [False, True, True, True, True]
        assert {answer.status for answer in answers} == {JobStatus.PENDING}
        assert trial.record("a").payload == b'"e"'

    # ------------------------------------------------------------------- redrive and roll-back

    def test_a_redrive_is_refused_where_the_key_has_a_new_holder(self, trial: Trial) -> None:
        trial.finish(_unique("old"), SettlementKind.DEAD)
        trial.submit(_unique("new"))
        before = trial.picture("old")

        assert redrive(trial, "old") is RedriveAnswer.CONFLICT
        assert trial.picture("old") == before
        trial.end(trial.claim_only())
        assert redrive(trial, "old") is RedriveAnswer.REDRIVEN
        assert _submitted(trial, _unique("third")).job_id == "old"

    def test_a_waiting_job_without_its_key_may_still_be_hurried(self, trial: Trial) -> None:
        old = trial.take(_unique("old", scope=_STARTED))
        trial.submit(_unique("new", scope=_STARTED))
        trial.end(old, SettlementKind.FAILED)

        assert redrive(trial, "old") is RedriveAnswer.REDRIVEN
        assert _submitted(trial, _unique("third", scope=_STARTED)).job_id == "new"

    def test_a_job_that_holds_its_own_key_is_redriven(self, trial: Trial) -> None:
        trial.finish(_unique("old", scope=UniqueScope.WINDOW))

        assert redrive(trial, "old") is RedriveAnswer.REDRIVEN

    def test_a_removed_job_does_not_hold_its_key(self, trial: Trial) -> None:
        trial.finish(_unique("old", scope=UniqueScope.WINDOW))
        trial.run(trial.store.jobs.delete(JobFilter(), limit=1))

        assert not _submitted(trial, _unique("new", scope=UniqueScope.WINDOW)).deduplicated

    def test_a_refused_submit_takes_no_key_and_changes_no_holder(self, trial: Trial) -> None:
        trial.run(trial.store.queues.close_queue("closed", closed=True))
        trial.submit(_unique("holder", key="other"))
        before = trial.picture("holder")

        with pytest.raises(QueueClosed):
            trial.submit(
                _unique("a"),
                _unique("b", OnConflict.REPLACE, key="other"),
                new_job("c", queue="closed"),
            )

        assert trial.picture("holder") == before
        assert not _submitted(trial, _unique("a")).deduplicated

    def test_of_submits_at_once_one_is_stored_and_answers_for_all(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            stores = [trial.elsewhere() for _ in range(4)]

            answers = at_once(
                *(
                    partial(store.run, store.jobs.submit([_unique(f"job-{number}")]))
                    for number, store in enumerate(stores)
                )
            )

            (stored,) = trial.search()
            assert {answer.job_id for (answer,) in answers} == {stored}
            assert sum(not answer.deduplicated for (answer,) in answers) == 1


class TestKeepLatest:
    """The newest job waits behind a running holder, and is submitted when that ends."""

    @pytest.mark.parametrize("kind", _ENDS, ids=lambda kind: kind.name.lower())
    def test_the_newest_waits_outside_and_comes_in_when_the_holder_ends(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        holder = trial.take(_unique("holder", _LATEST))

        answers = [_submitted(trial, _unique(name, _LATEST)) for name in ("second", "third")]

        assert [(each.job_id, each.deduplicated) for each in answers] == [("holder", True)] * 2
        assert trial.search() == ["holder"]
        trial.end(holder, kind)
        assert trial.find("second") is None
        assert trial.claim_only().payload == '"third"'
        assert _submitted(trial, _unique("fourth", _LATEST)).job_id == "third"

    def test_it_is_kept_over_retries_and_a_newer_payload_outdates_it(self, trial: Trial) -> None:
        holder = trial.take(_unique("holder", _LATEST))
        trial.submit(_unique("second", _LATEST))
        trial.end(holder, SettlementKind.FAILED)

        trial.submit(_unique("third", _LATEST))
        trial.advance_us(60 * SECOND_US)
        again = trial.claim_only()
        assert again.payload == '"third"'
        trial.end(again)

        assert trial.search() == ["holder"]

    def test_it_comes_in_when_a_waiting_holder_is_cancelled(self, trial: Trial) -> None:
        holder = trial.take(_unique("holder", _LATEST))
        trial.submit(_unique("second", _LATEST))
        trial.end(holder, SettlementKind.FAILED)

        cancel(trial, "holder")

        assert trial.status("second") is JobStatus.QUEUED

    def test_a_full_or_closed_queue_does_not_keep_it_out(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        holder = trial.take(_unique("holder", _LATEST))
        trial.submit(_unique("second", _LATEST))
        trial.submit(new_job("other"))
        trial.run(trial.store.queues.close_queue(QUEUE, closed=True))

        trial.end(holder)

        assert trial.status("second") is JobStatus.QUEUED

    def test_it_does_not_come_in_twice(self, trial: Trial) -> None:
        same = IdempotencyRule("same", "d", _WINDOW_US)
        holder = trial.take(_unique("holder", _LATEST))
        trial.submit(_unique("second", _LATEST, idempotency=same))
        trial.submit(new_job("instead", idempotency=same))
        trial.end(holder)
        assert trial.find("second") is None

        holder = trial.take(_unique("again", _LATEST, queue="other"))
        trial.submit(_unique("twin", _LATEST))
        trial.submit(new_job("twin"))
        trial.end(holder)
        assert trial.record("twin").payload == b'{"to":"a"}'

    def test_who_takes_the_key_after_its_window_outdates_it(self, trial: Trial) -> None:
        scope = UniqueScope.WINDOW
        holder = trial.take(_unique("holder", _LATEST, scope))
        trial.submit(_unique("second", _LATEST, scope))
        trial.advance_us(_WINDOW_US)

        assert not _submitted(trial, _unique("third", _LATEST, scope)).deduplicated
        trial.end(holder)

        assert trial.find("second") is None


def _unique(
    name: str,
    on_conflict: OnConflict = OnConflict.REJECT,
    scope: UniqueScope = UniqueScope.UNTIL_FINISHED,
    *,
    key: str = "k",
    **changes: Any,
) -> NewJob:
    """Return a job with a unique key, whose payload is its name."""
    window_us = _WINDOW_US if scope is UniqueScope.WINDOW else None
    rule = UniqueRule(key, scope, on_conflict, window_us)
    return new_job(name, unique=rule, payload=f'"{name}"'.encode(), **changes)


def _submitted(trial: Trial, job: NewJob) -> Submitted:
    (answer,) = trial.submit(job)
    return answer
