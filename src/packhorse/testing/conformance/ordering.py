# SPDX-License-Identifier: MIT
"""`JobStore.claim`: which job goes first, compared with `policies.fairness`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import AttemptError, JobStatus, NewJob, Priority
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Crashed
from packhorse.core.policies.fairness import claim_rank, queue_order
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial, Trials

#: One claim makes at most this many due jobs of one queue queued.
_PROMOTED_MAX = 1_000
_QUEUES = ("mail", "reports", "images")

_priorities = st.sampled_from(Priority)
#: Jobs of one queue: when they are due, and how urgent they are.
_lines = st.lists(st.tuples(_priorities, st.integers(0, 3)), max_size=12)


class TestOrdering:
    """First the queue's priority, then the job's, then the order of becoming ready."""

    @pytest.mark.req("S1-17")
    def test_the_lower_priority_number_goes_first(self, trial: Trial) -> None:
        trial.submit(*(new_job(level.name, priority=level) for level in reversed(Priority)))

        assert [job.id for job in trial.claim()] == [level.name for level in Priority]

    @pytest.mark.req("S1-18", "X-10")
    def test_equal_priorities_go_in_the_order_of_becoming_ready(self, trial: Trial) -> None:
        names = ["m", "a", "z", "k"]
        for name in names:
            trial.submit(new_job(name))

        assert [job.id for job in trial.claim()] == names

    @pytest.mark.req("S1-19")
    def test_the_queue_with_the_lowest_priority_number_is_served_first(self, trial: Trial) -> None:
        trial.declare(
            QueueSettings("slow", priority=9),
            QueueSettings("fast", priority=1),
            QueueSettings("first", priority=0),
        )
        trial.submit(*(new_job(name, queue=name) for name in ("slow", "fast", "first")))

        claimed = trial.claim(queues=("slow", "fast", "first"))

        assert [job.id for job in claimed] == ["first", "fast", "slow"]

    @pytest.mark.req("S1-20")
    def test_a_queues_priority_comes_before_a_jobs_own(self, trial: Trial) -> None:
        trial.declare(QueueSettings("slow", priority=1), QueueSettings("fast", priority=0))
        trial.submit(new_job("urgent", queue="slow", priority=Priority.CRITICAL))
        trial.submit(new_job("idle", queue="fast", priority=Priority.BACKGROUND))

        assert [job.id for job in trial.claim(queues=("slow", "fast"))] == ["idle", "urgent"]

    def test_equal_queues_are_served_in_the_order_asked_for(self, trial: Trial) -> None:
        trial.submit(new_job("a", queue="a"), new_job("b", queue="b", priority=Priority.CRITICAL))

        assert [job.id for job in trial.claim(queues=("a", "b"))] == ["a", "b"]

    def test_a_redeclared_queue_priority_holds_at_the_next_claim(self, trial: Trial) -> None:
        trial.declare(QueueSettings("a", priority=0), QueueSettings("b", priority=1))
        trial.submit(*(new_job(f"{queue}{n}", queue=queue) for queue in "ab" for n in (1, 2)))
        assert trial.claim(queues=("a", "b"), limit=1)[0].id == "a1"

        trial.declare(QueueSettings("a", priority=2))

        assert [job.id for job in trial.claim(queues=("a", "b"))] == ["b1", "b2", "a2"]

    def test_due_jobs_become_ready_in_the_order_of_their_due_instants(self, trial: Trial) -> None:
        trial.submit(
            new_job("third", delay_us=30),
            new_job("first", delay_us=10),
            new_job("second", delay_us=20),
            new_job("also_third", delay_us=30),
        )
        trial.advance_us(SECOND_US)

        assert [job.id for job in trial.claim()] == ["first", "second", "third", "also_third"]

    def test_due_jobs_take_their_place_behind_those_already_ready(self, trial: Trial) -> None:
        trial.submit(new_job("due", delay_us=1))
        trial.submit(new_job("ready"))
        trial.advance_us(1)

        assert [job.id for job in trial.claim()] == ["ready", "due"]

    @pytest.mark.parametrize("kind", [SettlementKind.FAILED, SettlementKind.TIMEOUT])
    def test_a_due_retry_becomes_ready_inside_the_claim(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        trial.end(trial.take(new_job("again")), kind)
        trial.submit(new_job("new"))
        trial.advance_us(60 * SECOND_US)

        assert [job.id for job in trial.claim()] == ["new", "again"]

    def test_one_claim_makes_at_most_a_thousand_jobs_of_a_queue_ready(self, trial: Trial) -> None:
        trial.submit(*(new_job(f"job-{n}", delay_us=1) for n in range(_PROMOTED_MAX + 1)))
        trial.advance_us(1)

        trial.claim(limit=1)

        assert trial.status(f"job-{_PROMOTED_MAX - 1}") is JobStatus.QUEUED
        assert trial.status(f"job-{_PROMOTED_MAX}") is JobStatus.PENDING

    def test_the_jobs_made_ready_are_those_due_first(self, trial: Trial) -> None:
        trial.submit(*(new_job(f"job-{n}", delay_us=2) for n in range(_PROMOTED_MAX)))
        trial.submit(new_job("earlier", delay_us=1))
        trial.advance_us(2)

        assert trial.claim(limit=1)[0].id == "earlier"
        assert trial.status(f"job-{_PROMOTED_MAX - 1}") is JobStatus.PENDING

    def test_what_one_claim_left_the_next_makes_ready(self, trial: Trial) -> None:
        trial.submit(*(new_job(f"job-{n}", delay_us=1) for n in range(_PROMOTED_MAX + 5)))
        trial.advance_us(1)

        assert len(trial.claim()) == _PROMOTED_MAX
        assert len(trial.claim()) == 5

    @a_few_examples
    @given(line=_lines)
    def test_the_order_in_a_queue_is_what_the_policy_says(
        self, trials: Trials, line: list[tuple[Priority, int]]
    ) -> None:
        with trials.fresh() as trial:
            jobs = _numbered(line)
            trial.submit(*jobs)
            trial.advance_us(2)

            claimed = trial.claim()

            assert [job.id for job in claimed] == _expected(jobs, 2)

    @a_few_examples
    @given(
        line=st.lists(st.tuples(st.sampled_from(_QUEUES), _priorities), max_size=12),
        asked=st.permutations(_QUEUES),
        levels=st.lists(st.integers(0, 2), min_size=3, max_size=3),
        limit=st.integers(1, 12),
    )
    def test_the_order_between_queues_is_what_the_policy_says(
        self,
        trials: Trials,
        line: list[tuple[str, Priority]],
        asked: list[str],
        levels: list[int],
        limit: int,
    ) -> None:
        with trials.fresh() as trial:
            priorities = dict(zip(_QUEUES, levels, strict=True))
            trial.declare(*(QueueSettings(name, level) for name, level in priorities.items()))
            jobs = [
                new_job(str(number), queue=queue, priority=priority)
                for number, (queue, priority) in enumerate(line)
            ]
            trial.submit(*jobs)

            claimed = trial.claim(queues=asked, limit=limit)

            expected = _over_queues(jobs, asked, priorities)
            assert [job.id for job in claimed] == expected[:limit]

    def test_a_released_job_keeps_its_place(self, trial: Trial) -> None:
        trial.submit(new_job("first"), new_job("second"))
        (first,) = trial.claim(limit=1)

        trial.end(first, SettlementKind.RELEASED)

        assert [job.id for job in trial.claim()] == ["first", "second"]

    def test_a_job_whose_process_died_waits_and_keeps_its_place(self, trial: Trial) -> None:
        trial.submit(new_job("first"), new_job("second"))
        (first,) = trial.claim(limit=1)
        crash = Crashed(AttemptError("ProcessDied", "killed", code="PROCESS_CRASHED"))
        trial.settle(settle(first, crash, JobRules(), roll=0.5))
        assert [job.id for job in trial.claim(limit=1)] == ["second"]

        trial.submit(new_job("third"))
        trial.advance_us(60 * SECOND_US)

        assert [job.id for job in trial.claim()] == ["first", "third"]

    def test_a_job_that_waits_again_loses_its_place(self, trial: Trial) -> None:
        trial.submit(new_job("first"), new_job("second"))
        (first,) = trial.claim(limit=1)
        trial.end(first, SettlementKind.SNOOZED)
        trial.advance_us(60 * SECOND_US)

        assert [job.id for job in trial.claim()] == ["second", "first"]


def _numbered(line: Sequence[tuple[Priority, int]]) -> list[NewJob]:
    return [
        new_job(str(number), queue=QUEUE, priority=priority, delay_us=delay_us)
        for number, (priority, delay_us) in enumerate(line)
    ]


def _expected(jobs: Sequence[NewJob], passed_us: int) -> list[str]:
    """Due jobs get their place at submit, the others later, in (due, sequence) order."""
    due = [job for job in jobs if job.delay_us <= passed_us]
    ready = sorted(due, key=lambda job: job.delay_us)
    ranks = {job.id: claim_rank(job.priority, place) for place, job in enumerate(ready)}
    return sorted(ranks, key=ranks.__getitem__)


def _over_queues(
    jobs: Sequence[NewJob], asked: Sequence[str], priorities: Mapping[str, int]
) -> list[str]:
    return [
        job_id
        for queue in queue_order(asked, priorities)
        for job_id in _expected([job for job in jobs if job.queue == queue], 0)
    ]
