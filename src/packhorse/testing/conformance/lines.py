# SPDX-License-Identifier: MIT
"""Jobs with an ordering key run in admission order, one at a time, even if the head fails."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, DeadReason, Job, JobStatus, Priority
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import JobFilter, RedriveAnswer
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import BEN, QUEUE, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import (
    cancel,
    complete,
    given,
    heard,
    limit_queue,
    limit_task,
    redrive,
    submit,
)

_WAITS_AGAIN: Final = (
    SettlementKind.FAILED,
    SettlementKind.TIMEOUT,
    SettlementKind.SNOOZED,
    SettlementKind.RELEASED,
    SettlementKind.LIMITED,
)
_ENDS: Final = (SettlementKind.COMPLETED, SettlementKind.CANCELLED, SettlementKind.DEAD)
#: Longer than any retry, snooze or limit of the examples.
_LONG_US: Final = 120 * SECOND_US
_QUEUE_TOPIC: Final = f"queue:{QUEUE}"


class TestLines:
    """Only the head of a line can be claimed, and it determines the rank of the line."""

    @pytest.mark.req("S2-24", "X-10")
    def test_jobs_of_a_key_run_one_at_a_time_in_the_order_of_admission(self, trial: Trial) -> None:
        _line(trial, "a", "b", "c")

        for name in "abc":
            assert given(trial) == [name]
            assert given(trial, BEN) == []
            complete(trial, name)

    def test_other_keys_and_jobs_without_one_go_on(self, trial: Trial) -> None:
        _line(trial, "k1", "k2")
        _line(trial, "l1", "l2", key="l")
        submit(trial, "free1", "free2")

        assert given(trial) == ["k1", "l1", "free1", "free2"]

    def test_lines_of_queues_and_tenants_are_apart_and_those_of_tasks_are_not(
        self, trial: Trial
    ) -> None:
        _line(trial, "a", tenant="a")
        _line(trial, "b", tenant="b")
        _line(trial, "c", tenant="a", queue="other")
        _line(trial, "behind a", tenant="a", task="resize")

        assert given(trial, queues=(QUEUE, "other"), tasks=("*",)) == ["a", "b", "c"]

    @pytest.mark.req("S0-24")
    @pytest.mark.parametrize("kind", _WAITS_AGAIN, ids=lambda kind: kind.name.lower())
    def test_a_head_that_waits_again_holds_its_line(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        _line(trial, "first", "second")
        _line(trial, "other", key="l")
        first, other = trial.claim()
        assert (first.id, other.id) == ("first", "other")

        trial.end(first, kind)
        assert "second" not in given(trial)
        trial.end(first)  # with an old fence: changes nothing
        trial.advance_us(_LONG_US)

        assert "second" not in given(trial)
        assert trial.status("first") is JobStatus.PROCESSING

    @pytest.mark.parametrize("kind", _ENDS, ids=lambda kind: kind.name.lower())
    def test_a_head_that_has_ended_frees_its_line(self, trial: Trial, kind: SettlementKind) -> None:
        _line(trial, "first", "second")
        (first,) = trial.claim()

        trial.end(first, kind)

        assert given(trial) == ["second"]

    def test_a_head_that_was_lost_holds_its_line_until_it_has_run_alone(self, trial: Trial) -> None:
        trial.make_suspect(new_job("first", ordering_key="k"))
        _line(trial, "second")

        assert given(trial) == []
        assert given(trial, quarantine=True) == ["first"]
        complete(trial, "first")
        assert given(trial) == ["second"]

    def test_a_crash_does_not_let_the_next_go_before_the_rescued(self, trial: Trial) -> None:
        _line(trial, "first", "second")
        trial.claim("lost")
        trial.let_lease_expire()
        assert given(trial) == []

        assert trial.rescue("lost") == {"first": Verdict.APPLIED}

        assert given(trial) == []
        trial.advance_us(_LONG_US)
        assert given(trial) + given(trial, quarantine=True) == ["first"]

    def test_a_head_that_is_not_due_holds_those_behind_it(self, trial: Trial) -> None:
        _line(trial, "later", delay_us=SECOND_US)
        _line(trial, "now")

        assert given(trial) == []
        trial.advance_us(SECOND_US)
        assert given(trial) == ["later"]

    def test_a_head_past_its_deadline_holds_its_line_until_upkeep_gives_it_up(
        self, trial: Trial
    ) -> None:
        _line(trial, "late", deadline_us=trial.now_us() + 1)
        _line(trial, "next")
        trial.advance_us(1)
        assert given(trial) == []

        trial.run(trial.store.upkeep.expire(limit=10))

        assert given(trial) == ["next"]

    def test_a_line_ranks_by_its_head_and_inside_it_only_order_counts(self, trial: Trial) -> None:
        _line(trial, "low head", priority=Priority.LOW)
        _line(trial, "urgent", priority=Priority.CRITICAL)
        submit(trial, "normal")

        assert given(trial) == ["normal", "low head"]
        submit(trial, "also normal")
        complete(trial, "low head")
        assert given(trial) == ["urgent", "also normal"]

    def test_a_redriven_job_goes_to_the_end_of_its_line(self, trial: Trial) -> None:
        _line(trial, "first", "second", "third")
        (first,) = trial.claim()
        trial.end(first, SettlementKind.DEAD)

        assert redrive(trial, "first") is RedriveAnswer.REDRIVEN

        for name in ("second", "third", "first"):
            assert given(trial) == [name]
            complete(trial, name)

    def test_a_waiting_job_that_is_hurried_keeps_its_place_in_line(self, trial: Trial) -> None:
        _line(trial, "first", delay_us=SECOND_US)
        _line(trial, "second")

        assert redrive(trial, "first") is RedriveAnswer.REDRIVEN

        assert given(trial) == ["first"]

    def test_a_dead_head_holds_its_line_where_it_is_told_to_until_it_is_redriven(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, on_dead="hold")
        _line(trial, "first", "second")
        (first,) = trial.claim()
        trial.end(first, SettlementKind.DEAD)
        assert given(trial) == []

        redrive(trial, "first")

        assert given(trial) == ["second"]

    def test_a_dead_head_that_is_removed_frees_its_line_and_wakes_workers(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, on_dead="hold")
        _line(trial, "first", "second")
        (first,) = trial.claim()
        trial.end(first, SettlementKind.DEAD)

        dead = JobFilter(statuses=(JobStatus.DEAD,))
        assert heard(trial, _QUEUE_TOPIC, lambda store: store.jobs.delete(dead, limit=1))

        assert given(trial) == ["second"]

    def test_a_job_that_died_before_dead_heads_held_lines_holds_none(self, trial: Trial) -> None:
        _line(trial, "first", "second")
        (first,) = trial.claim()
        trial.end(first, SettlementKind.DEAD)

        limit_queue(trial, on_dead="hold")

        assert given(trial) == ["second"]

    def test_a_head_cancelled_while_it_waits_frees_its_line_and_wakes_workers(
        self, trial: Trial
    ) -> None:
        _line(trial, "first", "second")

        assert heard(trial, _QUEUE_TOPIC, lambda store: store.jobs.cancel("first"))

        assert given(trial) == ["second"]

    def test_a_head_that_completes_wakes_workers_for_the_next(self, trial: Trial) -> None:
        _line(trial, "first", "second")
        (first,) = trial.claim()
        done = settlement_of(SettlementKind.COMPLETED, first)

        assert heard(trial, _QUEUE_TOPIC, lambda store: store.jobs.settle([done]))

    def test_one_in_the_middle_that_is_cancelled_leaves_the_order_of_the_others(
        self, trial: Trial
    ) -> None:
        _line(trial, "a", "b", "c")
        cancel(trial, "b")

        for name in "ac":
            assert given(trial) == [name]
            complete(trial, name)

    def test_a_dropped_head_frees_its_line(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=2, on_full="drop")
        _line(trial, "first", priority=Priority.BACKGROUND)
        _line(trial, "second")

        submit(trial, "urgent")

        assert trial.record("first").dead_reason is DeadReason.SHED
        assert given(trial) == ["second", "urgent"]

    def test_a_line_whose_head_another_limit_holds_back_gives_no_other_job(
        self, trial: Trial
    ) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "busy", concurrency_key="c")
        (busy,) = trial.claim()
        _line(trial, "head", concurrency_key="c")
        _line(trial, "second", concurrency_key="d")

        assert given(trial) == []
        trial.end(busy)

        assert given(trial) == ["head"]

    @a_few_examples
    @over(
        keys=st.lists(st.sampled_from(["k", "l", None]), min_size=2, max_size=6),
        ends=st.lists(st.sampled_from([*_WAITS_AGAIN, SettlementKind.COMPLETED]), max_size=6),
    )
    def test_whatever_happens_the_jobs_of_a_key_complete_in_the_order_of_admission(
        self, trials: Trials, keys: list[str | None], ends: list[SettlementKind]
    ) -> None:
        with trials.fresh() as trial:
            trial.submit(*(new_job(str(n), ordering_key=key) for n, key in enumerate(keys)))
            running: list[Job] = []
            completed: list[str] = []
            for kind in [*ends, *[SettlementKind.COMPLETED] * len(keys)]:
                trial.advance_us(_LONG_US)
                trial.renew("anna", lease_us=2 * _LONG_US)
                running += trial.ask().jobs
                _check_one_of_each(running, keys)
                job = running.pop(0) if running else None
                if job is not None and trial.end(job, kind) and kind is SettlementKind.COMPLETED:
                    completed.append(job.id)
            for key in ("k", "l"):
                mine = [name for name in completed if keys[int(name)] == key]
                assert mine == sorted(mine, key=int)
            assert all(trial.status(str(n)) in TERMINAL for n in range(len(keys)))


def _line(trial: Trial, *names: str, key: str = "k", **changes: Any) -> None:
    """Submit these jobs to one line."""
    submit(trial, *names, ordering_key=key, **changes)


def _check_one_of_each(running: list[Job], keys: list[str | None]) -> None:
    held = [keys[int(job.id)] for job in running]
    assert held.count("k") <= 1
    assert held.count("l") <= 1
