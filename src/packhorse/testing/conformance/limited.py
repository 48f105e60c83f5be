# SPDX-License-Identifier: MIT
"""A job that met another system's limit closes its rate gate; gates that open wake workers."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, RateRule
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, settlement_of
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import (
    SILENCE_S,
    cancel,
    given,
    heard,
    limit_queue,
    limit_task,
    submit,
)

#: How long a limited settlement of these tests closes its rate.
_CLOSED_US: Final = 5 * SECOND_US


class TestLimited:
    """A limited settlement closes the job's rate gate, by its key or its task."""

    def test_it_keeps_its_place_burns_nothing_and_closes_its_key(self, trial: Trial) -> None:
        submit(trial, "k1", "k2", rate_key="k")
        submit(trial, "l1", rate_key="l")
        k1, *_ = trial.claim(limit=1)

        assert trial.end(k1, SettlementKind.LIMITED) is Verdict.APPLIED

        record = trial.record("k1")
        assert record.status is JobStatus.QUEUED
        assert (record.counters.releases, record.counters.failures) == (1, 0)
        assert [line.status for line in trial.history("k1")] == [JobStatus.QUEUED]
        answer = trial.ask()
        assert [job.id for job in answer.jobs] == ["l1"]
        assert answer.next_due_us == answer.now_us + _CLOSED_US
        trial.advance_us(_CLOSED_US)
        assert given(trial) == ["k1", "k2"]

    def test_without_a_key_its_task_waits_and_others_go_on(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        submit(trial, "keyed", rate_key="k")
        submit(trial, "other", task="resize")
        (a,) = trial.claim(limit=1)

        trial.end(a, SettlementKind.LIMITED)

        assert given(trial, tasks=(TASK, "resize")) == ["keyed", "other"]

    def test_it_closes_its_key_in_every_queue(self, trial: Trial) -> None:
        submit(trial, "here", rate_key="k")
        submit(trial, "there", rate_key="k", queue="elsewhere")
        (here,) = trial.claim()

        trial.end(here, SettlementKind.LIMITED)

        assert given(trial, queues=("elsewhere",)) == []
        trial.advance_us(_CLOSED_US)
        assert given(trial, queues=("elsewhere",)) == ["there"]

    def test_a_later_word_never_makes_a_closing_shorter(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        long, short = (settlement_of(SettlementKind.LIMITED, job) for job in trial.claim())

        trial.settle(_for(long, 60 * SECOND_US))
        trial.settle(short)

        trial.advance_us(60 * SECOND_US - 1)
        assert given(trial) == []
        trial.advance_us(1)
        assert given(trial) == ["a", "b"]

    def test_a_later_word_may_make_it_longer(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        short, long = (settlement_of(SettlementKind.LIMITED, job) for job in trial.claim())

        trial.settle(short)
        trial.settle(_for(long, 60 * SECOND_US))

        trial.advance_us(60 * SECOND_US - 1)
        assert given(trial) == []
        trial.advance_us(1)
        assert given(trial) == ["a", "b"]

    def test_a_cancelled_job_still_closes_its_gate(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        (a,) = trial.claim(limit=1)
        cancel(trial, "a")

        assert trial.end(a, SettlementKind.LIMITED) is Verdict.CANCELLED

        assert given(trial) == []

    def test_a_stale_word_closes_nothing(self, trial: Trial) -> None:
        submit(trial, "a", "b")
        (a,) = trial.claim(limit=1)
        trial.end(a)

        assert trial.end(a, SettlementKind.LIMITED) is Verdict.STALE

        assert given(trial) == ["b"]

    def test_a_word_sent_again_does_not_close_it_again(self, trial: Trial) -> None:
        submit(trial, "a")
        (a,) = trial.claim()
        word = settlement_of(SettlementKind.LIMITED, a)
        trial.settle(word)
        trial.advance_us(_CLOSED_US)

        assert trial.settle(word) == (Verdict.APPLIED,)

        assert given(trial) == ["a"]

    def test_a_declared_limit_holds_beside_it(self, trial: Trial) -> None:
        limit_task(trial, rate=RateRule(1, 64 * SECOND_US))
        submit(trial, "a", "b")
        (a,) = trial.claim()

        trial.end(a, SettlementKind.LIMITED)
        trial.advance_us(_CLOSED_US)

        assert given(trial) == []


class TestOpenedGates:
    """Workers are woken when a gate opens, and know when time will open one."""

    def test_a_freed_key_wakes_every_queue_with_a_job_of_the_task(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "a", concurrency_key="k")
        (a,) = trial.claim()
        submit(trial, "b", concurrency_key="k", queue="elsewhere")
        done = settlement_of(SettlementKind.COMPLETED, a)

        assert heard(trial, "queue:elsewhere", lambda store: store.jobs.settle([done]))
        assert given(trial, queues=("elsewhere",)) == ["b"]

    def test_a_queue_without_a_job_of_the_task_is_not_woken(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "a")
        (a,) = trial.claim()
        submit(trial, "c", queue="third", task="resize")
        done = settlement_of(SettlementKind.COMPLETED, a)

        assert not heard(trial, "queue:third", lambda store: store.jobs.settle([done]), SILENCE_S)

    @pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.FAILED])
    def test_a_freed_slot_of_a_queue_wakes_its_workers(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        limit_queue(trial, concurrency=1)
        submit(trial, "a", "b")
        (a,) = trial.claim()
        done = settlement_of(kind, a)

        assert heard(trial, f"queue:{QUEUE}", lambda store: store.jobs.settle([done]))

    def test_a_burst_worker_waits_for_a_limit_and_not_for_a_busy_queue(self, trial: Trial) -> None:
        limit_queue(trial, rate=RateRule(1, 64 * SECOND_US))
        submit(trial, "a", "b")
        outlook = trial.store.inspection.outlook(ANNA, (QUEUE,), (TASK,))
        assert (trial.run(outlook).ready, trial.run(outlook).limit_free_us) == (True, None)
        trial.claim()
        told_us = trial.ask().next_due_us

        seen = trial.run(outlook)

        assert (seen.ready, seen.limit_free_us) == (False, told_us)
        limit_queue(trial, concurrency=1)
        seen = trial.run(outlook)
        assert (seen.ready, seen.limit_free_us) == (False, None)


def _for(settlement: Settlement, span_us: int) -> Settlement:
    return msgspec.structs.replace(settlement, limit_us=span_us)
