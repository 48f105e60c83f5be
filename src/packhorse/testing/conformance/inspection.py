# SPDX-License-Identifier: MIT
"""`InspectionStore`: single jobs, pages, counts, and a worker's outlook."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import (
    EVERY_TASK,
    Counts,
    JobFilter,
    Outlook,
    QueueSettings,
    TaskSettings,
)
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import ANNA, BEN, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial, Trials

_MINUTE_US = 60 * SECOND_US


class TestJobs:
    """Return the job, or None."""

    def test_an_unknown_job_is_none(self, trial: Trial) -> None:
        assert trial.find("unknown") is None

    @pytest.mark.req("S3-39")
    def test_a_job_of_another_tenant_is_none(self, trial: Trial) -> None:
        trial.submit(new_job("theirs", tenant="acme"))
        find = trial.store.inspection.job

        assert trial.run(find("theirs", tenant="other")) is None
        assert trial.run(find("theirs", tenant="")) is None
        assert trial.run(find("theirs", tenant="acme")) == trial.run(find("theirs"))

    @pytest.mark.req("S1-37")
    def test_attempts_count_ended_ones_only(self, trial: Trial) -> None:
        trial.submit(new_job("job"))
        for ended in range(3):
            job = trial.claim_only()
            assert trial.record("job").counters.attempts == ended
            trial.end(job, SettlementKind.RELEASED)

    @pytest.mark.parametrize("status", JobStatus)
    def test_awaiting_a_job_reads_it(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        assert trial.run(trial.store.jobs.await_finish("job")) == trial.record("job")

    def test_awaiting_an_unknown_job_reads_none(self, trial: Trial) -> None:
        assert trial.run(trial.store.jobs.await_finish("unknown")) is None


class TestSearch:
    """Return the jobs that match, newest first, a page at a time."""

    def test_the_newest_come_first_whatever_their_ids(self, trial: Trial) -> None:
        trial.submit(new_job("b"), new_job("z"), new_job("a", delay_us=1))

        assert trial.search() == ["a", "z", "b"]

    @pytest.mark.req("S2-11", "S1-47")
    @pytest.mark.parametrize(
        "chosen",
        [
            {"queue": "mail"},
            {"task": "resize"},
            {"statuses": (JobStatus.DEAD, JobStatus.PENDING)},
            {"tenant": "acme"},
            {"tag": "red"},
            {"created_by": "anna"},
            {"dead_reason": DeadReason.REJECTED},
            {"dead_letter": "mail_dead"},
            {"created_before_us": 1_000_000},
            {"id_part": "mea"},
            {"id_part": "ant"},
            {"queue": "mail", "task": "resize", "tag": "blue", "tenant": "acme"},
        ],
        ids=str,
    )
    def test_a_filter_narrows(self, trial: Trial, chosen: dict[str, Any]) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        meant = new_job(
            "meant",
            queue="mail",
            task="resize",
            tenant="acme",
            tags=("blue", "red"),
            created_by="anna",
        )
        began_us = trial.now_us()
        trial.finish(meant, SettlementKind.DEAD)
        trial.advance_us(1_000_000)
        if "created_before_us" in chosen:
            chosen = {"created_before_us": began_us + chosen["created_before_us"]}
        trial.submit(new_job("other", tags=("reddish", "re"), created_by="anna too"))

        assert trial.search(**chosen) == ["meant"]

    def test_a_filter_nothing_fits_means_nothing(self, trial: Trial) -> None:
        trial.submit(new_job())

        assert trial.search(queue="other") == []
        assert trial.search(queue=QUEUE, tag="none") == []

    def test_jobs_without_a_tenant_are_a_tenants_too(self, trial: Trial) -> None:
        trial.submit(new_job("nobodys"), new_job("theirs", tenant="acme"))

        assert trial.search(tenant="") == ["nobodys"]
        assert trial.search(tenant=None) == ["theirs", "nobodys"]

    def test_payload_and_result_are_left_out(self, trial: Trial) -> None:
        trial.finish(new_job("job"))

        (found,) = trial.run(trial.store.inspection.search(JobFilter(), limit=10)).jobs

        assert (found.payload, found.result) == (b"", None)
        assert found.status is JobStatus.COMPLETED
        assert not found.result_expired

    def test_a_last_page_says_that_there_is_no_more(self, trial: Trial) -> None:
        trial.submit(new_job("a"), new_job("b"))
        search = trial.store.inspection.search

        whole = trial.run(search(JobFilter(), limit=2))
        half = trial.run(search(JobFilter(), limit=1))

        assert whole.after is None
        assert half.after is not None
        rest = trial.run(search(JobFilter(), limit=1, after=half.after))
        assert ([job.id for job in rest.jobs], rest.after) == (["a"], None)

    def test_jobs_submitted_meanwhile_do_not_move_later_pages(self, trial: Trial) -> None:
        trial.submit(new_job("a"), new_job("b"))
        first = trial.run(trial.store.inspection.search(JobFilter(), limit=1))
        trial.submit(new_job("c"))

        second = trial.run(trial.store.inspection.search(JobFilter(), limit=9, after=first.after))

        assert [job.id for job in (*first.jobs, *second.jobs)] == ["b", "a"]

    @a_few_examples
    @given(kept=st.lists(st.booleans(), max_size=12), size=st.integers(1, 5))
    def test_pages_hold_every_job_meant_exactly_once(
        self, trials: Trials, kept: list[bool], size: int
    ) -> None:
        with trials.fresh() as trial:
            names = [str(number) for number in range(len(kept))]
            meant = dict(zip(names, kept, strict=True))
            trial.submit(*(new_job(name, tags=("kept",) * yes) for name, yes in meant.items()))

            found = _all_pages(trial, JobFilter(tag="kept"), size)

            assert found == [name for name in reversed(names) if meant[name]]


class TestCounts:
    """Jobs per status for every queue that holds one, by name."""

    def test_an_empty_store_has_no_counts(self, trial: Trial) -> None:
        trial.declare(QueueSettings("empty"))

        assert _counts(trial) == {}

    def test_jobs_are_counted_per_queue_and_status(self, trial: Trial) -> None:
        trial.submit(new_job(queue="z"), new_job(queue="a"), new_job(queue="a", delay_us=1))
        trial.finish(new_job(queue="done"))

        counted = _counts(trial)

        assert list(counted) == ["a", "done", "z"]
        assert _nonzero(counted["a"]) == {JobStatus.QUEUED: 1, JobStatus.PENDING: 1}
        assert _nonzero(counted["done"]) == {JobStatus.COMPLETED: 1}

    def test_with_a_bound_a_status_that_has_more_says_so(self, trial: Trial) -> None:
        trial.submit(*(new_job(queue="a") for _ in range(5)), new_job(queue="z"))
        trial.finish(new_job(queue="done"))

        found = trial.run(trial.store.inspection.counts(most=3))

        seen = {each.queue: each.by_status[JobStatus.QUEUED] for each in found[::2]}
        assert [each.queue for each in found] == ["a", "done", "z"]
        assert seen in ({"a": 3, "z": 1}, {"a": 5, "z": 1})  # some keep numbers
        more = [JobStatus.QUEUED] if seen["a"] < 5 else []
        assert [sorted(each.at_least) for each in found] == [more, [], []]

    @pytest.mark.parametrize("status", JobStatus)
    def test_every_status_is_counted(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        assert _nonzero(_counts(trial)[QUEUE]) == {status: 1}

    def test_the_longest_waiting_ready_job_is_dated(self, trial: Trial) -> None:
        began_us = trial.now_us()
        trial.submit(new_job("low", priority=4), new_job("later", delay_us=_MINUTE_US))
        trial.advance_us(1)
        trial.submit(new_job("high", priority=0))

        assert _counts(trial)[QUEUE].oldest_ready_us == began_us
        trial.claim(limit=1)
        assert _counts(trial)[QUEUE].oldest_ready_us == began_us
        trial.claim(limit=1)
        assert _counts(trial)[QUEUE].oldest_ready_us is None

    @pytest.mark.req("S2-18")
    @pytest.mark.parametrize("ageing_us", [None, 1], ids=["strict", "ageing"])
    def test_the_longest_waiting_ready_job_of_each_priority_is_dated(
        self, trial: Trial, ageing_us: int | None
    ) -> None:
        trial.declare(QueueSettings(QUEUE, fair=ageing_us is None, ageing_us=ageing_us))
        began_us = trial.now_us()
        for priority in (3, 3, 0, 0, 4):
            trial.submit(new_job(priority=priority), new_job(delay_us=_MINUTE_US))
            trial.advance_us(10)

        ages = _counts(trial)[QUEUE].oldest_ready_us_by_priority

        assert ages == {3: began_us, 0: began_us + 20, 4: began_us + 40}

    def test_a_suspect_and_one_held_back_are_ready_and_a_parked_one_is_not(
        self, trial: Trial
    ) -> None:
        trial.make_suspect(new_job("suspect", priority=0))
        trial.submit(new_job("parked", task="unheard", priority=1))
        trial.run(trial.store.queues.declare_tasks([TaskSettings(TASK, concurrency=1)]))
        trial.submit(new_job("runs", priority=2), new_job("held back", priority=3))
        trial.claim()
        trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK,))
        trial.run(trial.store.upkeep.park(after_us=_MINUTE_US, limit=10))

        assert set(_counts(trial)[QUEUE].oldest_ready_us_by_priority) == {0, 3}


class TestOutlook:
    """Return what these queues still hold for this worker."""

    def test_empty_queues_keep_no_row(self, trial: Trial) -> None:
        assert _outlook(trial) == Outlook(
            ready=False, retry_due_us=None, orphaned=False, now_us=trial.now_us()
        )

    def test_a_job_it_could_run_now_is_ready(self, trial: Trial) -> None:
        trial.submit(new_job())

        assert _outlook(trial).ready

    def test_a_scheduled_job_is_ready_once_it_is_due(self, trial: Trial) -> None:
        trial.submit(new_job(delay_us=_MINUTE_US))

        assert not _outlook(trial).ready
        trial.advance_us(_MINUTE_US)
        assert _outlook(trial).ready

    @pytest.mark.parametrize("kind", [SettlementKind.FAILED, SettlementKind.TIMEOUT])
    def test_the_next_retry_is_told(self, trial: Trial, kind: SettlementKind) -> None:
        job = trial.take()
        trial.end(job, kind)

        outlook = _outlook(trial)
        assert outlook.retry_due_us == trial.record(job.id).due_us
        assert not outlook.ready

    def test_the_earliest_of_several_retries_is_told(self, trial: Trial) -> None:
        names = [(str(number), queue) for number, queue in enumerate((QUEUE, "mail", QUEUE))]
        for name, queue in names:
            trial.finish(new_job(name, queue=queue), SettlementKind.FAILED)
            trial.advance_us(1)

        both = trial.store.inspection.outlook(ANNA, ("mail", QUEUE), (TASK,))
        assert trial.run(both).retry_due_us == trial.record("0").due_us

    def test_a_rescued_job_is_told_like_a_retry(self, trial: Trial) -> None:
        job = trial.take(worker=BEN)
        trial.let_lease_expire()
        trial.rescue(BEN)

        assert _outlook(trial).retry_due_us == trial.record(job.id).due_us

    def test_scheduled_and_snoozed_jobs_are_no_retries(self, trial: Trial) -> None:
        trial.end(trial.take(), SettlementKind.SNOOZED)
        trial.submit(new_job(delay_us=_MINUTE_US))

        outlook = _outlook(trial)
        assert (outlook.ready, outlook.retry_due_us) == (False, None)

    def test_paused_queues_do_not_count(self, trial: Trial) -> None:
        trial.end(trial.take(), SettlementKind.FAILED)
        trial.submit(new_job())
        trial.pause()

        outlook = _outlook(trial)
        assert (outlook.ready, outlook.retry_due_us) == (False, None)

    def test_unknown_tasks_do_not_count(self, trial: Trial) -> None:
        trial.end(trial.take(new_job(task="resize")), SettlementKind.FAILED)
        trial.submit(new_job(task="resize"), new_job(task="resize", delay_us=1))
        trial.advance_us(1)

        outlook = _outlook(trial)
        assert (outlook.ready, outlook.retry_due_us) == (False, None)

    def test_a_worker_that_knows_every_task_could_run_any(self, trial: Trial) -> None:
        trial.submit(new_job("due", task="resize", delay_us=1))
        trial.advance_us(1)
        assert _outlook(trial, tasks=(EVERY_TASK,)).ready

        job = trial.claim_only(BEN, tasks=(EVERY_TASK,))
        assert not _outlook(trial, tasks=(EVERY_TASK,)).ready
        trial.let_lease_expire()
        assert _outlook(trial, tasks=(EVERY_TASK,)).orphaned

        trial.rescue(BEN)
        retry_due_us = _outlook(trial, tasks=(EVERY_TASK,)).retry_due_us
        assert retry_due_us == trial.record(job.id).due_us

    def test_parked_jobs_do_not_count(self, trial: Trial) -> None:
        trial.submit(new_job(task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        trial.run(trial.store.upkeep.park(after_us=_MINUTE_US, limit=10))

        assert not _outlook(trial, tasks=("resize",)).ready

    def test_other_queues_do_not_count(self, trial: Trial) -> None:
        trial.submit(new_job(queue="other"))

        assert not _outlook(trial).ready

    def test_jobs_past_their_deadline_do_not_count(self, trial: Trial) -> None:
        trial.submit(new_job("late", deadline_us=trial.now_us()))
        retried = trial.take(new_job("retried", deadline_us=trial.now_us() + _MINUTE_US))
        trial.end(retried, SettlementKind.FAILED)
        assert _outlook(trial).retry_due_us is not None

        trial.advance_us(_MINUTE_US)

        outlook = _outlook(trial)
        assert (outlook.ready, outlook.retry_due_us) == (False, None)

    def test_jobs_held_by_live_workers_do_not_count(self, trial: Trial) -> None:
        trial.take(worker=BEN)

        outlook = _outlook(trial)
        assert not outlook.ready
        assert not outlook.orphaned

    def test_jobs_held_by_workers_whose_lease_is_gone_are_orphaned(self, trial: Trial) -> None:
        trial.take(worker=BEN)
        trial.let_lease_expire()

        outlook = _outlook(trial)
        assert outlook.orphaned
        assert not outlook.ready


def _all_pages(trial: Trial, chosen: JobFilter, size: int) -> list[str]:
    found: list[str] = []
    after: str | None = None
    for _ in range(20):
        page = trial.run(trial.store.inspection.search(chosen, limit=size, after=after))
        assert len(page.jobs) <= size
        found += [job.id for job in page.jobs]
        after = page.after
        if after is None:
            return found
    raise AssertionError("the pages do not end")


def _counts(trial: Trial) -> dict[str, Counts]:
    counted = trial.run(trial.store.inspection.counts())
    # A bound that is not reached changes nothing.
    assert trial.run(trial.store.inspection.counts(most=1_000)) == counted
    return {counts.queue: counts for counts in counted}


def _nonzero(counts: Counts) -> dict[JobStatus, int]:
    return {status: number for status, number in counts.by_status.items() if number}


def _outlook(trial: Trial, tasks: tuple[str, ...] = (TASK,)) -> Outlook:
    return trial.run(trial.store.inspection.outlook(ANNA, (QUEUE,), tasks))
