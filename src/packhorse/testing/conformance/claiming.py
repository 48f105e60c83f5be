# SPDX-License-Identifier: MIT
"""`JobStore.claim`: which worker gets which jobs; see `ordering` for their order."""

from __future__ import annotations

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobOptions, JobStatus, Priority
from packhorse.core.lifecycle import hold_until_us, next_fence
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import EVERY_TASK, QueueSettings
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    LEASE_US,
    QUEUE,
    TASK,
    TIMEOUT_US,
    new_job,
)
from packhorse.testing.conformance.trial import Trial


class TestClaiming:
    """Hand at most `limit` ready jobs to one worker alone, each with a higher fence."""

    def test_no_more_than_the_limit_is_given(self, trial: Trial) -> None:
        trial.submit(*(new_job(name) for name in "abcd"))

        assert [job.id for job in trial.claim(limit=3)] == ["a", "b", "c"]
        assert [job.id for job in trial.claim(limit=3)] == ["d"]

    def test_the_limit_holds_over_all_queues_together(self, trial: Trial) -> None:
        trial.submit(*(new_job(name, queue=name) for name in "abc"))

        assert [job.id for job in trial.claim(queues=tuple("abc"), limit=2)] == ["a", "b"]

    def test_an_empty_queue_gives_nothing(self, trial: Trial) -> None:
        trial.renew()

        answer = trial.ask()

        assert answer.jobs == ()
        assert answer.next_due_us is None
        assert not answer.lease_lost
        assert not answer.suspects

    @pytest.mark.req("S4-1", "S1-42", "S2-4", "S2-23")
    def test_a_claimed_job_is_given_to_no_other_worker(self, trial: Trial) -> None:
        trial.take(new_job("mine"), worker=ANNA)

        assert trial.claim(BEN) == ()
        assert trial.claim(ANNA) == ()

    @pytest.mark.req("S1-24")
    def test_a_claimed_job_is_processing_and_names_its_worker(self, trial: Trial) -> None:
        trial.take(new_job("mine"), worker=BEN)

        record = trial.record("mine")
        assert record.status is JobStatus.PROCESSING
        assert record.worker == BEN

    def test_every_claim_raises_the_fence_by_one(self, trial: Trial) -> None:
        trial.submit(new_job("again"))
        before = trial.record("again").fence
        for _ in range(3):
            job = trial.claim_only()
            assert job.fence == trial.record("again").fence == next_fence(before)
            before = job.fence
            trial.end(job, SettlementKind.RELEASED)

    def test_only_the_queues_asked_for_are_served(self, trial: Trial) -> None:
        trial.submit(new_job("a", queue="mail"), new_job("b", queue="reports"))

        assert [job.id for job in trial.claim(queues=("reports",))] == ["b"]
        assert trial.status("a") is JobStatus.QUEUED

    @pytest.mark.req("S1-29")
    def test_a_task_the_worker_does_not_know_is_left_alone(self, trial: Trial) -> None:
        trial.submit(new_job("unknown", task="resize"), new_job("known"))

        assert [job.id for job in trial.claim(tasks=(TASK,))] == ["known"]
        assert trial.status("unknown") is JobStatus.QUEUED
        assert [job.id for job in trial.claim(tasks=("resize",))] == ["unknown"]

    def test_what_others_passed_by_comes_first_for_who_knows_it(self, trial: Trial) -> None:
        trial.submit(new_job("unknown", task="resize"), *(new_job(name) for name in "abc"))

        assert [job.id for job in trial.claim(tasks=(TASK,), limit=1)] == ["a"]
        assert [job.id for job in trial.claim(tasks=(TASK,), limit=1)] == ["b"]
        assert [job.id for job in trial.claim(tasks=(TASK, "resize"), limit=1)] == ["unknown"]

    def test_a_worker_that_knows_no_task_is_given_nothing(self, trial: Trial) -> None:
        trial.submit(new_job())

        assert trial.claim(tasks=()) == ()

    def test_a_worker_that_knows_every_task_is_given_any_in_the_usual_order(
        self, trial: Trial
    ) -> None:
        trial.submit(new_job("second", task="resize"), new_job("third"))
        trial.submit(new_job("first", task="crop", priority=Priority.HIGH))

        claimed = trial.claim(tasks=(EVERY_TASK,), limit=2)

        assert [job.id for job in claimed] == ["first", "second"]
        assert [job.id for job in trial.claim(tasks=("other", EVERY_TASK))] == ["third"]

    def test_a_paused_queue_gives_nothing(self, trial: Trial) -> None:
        trial.submit(new_job("stopped"), new_job("going", queue="other"))
        trial.pause(QUEUE)

        assert [job.id for job in trial.claim(queues=(QUEUE, "other"))] == ["going"]
        trial.pause(QUEUE, paused=False)
        assert [job.id for job in trial.claim(queues=(QUEUE, "other"))] == ["stopped"]

    @pytest.mark.req("S3-10")
    def test_a_job_whose_deadline_has_passed_is_not_given(self, trial: Trial) -> None:
        deadline_us = trial.now_us() + SECOND_US
        trial.submit(new_job("a", deadline_us=deadline_us), new_job("b", deadline_us=deadline_us))

        trial.advance_us(SECOND_US - 1)
        assert [job.id for job in trial.claim(limit=1)] == ["a"]
        trial.advance_us(1)
        assert trial.claim() == ()

    def test_a_due_job_whose_deadline_has_passed_is_not_given(self, trial: Trial) -> None:
        trial.submit(new_job("late", delay_us=SECOND_US, deadline_us=trial.now_us() + SECOND_US))

        trial.advance_us(SECOND_US)

        assert trial.claim() == ()

    def test_a_parked_job_is_not_given(self, trial: Trial) -> None:
        trial.submit(new_job("parked", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        assert trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=10)).tasks == ("resize",)

        assert trial.claim(tasks=("resize",)) == ()

    @pytest.mark.parametrize("lost", ["never begun", "expired", "left"])
    def test_a_worker_without_a_live_lease_is_given_nothing_and_told_so(
        self, trial: Trial, lost: str
    ) -> None:
        trial.submit(new_job("kept"))
        if lost != "never begun":
            trial.renew(ANNA)
        if lost == "expired":
            trial.advance_us(LEASE_US)
        if lost == "left":
            trial.run(trial.store.leases.leave(ANNA))

        answer = trial.ask(ANNA)

        assert answer.jobs == ()
        assert answer.lease_lost
        assert trial.status("kept") is JobStatus.QUEUED

    def test_a_lease_lasts_to_its_last_microsecond(self, trial: Trial) -> None:
        trial.submit(new_job())
        trial.renew(ANNA)
        trial.advance_us(LEASE_US - 1)

        answer = trial.ask(ANNA)

        assert len(answer.jobs) == 1
        assert not answer.lease_lost

    def test_the_claim_is_dated_by_the_stores_clock(self, trial: Trial) -> None:
        trial.submit(new_job("mine"))
        trial.renew()
        trial.advance_us(SECOND_US)

        answer = trial.ask()

        assert answer.now_us == trial.now_us()
        record = trial.record("mine")
        assert record.started_us == record.updated_us == trial.now_us()

    @pytest.mark.parametrize("timeout_us", [None, 7 * SECOND_US])
    def test_the_hold_limit_is_what_lifecycle_says(
        self, trial: Trial, timeout_us: int | None
    ) -> None:
        job = trial.take(new_job(timeout_us=timeout_us))
        span_us = TIMEOUT_US if timeout_us is None else timeout_us
        held_us = hold_until_us(trial.now_us(), span_us) - trial.now_us()

        trial.advance_us(held_us - 1)
        assert trial.orphans() == {}
        trial.advance_us(1)
        assert list(trial.orphans()) == [job.id]

    def test_the_next_due_instant_is_told(self, trial: Trial) -> None:
        now_us = trial.now_us()
        trial.submit(new_job(delay_us=9), new_job(delay_us=5), new_job(queue="other", delay_us=1))
        trial.renew()

        assert trial.ask().next_due_us == now_us + 5
        assert trial.ask(queues=(QUEUE, "other")).next_due_us == now_us + 1

    def test_a_claimed_job_carries_what_its_worker_needs(self, trial: Trial) -> None:
        now_us = trial.now_us()
        options = JobOptions(max_crashes=2, max_snoozes=9)
        given = new_job(
            "mine",
            priority=Priority.LOW,
            tenant="acme",
            timeout_us=SECOND_US,
            deadline_us=now_us + 60 * SECOND_US,
            options=options,
            trace_id="trace",
            upstream_request_id="request",
        )
        trial.submit(given)
        trial.advance_us(SECOND_US)

        job = trial.claim_only()

        same = (
            *("id", "task", "queue", "priority", "tenant", "timeout_us", "deadline_us"),
            *("trace_id", "upstream_request_id"),
        )
        assert [getattr(job, name) for name in same] == [getattr(given, name) for name in same]
        assert job.payload == given.payload.decode()
        assert job.options is not None
        assert msgspec.json.decode(job.options, type=JobOptions) == options
        assert job.ready_us == now_us

    @pytest.mark.req("S1-37")
    def test_a_claimed_job_carries_its_counters(self, trial: Trial) -> None:
        trial.submit(new_job("tried"))
        first = trial.claim_only()
        trial.end(first, SettlementKind.FAILED)
        trial.advance_us(60 * SECOND_US)
        second = trial.claim_only()
        trial.end(second, SettlementKind.SNOOZED)
        trial.advance_us(60 * SECOND_US)

        third = trial.claim_only()

        assert (first.attempt, second.attempt, third.attempt) == (1, 2, 3)
        assert (third.attempts, third.failures, third.snoozes) == (2, 1, 1)
        assert trial.record("tried").counters.attempts == 2


