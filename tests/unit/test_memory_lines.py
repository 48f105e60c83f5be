# SPDX-License-Identifier: MIT
"""Order inside a line, shares between tenants and ageing, in the reference store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from packhorse.clock import SECOND_US
from packhorse.job import DeadReason, JobStatus, Priority
from packhorse.settlement import SettlementKind
from packhorse.stores.requests import JobFilter, QueueSettings, RedriveAnswer
from packhorse.testing.conformance.samples import QUEUE, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial, wakes_of


def line_of(*names: str, trial: Trial | None = None, **changes: Any) -> Trial:
    """These jobs in one line."""
    trial = memory_trial() if trial is None else trial
    values = {"ordering_key": "k"} | changes
    trial.submit(*(new_job(name, **values) for name in names))
    return trial


def given(trial: Trial, **request: Any) -> list[str]:
    return [job.id for job in trial.claim(**request)]


def redrive(trial: Trial, job_id: str) -> RedriveAnswer:
    (answer,) = trial.run(trial.store.jobs.redrive([job_id]))
    return answer


# ----------------------------------------------------------------------------------------- order


@pytest.mark.req("S0-24", "S2-24", "X-10")
@pytest.mark.parametrize(
    "kind",
    [
        SettlementKind.FAILED,
        SettlementKind.TIMEOUT,
        SettlementKind.SNOOZED,
        SettlementKind.RELEASED,
    ],
)
def test_a_head_that_waits_again_holds_its_line_and_others_go_on(kind: SettlementKind) -> None:
    trial = line_of("first", "second")
    line_of("other", trial=trial, ordering_key="l")
    first, other = trial.claim()
    assert (first.id, other.id) == ("first", "other")

    trial.end(first, kind)
    trial.advance_us(60 * SECOND_US)

    assert given(trial) == ["first"]


@pytest.mark.parametrize(
    "kind", [SettlementKind.COMPLETED, SettlementKind.CANCELLED, SettlementKind.DEAD]
)
def test_a_head_that_has_ended_frees_its_line(kind: SettlementKind) -> None:
    trial = line_of("first", "second")
    (first,) = trial.claim()

    trial.end(first, kind)

    assert given(trial) == ["second"]


def test_a_head_that_was_lost_holds_its_line_until_it_has_run_alone() -> None:
    trial = memory_trial()
    trial.make_suspect(new_job("first", ordering_key="k"))
    line_of("second", trial=trial)

    assert given(trial) == []
    assert given(trial, quarantine=True) == ["first"]


def test_a_head_that_is_not_due_holds_those_behind_it() -> None:
    trial = line_of("later", delay_us=SECOND_US)
    line_of("now", trial=trial)

    assert given(trial) == []
    trial.advance_us(SECOND_US)
    assert given(trial) == ["later"]


def test_inside_a_line_only_order_counts_and_the_line_ranks_by_its_head() -> None:
    trial = line_of("low_head", priority=Priority.LOW)
    line_of("urgent", trial=trial, priority=Priority.CRITICAL)
    trial.submit(new_job("normal"))

    (normal, head) = trial.claim()

    assert (normal.id, head.id) == ("normal", "low_head")


def test_lines_of_queues_and_tenants_are_apart() -> None:
    trial = line_of("a", tenant="a")
    line_of("b", trial=trial, tenant="b")
    line_of("c", trial=trial, tenant="a", queue="other")

    assert given(trial, queues=(QUEUE, "other")) == ["a", "b", "c"]


def test_a_redriven_job_goes_to_the_end_of_its_line() -> None:
    trial = line_of("first", "second", "third")
    (first,) = trial.claim()
    trial.end(first, SettlementKind.DEAD)

    assert redrive(trial, "first") is RedriveAnswer.REDRIVEN

    for name in ("second", "third", "first"):
        assert trial.end(trial.claim_only())
        assert trial.status(name) is JobStatus.COMPLETED


def test_a_waiting_job_that_is_hurried_keeps_its_place_in_line() -> None:
    trial = line_of("first", delay_us=SECOND_US)
    line_of("second", trial=trial)

    assert redrive(trial, "first") is RedriveAnswer.REDRIVEN

    assert given(trial) == ["first"]


def test_a_dead_head_holds_its_line_where_it_is_told_to_until_it_is_redriven() -> None:
    trial = line_of("first", "second")
    trial.declare(QueueSettings(QUEUE, on_dead="hold"))
    (first,) = trial.claim()
    trial.end(first, SettlementKind.DEAD)
    assert given(trial) == []

    redrive(trial, "first")

    assert given(trial) == ["second"]


def test_a_dead_head_that_is_removed_frees_its_line_and_wakes_workers() -> None:
    trial = line_of("first", "second")
    trial.declare(QueueSettings(QUEUE, on_dead="hold"))
    (first,) = trial.claim()
    trial.end(first, SettlementKind.DEAD)

    removal = trial.store.jobs.delete(JobFilter(), limit=1)

    assert wakes_of(trial, removal) == {f"queue:{QUEUE}"}
    assert given(trial) == ["second"]


def test_whoever_died_before_dead_heads_held_lines_holds_none() -> None:
    trial = line_of("first", "second")
    (first,) = trial.claim()
    trial.end(first, SettlementKind.DEAD)

    trial.declare(QueueSettings(QUEUE, on_dead="hold"))

    assert given(trial) == ["second"]


def test_a_head_cancelled_while_it_waits_frees_its_line_and_wakes_workers() -> None:
    trial = line_of("first", "second")

    assert f"queue:{QUEUE}" in wakes_of(trial, trial.store.jobs.cancel("first"))

    assert given(trial) == ["second"]


def test_a_head_that_completes_wakes_workers_for_the_next() -> None:
    trial = line_of("first", "second")
    (first,) = trial.claim()
    done = trial.store.jobs.settle([settlement_of(SettlementKind.COMPLETED, first)])

    assert wakes_of(trial, done) == {f"queue:{QUEUE}"}


# ---------------------------------------------------------------------------------------- shares


def fair(**settings: Any) -> Trial:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, fair=True, **settings))
    return trial


def fill(trial: Trial, tenant: str, jobs: int, **changes: Any) -> None:
    trial.submit(*(new_job(f"{tenant}-{n}", tenant=tenant, **changes) for n in range(jobs)))


def shares(trial: Trial, jobs: int) -> Counter[str]:
    return Counter(job.tenant for job in trial.claim(limit=jobs))


def test_ten_jobs_of_one_tenant_start_beside_a_thousand_of_another() -> None:
    trial = fair()
    fill(trial, "big", 1_000)
    trial.claim(limit=100)

    fill(trial, "small", 10)

    assert shares(trial, 22)["small"] == 10


def test_a_critical_job_costs_its_tenant_nothing_among_the_others() -> None:
    trial = fair()
    trial.submit(new_job("urgent", tenant="small", priority=Priority.CRITICAL))
    assert given(trial) == ["urgent"]
    fill(trial, "big", 1_000)
    fill(trial, "small", 10)

    assert shares(trial, 22)["small"] == 10


def test_delayed_jobs_share_like_others_when_they_become_due() -> None:
    trial = fair()
    fill(trial, "big", 900, delay_us=SECOND_US)
    fill(trial, "small", 10, delay_us=2 * SECOND_US)
    trial.advance_us(2 * SECOND_US)

    assert shares(trial, 22)["small"] == 10


def test_redriven_jobs_share_like_others() -> None:
    trial = fair()
    fill(trial, "big", 100)
    for job in trial.claim():
        trial.end(job, SettlementKind.DEAD)
    trial.run(trial.store.jobs.redrive([f"big-{n}" for n in range(100)]))

    fill(trial, "small", 10)

    assert shares(trial, 22)["small"] == 10


def test_tenants_share_by_weight() -> None:
    trial = fair(weights={"gold": 3})
    fill(trial, "gold", 200)
    fill(trial, "plain", 200)

    assert shares(trial, 80) == Counter(gold=60, plain=20)


def test_a_released_job_keeps_its_turn() -> None:
    trial = fair()
    fill(trial, "a", 3)
    first, *_ = trial.claim(limit=1)
    fill(trial, "b", 3)

    trial.end(first, SettlementKind.RELEASED)

    assert given(trial, limit=1) == [first.id]


def test_in_a_queue_that_is_not_fair_the_first_come_go_first() -> None:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, fair=False))
    fill(trial, "big", 100)
    fill(trial, "small", 10)

    assert shares(trial, 100) == Counter(big=100)


# ---------------------------------------------------------------------------------------- ageing


@pytest.mark.req("S2-18")
def test_low_work_finishes_under_endless_high_load_where_jobs_age() -> None:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, fair=False, ageing_us=10 * SECOND_US))
    trial.submit(new_job("low", priority=Priority.BACKGROUND))

    seconds = 0
    while trial.status("low") is JobStatus.QUEUED:
        trial.submit(new_job(f"high-{seconds}", priority=Priority.CRITICAL))
        trial.claim(limit=1)
        trial.advance_us(SECOND_US)
        seconds += 1
        assert seconds < 60

    assert 40 <= seconds <= 42


def test_a_dropped_head_of_a_line_frees_it() -> None:
    trial = line_of("first", priority=Priority.BACKGROUND)
    line_of("second", trial=trial)
    trial.declare(QueueSettings(QUEUE, max_depth=2, on_full="drop"))

    trial.submit(new_job("urgent"))

    assert trial.record("first").dead_reason is DeadReason.SHED
    assert given(trial) == ["second", "urgent"]
