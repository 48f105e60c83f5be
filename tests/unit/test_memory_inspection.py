# SPDX-License-Identifier: MIT
"""What the reference shows where the contract of inspection leaves room."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import Counts, JobFilter, Outlook
from packhorse.testing.conformance.samples import ANNA, BEN, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial

MINUTE_US = 60 * SECOND_US


@pytest.fixture
def trial() -> Trial:
    return memory_trial()


def outlook(trial: Trial, *queues: str) -> Outlook:
    return trial.run(trial.store.inspection.outlook(ANNA, queues or (QUEUE,), (TASK,)))


def test_the_longest_waiting_ready_job_is_counted_from_when_it_took_its_place(
    trial: Trial,
) -> None:
    trial.submit(new_job("parked", task="resize"))
    trial.advance_us(1)
    since_us = trial.now_us()
    trial.submit(new_job("urgent", priority=0, delay_us=5), new_job("job"))
    trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
    trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=9))
    trial.advance_us(5)
    trial.run(trial.store.upkeep.promote(limit=9))

    assert trial.run(trial.store.inspection.counts()) == (
        Counts(QUEUE, {JobStatus.QUEUED: 3}, {0: since_us + 5, 2: since_us}),
    )


def test_a_due_job_counts_as_ready_for_a_worker_that_knows_it(trial: Trial) -> None:
    trial.submit(new_job("due", delay_us=1), new_job("unknown", task="resize", delay_us=1))
    assert not outlook(trial).ready

    trial.advance_us(1)

    assert outlook(trial).ready
    assert outlook(trial).retry_due_us is None
    trial.pause()
    assert not outlook(trial).ready


def test_retries_and_rescued_jobs_keep_a_worker_until_they_are_due(trial: Trial) -> None:
    trial.end(trial.take(new_job("retry")), SettlementKind.FAILED)
    retry_us = trial.record("retry").due_us
    assert outlook(trial, QUEUE, "other").retry_due_us == retry_us

    trial.take(new_job("lost", queue="other"), worker=BEN)
    trial.run(trial.store.jobs.cancel("retry"))
    trial.let_lease_expire()
    assert outlook(trial, QUEUE, "other").orphaned
    trial.rescue(BEN)
    seen = outlook(trial, QUEUE, "other")
    assert (seen.orphaned, seen.retry_due_us) == (False, trial.record("lost").due_us)
    trial.advance_us(MINUTE_US)
    trial.run(trial.store.upkeep.promote(limit=9))
    assert outlook(trial, "other").ready


def test_a_retry_past_its_deadline_keeps_no_other(trial: Trial) -> None:
    trial.submit(new_job("job", deadline_us=trial.now_us() + MINUTE_US))
    trial.end(trial.claim_only(), SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)

    seen = outlook(trial)

    assert (seen.ready, seen.retry_due_us) == (False, None)


def test_a_page_says_whether_there_is_another(trial: Trial) -> None:
    trial.submit(*(new_job(name) for name in "abc"))
    search = trial.store.inspection.search
    first = trial.run(search(JobFilter(), limit=2))
    assert [record.id for record in first.jobs] == ["c", "b"]
    trial.submit(new_job("newer"))

    second = trial.run(search(JobFilter(), limit=2, after=first.after))

    assert [record.id for record in second.jobs] == ["a"]
    assert second.after is None
    assert trial.run(search(JobFilter(), limit=4)).after is None
