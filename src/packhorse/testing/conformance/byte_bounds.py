# SPDX-License-Identifier: MIT
"""Queues and stores with `max_bytes`: what counts, and what happens when they are full."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from packhorse.core.job import JobStatus, OnConflict, Priority, UniqueRule
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Snoozed, Succeeded
from packhorse.core.policies.depth import OnFull
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.settlement import SettlementKind
from packhorse.core.sizes import THE_STORE
from packhorse.errors import QueueFull
from packhorse.stores.protocol import Store
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import (
    cancel,
    complete,
    heard,
    limit_queue,
    queue_state,
    redrive,
    submit,
)

#: Payload bytes of an ordinary job here, and of a large one that some stores keep separately.
_ONE: Final = len(new_job().payload)
_LARGE: Final = 5_000
_ROOM: Final = f"room:{QUEUE}"
_LEAST: Final = Priority.BACKGROUND
_DAY_US: Final = 86_400_000_000

#: Some stores handle jobs with keys on another path.
_keyed = pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
_bounded = pytest.mark.parametrize("bounded", [QUEUE, THE_STORE], ids=["queue", "store"])


class TestByteBounds:
    """Payloads of unfinished jobs count for their queue and for the store."""

    @pytest.mark.req("S2-27")
    @_keyed
    @pytest.mark.parametrize("on_full", ["reject", "wait"])
    def test_a_queue_full_of_bytes_refuses_the_whole_submit_and_says_of_what(
        self, trial: Trial, on_full: OnFull, *, keyed: bool
    ) -> None:
        limit_queue(trial, max_bytes=3 * _ONE, on_full=on_full)
        submit(trial, "a", "b")

        with pytest.raises(QueueFull, match="max_bytes is") as refused:
            _submit(trial.store, "c", "d", keyed=keyed)

        full = refused.value
        assert (full.queue, full.reason) == (QUEUE, "bytes")
        assert (full.depth, full.limit) == (2 * _ONE, 3 * _ONE)
        assert sorted(trial.search()) == ["a", "b"]
        _submit(trial.store, "c", keyed=keyed)
        assert _held(trial) == 3 * _ONE

    @pytest.mark.req("S2-27")
    @_keyed
    def test_a_full_store_refuses_what_comes_to_any_queue(
        self, trial: Trial, *, keyed: bool
    ) -> None:
        limit_queue(trial, THE_STORE, max_bytes=3 * _ONE)
        limit_queue(trial, "dropping", max_depth=9, on_full="drop")
        submit(trial, "a")
        submit(trial, "b", queue="other")

        for queue in (QUEUE, "third", "dropping"):
            with pytest.raises(QueueFull, match="the store is full") as refused:
                _submit(trial.store, "c", "d", keyed=keyed, queue=queue)
            assert (refused.value.queue, refused.value.reason) == (queue, "store_bytes")
            assert (refused.value.depth, refused.value.limit) == (2 * _ONE, 3 * _ONE)
        _submit(trial.store, "c", keyed=keyed)
        complete(trial, trial.claim()[0].id)
        _submit(trial.store, "d", keyed=keyed, queue="third")
        assert _held(trial, THE_STORE) == 3 * _ONE

    def test_what_one_submit_brings_to_several_queues_counts_together_in_the_store(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, THE_STORE, max_bytes=3 * _ONE)
        jobs = [new_job(f"{queue}{number}", queue=queue) for queue in "ab" for number in (1, 2)]

        with pytest.raises(QueueFull, match="the store is full"):
            trial.submit(*jobs)

        assert trial.search() == []
        trial.submit(*jobs[:3])
        assert _held(trial, THE_STORE) == 3 * _ONE

    @_bounded
    def test_a_job_that_is_there_already_needs_no_room(self, trial: Trial, bounded: str) -> None:
        limit_queue(trial, bounded, max_bytes=2 * _ONE)
        job = new_job("a")
        trial.submit(job, new_job("b"))
        limit_queue(trial, bounded, max_bytes=_ONE)

        (answer,) = trial.submit(job)

        assert answer.deduplicated

    @_bounded
    def test_a_job_counts_while_it_waits_runs_waits_again_and_waits_in_a_step(
        self, trial: Trial, bounded: str
    ) -> None:
        limit_queue(trial, bounded, max_bytes=9 * _ONE)
        submit(trial, "later", delay_us=_DAY_US)
        running, failed, sleeps = (trial.take(new_job(name)) for name in ("r", "f", "s"))

        trial.end(failed, SettlementKind.FAILED)
        trial.settle(settle(sleeps, Snoozed(_DAY_US, waits=0), JobRules(), roll=0.5))

        assert _held(trial, bounded) == 4 * _ONE
        trial.end(running, SettlementKind.COMPLETED)
        assert _held(trial, bounded) == 3 * _ONE

    @_bounded
    def test_whatever_ends_a_job_gives_its_bytes_back_and_a_redrive_takes_them_again(
        self, trial: Trial, bounded: str
    ) -> None:
        limit_queue(trial, bounded, max_bytes=2 * _ONE)
        kinds = SettlementKind
        ends: dict[str, Callable[[], object]] = {
            "completed": lambda: trial.finish(new_job("completed")),
            "dead": lambda: trial.finish(new_job("dead"), kinds.DEAD),
            "cancelled": lambda: (submit(trial, "cancelled"), cancel(trial, "cancelled")),
            "stopped": lambda: _cancel_running(trial, "stopped"),
            "expired": lambda: _expire(trial, "expired"),
        }
        for name, end in ends.items():
            end()
            assert trial.status(name).is_final, name
            assert _held(trial, bounded) == 0, name
        for name in ends:
            redrive(trial, name)

        assert _held(trial, bounded) == 5 * _ONE  # above the bound: no redrive is refused

    @_bounded
    def test_a_bound_counts_the_jobs_that_it_finds_there(self, trial: Trial, bounded: str) -> None:
        trial.finish(new_job("dead"), SettlementKind.DEAD)
        trial.take(new_job("running"))
        submit(trial, "later", delay_us=_DAY_US)
        submit(trial, "large", payload=_text(_LARGE))
        submit(trial, "elsewhere", queue="other")
        inside = 2 * _ONE + _LARGE + (_ONE if bounded == THE_STORE else 0)

        limit_queue(trial, bounded, max_bytes=inside)

        assert _held(trial, bounded) == inside
        with pytest.raises(QueueFull):
            submit(trial, "one too many")
        redrive(trial, "dead")
        assert _held(trial, bounded) == inside + _ONE

    @_bounded
    def test_jobs_that_came_while_there_was_no_bound_count_in_the_next(
        self, trial: Trial, bounded: str
    ) -> None:
        limit_queue(trial, bounded, max_bytes=2 * _ONE)
        submit(trial, "a", "b")
        limit_queue(trial, bounded)
        submit(trial, "c")
        cancel(trial, "a")
        assert queue_state(trial, bounded).held_bytes is None

        limit_queue(trial, bounded, max_bytes=2 * _ONE)

        assert _held(trial, bounded) == 2 * _ONE

    def test_bytes_are_those_of_the_payload_as_it_is_stored(self, trial: Trial) -> None:
        limit_queue(trial, max_bytes=100_000)
        payloads = [_text(1_999), _text(2_001), '"ä€😀"'.encode(), _text(_LARGE)]

        trial.submit(*(new_job(payload=payload) for payload in payloads))

        assert _held(trial) == sum(map(len, payloads))

    @_bounded
    def test_a_payload_that_is_replaced_or_exchanged_counts_as_it_is(
        self, trial: Trial, bounded: str
    ) -> None:
        limit_queue(trial, bounded, max_bytes=3 * _LARGE)
        rule = UniqueRule("k", on_conflict=OnConflict.REPLACE)
        submit(trial, "a", unique=rule)
        submit(trial, "b", unique=rule, payload=_text(_LARGE))
        assert _held(trial, bounded) == _LARGE
        submit(trial, "c", unique=rule, payload=b'"secret"')
        assert _held(trial, bounded) == len('"secret"')

        trial.run(trial.store.transfer.exchange("a", {"secret": "longer secret"}))

        assert _held(trial, bounded) == len('"longer secret"')

    @_keyed
    def test_submits_at_once_never_exceed_the_bound(self, trials: Trials, *, keyed: bool) -> None:
        with trials.fresh() as trial:
            limit_queue(trial, max_bytes=8 * _ONE)
            limit_queue(trial, THE_STORE, max_bytes=10 * _ONE)
            stores = [trial.elsewhere() for _ in range(4)]

            answers = at_once(
                *(
                    partial(_submit_five, store, f"{at}-", keyed=keyed, queue=queue)
                    for at, store in enumerate(stores)
                    for queue in (QUEUE, "other")[at % 2 :][:1]
                )
            )

            assert sum(answers) == 10
            assert _held(trial, THE_STORE) == 10 * _ONE

    def test_what_a_change_of_records_brings_is_counted_and_never_refused(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, max_bytes=_ONE)
        jobs = [new_job("a"), new_job("b", unique=UniqueRule("k"))]

        trial.run(trial.store.records.change([Put(RecordId("kind", "", "key"), b"")], jobs=jobs))

        assert _held(trial) == 2 * _ONE

    @pytest.mark.parametrize("running", [True, False], ids=["running", "waiting"])
    def test_an_end_makes_room_and_wakes_those_who_wait_for_it(
        self, trial: Trial, *, running: bool
    ) -> None:
        limit_queue(trial, max_bytes=_ONE, on_full="wait")
        submit(trial, "a")
        if not running:
            assert heard(trial, _ROOM, lambda store: store.jobs.cancel("a"))
            return
        (job,) = trial.claim()
        done = settle(job, Succeeded("null"), JobRules(), roll=0.5)
        assert heard(trial, _ROOM, lambda store: store.jobs.settle([done]))


class TestDroppingBytes:
    """A full queue with `on_full=drop` drops its least urgent jobs until the rest fits."""

    @pytest.mark.req("S2-27")
    @_keyed
    def test_as_many_of_the_least_urgent_go_as_the_bytes_need(
        self, trial: Trial, *, keyed: bool
    ) -> None:
        limit_queue(trial, max_bytes=4 * _ONE, on_full="drop")
        submit(trial, "low", "lower", priority=_LEAST)
        submit(trial, "normal", "next")

        large = new_job("large", payload=_text(2 * _ONE), unique=_rule("l", keyed=keyed))
        (answer,) = trial.submit(large)
        (least,) = trial.submit(new_job("least", priority=_LEAST, unique=_rule("m", keyed=keyed)))

        assert (sorted(answer.shed), answer.status) == (["low", "lower"], JobStatus.QUEUED)
        assert (least.shed, least.status) == (("least",), JobStatus.DEAD)
        assert _held(trial) == 4 * _ONE

    def test_what_runs_keeps_its_bytes_and_one_that_never_fits_goes_itself(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, max_bytes=3 * _ONE, on_full="drop")
        trial.take(new_job("running", priority=_LEAST))

        submit(trial, "a", "b", "c")
        submit(trial, "large", payload=_text(_LARGE))

        dead = [trial.status(name) is JobStatus.DEAD for name in ("a", "b", "c", "large")]
        assert dead == [False, False, True, True]
        assert trial.status("running") is JobStatus.PROCESSING
        assert _held(trial) == 3 * _ONE

    def test_of_both_bounds_the_narrower_one_decides(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=3, max_bytes=10 * _ONE, on_full="drop")
        submit(trial, "a", "b", "c", "d")
        assert trial.status("d") is JobStatus.DEAD

        submit(trial, "urgent", payload=_text(9 * _ONE), priority=Priority.HIGH)

        dead = [trial.status(name) is JobStatus.DEAD for name in "abc"]
        assert dead == [False, True, True]


def _held(trial: Trial, queue: str = QUEUE) -> int | None:
    return queue_state(trial, queue).held_bytes


def _text(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


def _rule(name: str, *, keyed: bool) -> UniqueRule | None:
    return UniqueRule(name) if keyed else None


def _submit(store: Store, *names: str, keyed: bool, queue: str = QUEUE) -> None:
    jobs = [new_job(name, queue=queue, unique=_rule(name, keyed=keyed)) for name in names]
    store.run(store.jobs.submit(jobs))


def _submit_five(store: Store, prefix: str, *, keyed: bool, queue: str) -> int:
    """Submit five jobs one by one; return how many were accepted."""
    stored = 0
    for number in range(5):
        try:
            _submit(store, f"{prefix}{number}", keyed=keyed, queue=queue)
            stored += 1
        except QueueFull:
            pass
    return stored


def _cancel_running(trial: Trial, name: str) -> None:
    job = trial.take(new_job(name))
    cancel(trial, name)
    trial.end(job, SettlementKind.CANCELLED)


def _expire(trial: Trial, name: str) -> None:
    submit(trial, name, deadline_us=trial.now_us() + 1)
    trial.advance_us(1)
    trial.run(trial.store.upkeep.expire(limit=9))
