# SPDX-License-Identifier: MIT
"""Concurrency limits of queues, tasks and keys, over all workers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus
from packhorse.core.policies.gates import concurrency_gate, has_room
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import ClaimRequest
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    OWNER_KINDS,
    QUEUE,
    TASK,
    TIMEOUT_US,
    new_job,
)
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import given, limit_queue, limit_task, submit

#: Jobs behind one busy key; enough that no store can afford to look at each.
_CROWD: Final = 2_000

#: Outcomes of an attempt that close no rate limit.
_ENDINGS: Final = tuple(kind for kind in OWNER_KINDS if kind is not SettlementKind.LIMITED)
#: A sequence of events: a job with a key is submitted, or an attempt ends like this.
_happenings = st.lists(st.sampled_from([None, "k", "l", "m"]) | st.sampled_from(_ENDINGS))


class TestConcurrency:
    """Counted over all workers, never exceeded, never leaked."""

    @pytest.mark.req("S1-21")
    def test_no_more_jobs_of_a_queue_run_at_once_than_may_from_all_workers(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, concurrency=2)
        submit(trial, "a", "b", "c")

        assert given(trial, ANNA, limit=1) == ["a"]
        assert given(trial, BEN) == ["b"]
        assert given(trial, BEN) == []

    @pytest.mark.req("X-14")
    def test_a_queue_without_a_limit_gives_all_it_has(self, trial: Trial) -> None:
        submit(trial, *(str(number) for number in range(300)))

        assert len(trial.claim()) == 300

    def test_a_task_without_keys_is_limited_as_a_whole_over_all_queues(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "here")
        submit(trial, "there", queue="elsewhere")

        assert given(trial, queues=(QUEUE, "elsewhere")) == ["here"]
        assert given(trial, queues=("elsewhere",)) == []

    def test_each_key_has_a_limit_of_its_own_and_so_have_those_without(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "k1", "k2", concurrency_key="k")
        submit(trial, "l1", concurrency_key="l")
        submit(trial, "none1", "none2")

        assert given(trial) == ["k1", "l1", "none1"]

    def test_a_key_without_a_limit_of_its_task_limits_nothing(self, trial: Trial) -> None:
        submit(trial, "a", "b", concurrency_key="k")

        assert given(trial) == ["a", "b"]

    def test_limits_of_another_task_or_queue_do_not_count(self, trial: Trial) -> None:
        limit_task(trial, "resize", concurrency=1)
        limit_queue(trial, "elsewhere", concurrency=1)
        submit(trial, "a", "b")

        assert given(trial) == ["a", "b"]

    def test_both_limits_hold_at_once(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=3)
        limit_task(trial, concurrency=2)
        submit(trial, "a", "b", "c")
        submit(trial, "d", "e", task="resize")

        assert given(trial, tasks=(TASK, "resize")) == ["a", "b", "d"]

    def test_a_job_held_back_stays_as_it_is(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        submit(trial, "a", "b")
        before = trial.picture("b")

        trial.claim()
        trial.claim()

        assert trial.picture("b") == before

    def test_time_does_not_open_a_busy_queue(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        submit(trial, "a", "b")
        trial.claim(limit=1)

        assert trial.ask().next_due_us is None

    def test_a_more_urgent_newcomer_goes_before_those_held_back(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "first", "second", "third", concurrency_key="k")
        (first,) = trial.claim()
        submit(trial, "urgent", concurrency_key="k", priority=0)

        trial.end(first)

        assert given(trial) == ["urgent"]

    @pytest.mark.parametrize("kind", OWNER_KINDS, ids=lambda kind: kind.name.lower())
    def test_whatever_ends_an_attempt_frees_its_slot(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        limit_queue(trial, concurrency=1)
        limit_task(trial, concurrency=1)
        submit(trial, "a", rate_key="k")
        submit(trial, "b")
        (a,) = trial.claim(limit=1)
        assert given(trial) == []

        trial.end(a, kind)

        assert len(trial.claim()) == 1

    def test_a_crash_leaks_nothing(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        limit_task(trial, concurrency=1)
        submit(trial, "a", "b", concurrency_key="k")
        trial.claim("lost")
        trial.let_lease_expire()
        assert given(trial) == []

        assert trial.rescue("lost") == {"a": Verdict.APPLIED}

        assert given(trial) == ["b"]

    def test_what_a_worker_turns_out_not_to_hold_frees_its_slot(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        submit(trial, "a", "b")
        trial.claim(BEN)

        trial.renew(BEN, held=())

        assert given(trial, ANNA) == ["a"]

    def test_a_worker_that_leaves_frees_its_slots(self, trial: Trial) -> None:
        limit_task(trial, concurrency=2)
        submit(trial, "a", "b", "c", concurrency_key="k")
        trial.claim(BEN)

        trial.run(trial.store.leases.leave(BEN))

        assert given(trial, ANNA) == ["a", "b"]

    def test_a_cancelled_job_frees_its_slot_when_it_ends_and_not_before(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        submit(trial, "a", "b")
        (a,) = trial.claim()

        trial.run(trial.store.jobs.cancel("a"))
        assert given(trial) == []
        trial.end(a)

        assert given(trial) == ["b"]

    def test_a_limit_raised_at_run_time_lets_more_go_at_once(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        limit_task(trial, concurrency=1)
        submit(trial, "a", "b", "c")
        assert given(trial) == ["a"]

        limit_queue(trial, concurrency=2)
        assert given(trial) == []
        limit_task(trial, concurrency=2)

        assert given(trial) == ["b"]

    def test_a_lowered_limit_lets_those_that_run_go_on(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=3)
        submit(trial, *"abcd")
        running = trial.claim()

        limit_queue(trial, concurrency=2)

        assert [trial.end(job) for job in running[:1]] == [Verdict.APPLIED]
        assert given(trial) == []
        trial.end(running[1])
        assert given(trial) == ["d"]

    def test_a_limit_that_is_lifted_holds_no_job_back(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "a", "b", "c")
        trial.claim()

        limit_task(trial)

        assert given(trial) == ["b", "c"]

    def test_a_job_past_its_deadline_does_not_use_up_what_was_freed(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "a", concurrency_key="k")
        submit(trial, "late", concurrency_key="k", deadline_us=trial.now_us() + SECOND_US)
        submit(trial, "b", concurrency_key="k")
        (a,) = trial.claim()
        trial.claim()
        trial.advance_us(SECOND_US)

        trial.end(a)

        assert given(trial) == ["b"]

    def test_parked_jobs_do_not_use_up_what_was_freed(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "a", "b", concurrency_key="k")
        (a,) = trial.claim()
        trial.renew(ANNA, queues=(QUEUE,), tasks=("resize",))
        trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=10))
        assert trial.record("b").parked_us is not None
        trial.end(a)

        trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK,))
        trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=10))

        assert given(trial) == ["b"]

    def test_a_crowd_behind_one_busy_key_does_not_keep_others_from_one_claim(
        self, trial: Trial
    ) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, *(f"busy-{number}" for number in range(_CROWD)), concurrency_key="busy")
        for number in range(5):
            submit(trial, f"free-{number}", concurrency_key=f"free-{number}")

        first = given(trial, limit=5)

        assert first == ["busy-0", "free-0", "free-1", "free-2", "free-3"]
        submit(trial, "late", concurrency_key="late")
        assert given(trial, limit=5) == ["free-4", "late"]

    def test_a_crowd_of_a_key_that_becomes_busy_later_does_not_either(self, trial: Trial) -> None:
        submit(trial, *(f"busy-{number}" for number in range(_CROWD)), concurrency_key="busy")
        submit(trial, "free", concurrency_key="free")
        trial.claim(limit=1)

        limit_task(trial, concurrency=1)

        assert given(trial, limit=1) == ["free"]

    @a_few_examples
    @over(happenings=_happenings, queue_limit=st.integers(1, 3), task_limit=st.integers(1, 2))
    def test_whatever_happens_no_limit_is_exceeded_and_no_slot_is_left_empty(
        self,
        trials: Trials,
        happenings: list[str | SettlementKind | None],
        queue_limit: int,
        task_limit: int,
    ) -> None:
        with trials.fresh() as trial:
            limit_queue(trial, concurrency=queue_limit)
            limit_task(trial, concurrency=task_limit)
            running: list[Job] = []
            for number, happening in enumerate(happenings):
                if not isinstance(happening, SettlementKind):
                    submit(trial, f"job-{number}", concurrency_key=happening)
                elif running:
                    trial.end(running.pop(0), happening)
                running += trial.claim()
                _check(trial, queue_limit, task_limit)

    def test_claimers_at_once_never_exceed_a_limit(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            limit_queue(trial, concurrency=7)
            limit_task(trial, concurrency=2)
            keys = [str(number % 5) for number in range(60)]
            trial.submit(*(new_job(concurrency_key=key) for key in keys))
            workers = [f"worker-{number}" for number in range(4)]
            for worker in workers:
                trial.renew(worker)
            claims = [ClaimRequest(worker, (QUEUE,), (TASK,), 3, TIMEOUT_US) for worker in workers]
            stores = [trial.elsewhere() for _ in workers]

            answers = at_once(
                *(
                    partial(store.run, store.jobs.claim(claim))
                    for store, claim in zip(stores, claims, strict=True)
                )
            )

            jobs = [job for answer in answers for job in answer.jobs]
            assert len(jobs) == 7
            assert max(Counter(job.concurrency_key for job in jobs).values()) <= 2


def _check(trial: Trial, queue_limit: int, task_limit: int) -> None:
    """Compare with the pure policy: running jobs may run, waiting ones may not."""
    running = [trial.record(job_id) for job_id in trial.search(statuses=(JobStatus.PROCESSING,))]
    per_gate = Counter(concurrency_gate(record) for record in running)
    assert len(running) <= queue_limit
    assert all(count <= task_limit for count in per_gate.values())
    for job_id in trial.search(statuses=(JobStatus.QUEUED,)):
        gate = concurrency_gate(trial.record(job_id))
        assert not (has_room(len(running), queue_limit) and has_room(per_gate[gate], task_limit)), (
            f"{job_id} waits for nothing"
        )