class TestTenantsOfClaims:
    """With `tenants`, only their jobs are given."""

    @pytest.mark.req("S3-45")
    def test_only_jobs_of_the_tenants_asked_for_are_given(self, trial: Trial) -> None:
        owners = {"a": "acme", "b": "beta", "c": "", "d": "acme", "e": "corp"}
        trial.submit(*(new_job(name, tenant=owner) for name, owner in owners.items()))

        assert {job.id for job in trial.claim(tenants=("acme", "corp"))} == {"a", "d", "e"}
        assert trial.claim(tenants=("acme",)) == ()
        assert {job.id for job in trial.claim()} == {"b", "c"}

    @pytest.mark.req("S3-45")
    def test_jobs_of_others_do_not_use_up_the_limit(self, trial: Trial) -> None:
        trial.submit(*(new_job(f"beta {number}", tenant="beta") for number in range(200)))
        trial.submit(new_job("first", tenant="acme"), new_job("second", tenant="acme"))

        assert [job.id for job in trial.claim(tenants=("acme",), limit=1)] == ["first"]
        assert [job.id for job in trial.claim(tenants=("acme",), limit=1)] == ["second"]

    @pytest.mark.req("S3-45")
    def test_jobs_of_others_that_become_due_are_left_ready(self, trial: Trial) -> None:
        trial.submit(*(new_job(name, tenant=name, delay_us=SECOND_US) for name in ("acme", "beta")))
        trial.advance_us(SECOND_US)

        assert [job.id for job in trial.claim(tenants=("acme",))] == ["acme"]
        assert trial.status("beta") is JobStatus.QUEUED

    @pytest.mark.req("S3-45")
    def test_limits_give_no_job_of_another_tenant(self, trial: Trial) -> None:
        trial.declare(QueueSettings(QUEUE, concurrency=2))
        trial.submit(*(new_job(name, tenant=name[0]) for name in ("b1", "a1", "b2", "a2", "a3")))

        assert {job.id for job in trial.claim(tenants=("a",))} == {"a1", "a2"}
        assert trial.claim(tenants=("b",)) == ()

    @pytest.mark.req("S3-45")
    def test_suspects_of_others_are_neither_given_nor_told(self, trial: Trial) -> None:
        trial.make_suspect(new_job("job", tenant="acme"))
        trial.renew()

        assert not trial.ask(tenants=("beta",)).suspects
        assert trial.claim(tenants=("beta",), quarantine=True) == ()
        assert trial.ask(tenants=("acme",)).suspects
        assert [job.id for job in trial.claim(tenants=("acme",), quarantine=True)] == ["job"]


