# SPDX-License-Identifier: MIT
"""What the reference store sees of a job that somebody asks about."""

from __future__ import annotations

from typing import Any

from packhorse.clock import SECOND_US
from packhorse.job import RateRule
from packhorse.policies.explain import JOBS_NAMED_MAX, JobFacts, ReasonCode, explain
from packhorse.settlement import SettlementKind
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial


def serving(*jobs: Any, **settings: Any) -> Trial:
    """A store with these jobs, a limited queue, and a live worker that could run them."""
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, **settings))
    trial.submit(*jobs)
    trial.renew("anna", queues=(QUEUE,), tasks=(TASK,))
    return trial


def take(trial: Trial, limit: int = 1) -> None:
    trial.ask("anna", limit=limit)


def facts(trial: Trial, job_id: str, tenant: str | None = None) -> JobFacts:
    found = trial.run(trial.store.inspection.explain(job_id, tenant=tenant))
    assert found is not None
    return found


def codes(trial: Trial, job_id: str) -> list[ReasonCode]:
    return [reason.code for reason in explain(facts(trial, job_id))]


def test_a_job_that_is_not_there_or_another_tenants_is_none() -> None:
    trial = serving(new_job("theirs", tenant="acme"))
    ask = trial.store.inspection.explain

    assert trial.run(ask("nothing")) is None
    assert trial.run(ask("theirs", tenant="other")) is None
    assert trial.run(ask("theirs", tenant="acme")) is not None


def test_the_first_is_ready_and_the_others_are_behind() -> None:
    trial = serving(*(new_job(name) for name in "abc"), new_job("urgent", priority=0))

    assert codes(trial, "urgent") == [ReasonCode.READY]
    assert codes(trial, "c") == [ReasonCode.BEHIND]
    assert facts(trial, "c").ahead == 3


def test_other_queues_parked_and_waiting_jobs_are_not_before_anybody() -> None:
    trial = serving(
        new_job("elsewhere", queue="other"),
        new_job("unknown", task="resize"),
        new_job("later", delay_us=1),
        new_job("asked"),
    )
    trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=9))

    assert codes(trial, "asked") == [ReasonCode.READY]
    assert codes(trial, "unknown") == [ReasonCode.PARKED]
    assert codes(trial, "later") == [ReasonCode.NOT_DUE]
    assert codes(trial, "elsewhere") == [ReasonCode.NO_WORKER]


def test_a_running_a_failed_and_a_finished_job_say_so() -> None:
    trial = serving(new_job("a"))
    (job,) = trial.ask("anna").jobs
    assert codes(trial, "a") == [ReasonCode.RUNNING]

    trial.end(job, SettlementKind.FAILED)
    assert codes(trial, "a") == [ReasonCode.RETRY_WAITS]
    trial.run(trial.store.jobs.cancel("a"))

    assert codes(trial, "a") == [ReasonCode.FINISHED]


def test_pauses_of_queue_key_and_tenant_are_all_told() -> None:
    trial = serving(new_job("a", tenant="t", rate_key="k"))
    pause = trial.store.queues.pause
    trial.pause()
    trial.run(pause(QUEUE, paused=True, key="k"))
    trial.run(pause(QUEUE, paused=True, tenant="t"))

    assert codes(trial, "a") == [
        ReasonCode.QUEUE_PAUSED,
        ReasonCode.TENANT_PAUSED,
        ReasonCode.KEY_PAUSED,
    ]


def test_the_head_of_the_line_is_named() -> None:
    trial = serving(new_job("head", ordering_key="k"), new_job("asked", ordering_key="k"))
    take(trial)

    (reason,) = explain(facts(trial, "asked"))

    assert (reason.code, reason.jobs) == (ReasonCode.BEHIND_HEAD, ("head",))


def test_those_who_keep_a_key_busy_are_named_as_far_as_one_may_know() -> None:
    trial = serving(
        new_job("ours", tenant="t", concurrency_key="k"),
        new_job("theirs", tenant="u", concurrency_key="k"),
        new_job("asked", tenant="t", concurrency_key="k"),
    )
    trial.run(trial.store.queues.declare_tasks([TaskSettings(TASK, concurrency=2)]))
    take(trial, limit=2)

    (everything,) = explain(facts(trial, "asked"))
    (visible,) = explain(facts(trial, "asked", tenant="t"))

    assert everything.code is ReasonCode.CONCURRENCY
    assert (everything.jobs, everything.count) == (("ours", "theirs"), 2)
    assert (visible.jobs, visible.count) == (("ours",), 2)


def test_a_busy_queue_names_only_so_many() -> None:
    trial = serving(*(new_job(f"job-{n:02}") for n in range(15)), concurrency=14)
    take(trial, limit=15)

    (closed,) = facts(trial, "job-14").closed

    assert (closed.running, closed.limit) == (14, 14)
    assert closed.jobs == tuple(f"job-{n:02}" for n in range(JOBS_NAMED_MAX))


def test_a_rate_limit_says_when_it_frees() -> None:
    trial = serving(new_job("a"), new_job("b"), rate=RateRule(1, 64 * SECOND_US))
    take(trial)
    answer = trial.ask("anna")

    (reason,) = explain(facts(trial, "b"))

    assert (reason.code, reason.at_us) == (ReasonCode.RATE_LIMIT, answer.next_due_us)


def test_a_suspect_and_an_unknown_task_say_so() -> None:
    trial = serving()
    trial.make_suspect(new_job("suspect"))
    trial.submit(new_job("unknown", task="resize"))
    trial.renew("anna", queues=(QUEUE,), tasks=(TASK,))
    trial.ask("anna")

    assert codes(trial, "suspect") == [ReasonCode.SUSPECT]
    assert ReasonCode.UNKNOWN_TASK in codes(trial, "unknown")


def test_a_passed_deadline_is_told() -> None:
    trial = serving()
    trial.submit(new_job("late", deadline_us=trial.now_us() + 1))
    trial.advance_us(1)

    assert codes(trial, "late") == [ReasonCode.DEADLINE_PASSED]


def test_facts_leave_out_payload_and_result() -> None:
    trial = serving(new_job("a"))

    assert facts(trial, "a").record.payload == b""


def test_gates_that_are_open_are_no_reason() -> None:
    trial = serving(new_job("a", ordering_key="k"), concurrency=1, rate=RateRule(1, SECOND_US))

    assert codes(trial, "a") == [ReasonCode.READY]
