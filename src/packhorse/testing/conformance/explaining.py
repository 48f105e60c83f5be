# SPDX-License-Identifier: MIT
"""`explain`: why a job is not running; one test per reason."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, RateRule
from packhorse.core.policies.explain import (
    JOBS_NAMED_MAX,
    JobFacts,
    Obstacle,
    ReasonCode,
    explain,
)
from packhorse.core.policies.lease import taken_back_us
from packhorse.core.settlement import SettlementKind
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import (
    cancel,
    everywhere,
    limit_queue,
    limit_rate,
    limit_task,
    submit,
)

_FAR_US: Final = 3600 * SECOND_US

#: The expected reason for the only job of a store, by its status.
_ALONE: Final = MappingProxyType(
    {
        JobStatus.PENDING: ReasonCode.NOT_DUE,
        JobStatus.QUEUED: ReasonCode.READY,
        JobStatus.PROCESSING: ReasonCode.RUNNING,
        JobStatus.COMPLETED: ReasonCode.FINISHED,
        JobStatus.FAILED: ReasonCode.RETRY_WAITS,
        JobStatus.CANCELLED: ReasonCode.FINISHED,
        JobStatus.TIMEOUT: ReasonCode.RETRY_WAITS,
        JobStatus.DEAD: ReasonCode.FINISHED,
    }
)


class TestExplaining:
    """Return every reason that holds, and no other."""

    def test_a_job_that_is_not_there_or_another_tenants_is_none(self, trial: Trial) -> None:
        submit(trial, "theirs", tenant="acme")
        ask = trial.store.inspection.explain

        assert trial.run(ask("nothing")) is None
        assert trial.run(ask("theirs", tenant="other")) is None
        assert trial.run(ask("theirs", tenant="acme")) is not None

    @pytest.mark.parametrize("status", JobStatus)
    def test_every_status_has_its_answer(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")
        _serve(trial)

        assert _codes(trial, "job") == [_ALONE[status]]

    def test_the_first_is_ready_and_the_others_are_behind(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, *"abc")
        submit(trial, "urgent", priority=0)

        assert _codes(trial, "urgent") == [ReasonCode.READY]
        assert _codes(trial, "c") == [ReasonCode.BEHIND]
        assert _facts(trial, "c").ahead == 3

    def test_other_queues_parked_and_waiting_jobs_are_not_counted_before_a_job(
        self, trial: Trial
    ) -> None:
        _serve(trial)
        submit(trial, "elsewhere", queue="other")
        submit(trial, "unknown", task="resize")
        submit(trial, "later", delay_us=_FAR_US)
        submit(trial, "asked")
        trial.run(trial.store.upkeep.park(after_us=_FAR_US, limit=9))

        assert _codes(trial, "asked") == [ReasonCode.READY]
        assert _codes(trial, "unknown") == [ReasonCode.PARKED]
        assert _codes(trial, "elsewhere") == [ReasonCode.NO_WORKER]

    def test_a_job_that_is_not_due_says_when_it_is(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, "later", delay_us=_FAR_US)

        assert _only(trial, "later").at_us == trial.now_us() + _FAR_US

    def test_a_running_job_says_where_and_since_when(self, trial: Trial) -> None:
        began_us = trial.now_us()
        trial.take(new_job("a"))
        trial.advance_us(5 * SECOND_US)

        reason = _only(trial, "a")

        assert reason.at_us == began_us
        assert ANNA in reason.text

    def test_a_job_whose_worker_is_gone_says_since_when_and_when_it_is_taken_back(
        self, trial: Trial
    ) -> None:
        heard_us = trial.now_us()
        trial.take(new_job("a"))
        trial.let_lease_expire()
        trial.renew(BEN)

        reason = _only(trial, "a")

        assert reason.code is ReasonCode.WORKER_LOST
        assert reason.at_us == taken_back_us(heard_us + LEASE_US, LEASE_US) > trial.now_us()
        assert f"{ANNA} has not been heard of for 31s" in reason.text

    def test_a_job_that_was_held_too_long_or_by_a_forgotten_worker_says_so(
        self, trial: Trial
    ) -> None:
        trial.take(new_job("a", timeout_us=1))
        trial.let_lease_expire()
        trial.renew(ANNA)
        assert "has held it for too long" in _only(trial, "a").text

        trial.renew(ANNA, lease_us=0)

        assert "no worker lives that could take it back" in _only(trial, "a").text

    def test_a_passed_deadline_is_told(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, "late", deadline_us=trial.now_us() + 1)
        trial.advance_us(1)

        assert _codes(trial, "late") == [ReasonCode.DEADLINE_PASSED]

    def test_a_queue_without_a_live_worker_says_so(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, "a")
        assert _codes(trial, "a") == [ReasonCode.READY]

        trial.let_lease_expire()

        assert _codes(trial, "a") == [ReasonCode.NO_WORKER]

    def test_served_queues_are_told_in_order_whichever_worker_came_first(
        self, trial: Trial
    ) -> None:
        trial.renew(BEN, queues=("first", "third"), tasks=(TASK,))
        trial.renew(ANNA, queues=("third", "second"), tasks=(TASK,))
        submit(trial, "a")

        assert _facts(trial, "a").queues == ("first", "second", "third")

    def test_a_task_no_live_worker_knows_is_told(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, "a", task="resize")

        assert ReasonCode.UNKNOWN_TASK in _codes(trial, "a")

    def test_workers_that_are_all_quiet_are_told(self, trial: Trial) -> None:
        trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK,), quiet=True)
        submit(trial, "a")
        assert _codes(trial, "a") == [ReasonCode.WORKERS_QUIET]

        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

        assert _codes(trial, "a") == [ReasonCode.READY]

    def test_a_suspect_says_so(self, trial: Trial) -> None:
        trial.make_suspect(new_job("suspect"))
        _serve(trial)
        trial.ask()

        assert _codes(trial, "suspect") == [ReasonCode.SUSPECT]

    def test_pauses_of_queue_key_and_tenant_are_all_told(self, trial: Trial) -> None:
        _serve(trial)
        submit(trial, "a", tenant="t", rate_key="k")
        pause = trial.store.queues.pause
        trial.pause()
        trial.run(pause(QUEUE, paused=True, key="k"))
        trial.run(pause(QUEUE, paused=True, tenant="t"))

        assert _codes(trial, "a") == [
            ReasonCode.QUEUE_PAUSED,
            ReasonCode.TENANT_PAUSED,
            ReasonCode.KEY_PAUSED,
        ]

    @pytest.mark.parametrize("claimed", [True, False])
    def test_the_head_of_the_line_is_named(self, trial: Trial, *, claimed: bool) -> None:
        _serve(trial)
        submit(trial, "head", "asked", ordering_key="k")
        if claimed:
            trial.ask(limit=1)

        (reason, *_) = explain(_facts(trial, "asked"))

        assert (reason.code, reason.jobs) == (ReasonCode.BEHIND_HEAD, ("head",))

    def test_a_dead_head_that_holds_its_line_is_named(self, trial: Trial) -> None:
        limit_queue(trial, on_dead="hold")
        submit(trial, "head", "asked", ordering_key="k")
        (head,) = trial.claim()
        trial.end(head, SettlementKind.DEAD)
        _serve(trial)

        assert _only(trial, "asked").jobs == ("head",)

    def test_those_who_keep_a_key_busy_are_named_as_far_as_one_may_know(self, trial: Trial) -> None:
        limit_task(trial, concurrency=2)
        submit(trial, "ours", tenant="t", concurrency_key="k")
        submit(trial, "theirs", tenant="u", concurrency_key="k")
        submit(trial, "asked", tenant="t", concurrency_key="k")
        _serve(trial)
        trial.ask(limit=2)

        everything = _only(trial, "asked")
        visible = _only(trial, "asked", tenant="t")

        assert everything.code is ReasonCode.CONCURRENCY
        assert (everything.jobs, everything.count) == (("ours", "theirs"), 2)
        assert (visible.jobs, visible.count) == (("ours",), 2)

    def test_a_busy_queue_names_only_so_many(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=14)
        submit(trial, *(f"job-{number:02}" for number in range(15)))
        _serve(trial)
        trial.ask()

        (closed,) = _facts(trial, "job-14").closed

        assert (closed.running, closed.limit) == (14, 14)
        assert closed.jobs == tuple(f"job-{number:02}" for number in range(JOBS_NAMED_MAX))

    @everywhere
    def test_a_rate_limit_says_when_it_frees(self, trial: Trial, where: str) -> None:
        limit_rate(trial, where, RateRule(1, 64 * SECOND_US))
        submit(trial, "a", "b", tenant="t", rate_key="k")
        _serve(trial)
        trial.ask(limit=1)
        told_us = trial.ask().next_due_us

        reason = _only(trial, "b")

        assert (reason.code, reason.at_us) == (ReasonCode.RATE_LIMIT, told_us)

    def test_a_key_that_another_systems_limit_closed_says_when_it_opens(self, trial: Trial) -> None:
        submit(trial, "a", "b", rate_key="k")
        (a,) = trial.claim(limit=1)
        trial.end(a, SettlementKind.LIMITED)
        _serve(trial)

        (reason, *_) = explain(_facts(trial, "b"))

        assert (reason.code, reason.at_us) == (
            ReasonCode.RATE_LIMIT,
            trial.now_us() + 5 * SECOND_US,
        )

    def test_gates_that_are_open_are_no_reason(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1, rate=RateRule(1, SECOND_US))
        submit(trial, "a", ordering_key="k")
        _serve(trial)

        assert _codes(trial, "a") == [ReasonCode.READY]

    def test_every_closed_gate_is_told(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1, rate=RateRule(1, _FAR_US))
        submit(trial, "a", "b", ordering_key="k")
        _serve(trial)
        trial.ask()

        codes = set(_codes(trial, "b"))

        assert codes == {ReasonCode.BEHIND_HEAD, ReasonCode.CONCURRENCY, ReasonCode.RATE_LIMIT}

    def test_asking_changes_nothing(self, trial: Trial) -> None:
        limit_queue(trial, rate=RateRule(1, _FAR_US))
        submit(trial, "a")
        _serve(trial)
        before = trial.picture("a")

        for _ in range(3):
            assert _codes(trial, "a") == [ReasonCode.READY]

        assert trial.picture("a") == before

    def test_facts_leave_out_payload_and_result(self, trial: Trial) -> None:
        trial.finish(new_job("a"))
        submit(trial, "b")
        cancel(trial, "b")

        assert _facts(trial, "a").record.result is None
        assert {_facts(trial, name).record.payload for name in "ab"} == {b""}


def _serve(trial: Trial) -> None:
    """Let a live worker serve the queue and know the task."""
    trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK,))


def _facts(trial: Trial, job_id: str, tenant: str | None = None) -> JobFacts:
    found = trial.run(trial.store.inspection.explain(job_id, tenant=tenant))
    assert found is not None
    return found


def _codes(trial: Trial, job_id: str) -> list[ReasonCode]:
    return [reason.code for reason in explain(_facts(trial, job_id))]


def _only(trial: Trial, job_id: str, tenant: str | None = None) -> Obstacle:
    (reason,) = explain(_facts(trial, job_id, tenant))
    return reason