class TestSuspects:
    """Jobs that were lost with a worker run alone, in quarantine."""

    def test_a_suspect_is_not_given_to_a_plain_claim_which_is_told_of_it(
        self, trial: Trial
    ) -> None:
        trial.make_suspect(new_job("suspect"))
        trial.submit(new_job("innocent"))
        trial.renew()

        answer = trial.ask()

        assert [job.id for job in answer.jobs] == ["innocent"]
        assert answer.suspects

    def test_a_quarantine_claim_gives_suspects_and_nothing_else(self, trial: Trial) -> None:
        trial.make_suspect(new_job("suspect"))
        trial.submit(new_job("innocent"))

        assert [job.id for job in trial.claim(quarantine=True)] == ["suspect"]
        assert trial.claim(BEN, quarantine=True) == ()
        assert [job.id for job in trial.claim(BEN)] == ["innocent"]

    def test_a_quarantine_claim_keeps_to_its_limit(self, trial: Trial) -> None:
        for name in ("first", "second"):
            trial.make_suspect(new_job(name))

        assert [job.id for job in trial.claim(quarantine=True, limit=1)] == ["first"]

    def test_a_worker_that_knows_every_task_is_told_of_suspects_and_given_them(
        self, trial: Trial
    ) -> None:
        trial.make_suspect(new_job("suspect"))
        trial.renew()

        assert trial.ask(tasks=(EVERY_TASK,)).suspects
        claimed = trial.claim(tasks=(EVERY_TASK,), quarantine=True)
        assert [job.id for job in claimed] == ["suspect"]

    def test_no_suspect_waits_where_none_is_ready(self, trial: Trial) -> None:
        trial.take(new_job("lost"), worker=BEN)
        trial.let_lease_expire()
        trial.rescue(BEN)
        trial.renew()

        assert not trial.ask().suspects, "it still waits out its rescue"
        trial.advance_us(2 * SECOND_US)
        assert trial.ask().suspects
        trial.claim(BEN, quarantine=True)
        assert not trial.ask().suspects

    def test_a_suspect_that_is_hurried_is_a_suspect_still(self, trial: Trial) -> None:
        trial.take(new_job("suspect"), worker=BEN)
        trial.let_lease_expire()
        trial.rescue(BEN)

        trial.run(trial.store.jobs.redrive(["suspect"]))

        assert trial.claim() == ()
        assert trial.claim_only(quarantine=True).id == "suspect"

    @pytest.mark.parametrize("quarantine", [False, True])
    def test_a_job_claimed_in_quarantine_is_marked_as_running_alone(
        self, trial: Trial, *, quarantine: bool
    ) -> None:
        if quarantine:
            trial.make_suspect(new_job("job"))
        else:
            trial.submit(new_job("job"), new_job("beside"))
        trial.claim(quarantine=quarantine)
        trial.let_lease_expire()

        assert trial.orphans(ANNA)["job"].alone is quarantine
