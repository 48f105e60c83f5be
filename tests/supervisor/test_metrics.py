# SPDX-License-Identifier: MIT
"""What `/metrics` counts, seen from outside, with figures that are not zero."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from packhorse.core.policies.series import BOUNDS_S, OUTCOMES, Series
from packhorse.runtime.supervisor.messages import Report
from tests.supervisor.shipped import expressions, problems, samples, value
from tests.supervisor.yard import JOBS, PATIENCE_S, Yard, asked, probe_address, until

TASKS = """
@app.task(retry=RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False))
async def fail_twice() -> None:
    raise ValueError("as asked")

@app.task(timeout="0.1s", retry=ONCE)
async def never_end() -> None:
    await asyncio.sleep(600)
"""


@pytest.fixture
def source() -> str:
    return JOBS + TASKS


def counted(address: str) -> dict[str, float]:
    """The figures without labels."""
    text = asked(f"{address}/metrics")[1]
    return {
        name: float(value)
        for name, value in re.findall(r"^packhorse_(\w+) (\S+)$", text, re.MULTILINE)
    }


@pytest.mark.req("S0-31", "S4-23", "S4-21", "S2-13")
def test_failures_retries_deaths_timeouts_and_durations_are_counted(yard: Yard) -> None:
    tasks = yard.app.tasks
    parent = yard.worker("--http", "127.0.0.1:0")
    address = probe_address(yard, parent)
    tasks["briefly"].enqueue(0.3).result(timeout=PATIENCE_S)
    yard.finished(tasks["fail_twice"].enqueue())
    yard.finished(tasks["never_end"].enqueue())

    expected = {
        "success_count": 1,
        "failure_count": 3,
        "retry_count": 1,
        "dead_count": 2,
        "timeout_count": 1,
        "running_jobs": 0,
    }
    until("the counts", lambda: expected.items() <= counted(address).items())

    assert 300 <= counted(address)["p95_duration_ms"] < PATIENCE_S * 1000
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-34", "S3-38")
def test_retries_cancellations_and_jobs_past_their_deadline_have_counters_of_their_own(
    yard: Yard,
) -> None:
    parent = yard.worker("--http", "127.0.0.1:0", "-c", "1")
    address = probe_address(yard, parent)
    tasks = yard.app.tasks
    yard.finished(tasks["fail_twice"].enqueue())
    lingering = tasks["linger"].enqueue()
    yard.begun(lingering)
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    late = tasks["add"].using(deadline=soon).enqueue(1)
    cancelled = {"queue": "default", "task": tasks["linger"].name, "outcome": "cancelled"}

    until("the deadline", lambda: counted(address)["expired_count"] == 1)
    lingering.cancel()

    until(
        "the cancel",
        lambda: value(asked(f"{address}/metrics")[1], "packhorse_attempts_total", **cancelled),
    )
    assert yard.record(late).dead_reason == "expired"
    figures = counted(address)
    assert (figures["expired_count"], figures["retry_count"], figures["dead_count"]) == (1, 1, 2)
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-21")
def test_jobs_held_ahead_of_their_start_are_exposed(yard: Yard) -> None:
    parent = yard.worker("--http", "127.0.0.1:0", "-c", "1")
    address = probe_address(yard, parent)
    for _ in range(400):  # short jobs: the worker learns that it may look ahead
        yard.app.tasks["add"].enqueue(1)
    yard.app.tasks["linger"].enqueue()
    yard.app.tasks["add"].enqueue_many([{"a": 1}] * 50)

    until("jobs held ahead", lambda: counted(address)["ahead_jobs"])

    yard.go()
    until("none held ahead", lambda: counted(address)["ahead_jobs"] == 0)
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-21")
def test_ends_that_the_store_has_not_accepted_yet_are_exposed(yard: Yard) -> None:
    parent = yard.worker("--http", "127.0.0.1:0")
    address = probe_address(yard, parent)
    yard.begun(yard.app.tasks["linger"].enqueue())

    with closing(sqlite3.connect(yard.folder / "jobs.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        yard.go()
        until("an end that waits", lambda: counted(address)["unsettled_jobs"] == 1)
        other.execute("rollback")

    until("none that waits", lambda: counted(address)["unsettled_jobs"] == 0)
    assert yard.stop(parent) == 0


MODES = {"one": (), "fleet": ("-p", "2"), "scaled": ("--autoscale", "1..2")}


@pytest.mark.req("S3-33", "S3-35", "S3-38", "S4-20", "S4-23")
@pytest.mark.parametrize("mode", MODES)
def test_attempts_are_counted_and_timed_by_queue_task_and_outcome(yard: Yard, mode: str) -> None:
    parent = yard.worker("--http", "127.0.0.1:0", *MODES[mode])
    address = probe_address(yard, parent)
    tasks = yard.app.tasks
    tasks["briefly"].enqueue(0.3).result(timeout=PATIENCE_S)
    yard.finished(tasks["fail_twice"].enqueue())

    briefly = {"queue": "default", "task": tasks["briefly"].name}
    failing = {"queue": "default", "task": tasks["fail_twice"].name}
    ends = ((briefly, "success"), (failing, "retried"), (failing, "dead"))

    def told() -> str:  # each process says it when it comes to that
        text = asked(f"{address}/metrics")[1]
        counts = [
            value(text, "packhorse_attempts_total", **labels, outcome=end) for labels, end in ends
        ]
        return text if all(counts) and value(text, "packhorse_dead_count") else ""

    text = until("the counts", told)

    for labels, end in ends:
        assert value(text, "packhorse_attempts_total", **labels, outcome=end) == 1
    assert value(text, "packhorse_dead_count") == 1
    for name in ("run", "wait"):
        assert value(text, f"packhorse_job_{name}_seconds_count", **briefly) == 1
        assert value(text, f"packhorse_job_{name}_seconds_bucket", **briefly, le="+Inf") == 1
    assert value(text, "packhorse_job_run_seconds_bucket", **briefly, le="0.25") == 0
    assert 0.3 <= value(text, "packhorse_job_run_seconds_sum", **briefly) < PATIENCE_S
    assert value(text, "packhorse_slots") >= 1
    assert value(text, "packhorse_queue_jobs", queue="default", state="dead") == 1
    exposed = samples(text)
    assert {name: found for name, each in expressions() if (found := problems(each, exposed))} == {}
    assert yard.stop(parent) == 0


def test_how_long_the_oldest_ready_job_waits_and_how_full_the_slots_are(yard: Yard) -> None:
    parent = yard.worker("-c", "1", PACKHORSE_HTTP="127.0.0.1:0")
    address = probe_address(yard, parent)
    yard.begun(yard.app.tasks["linger"].enqueue())
    yard.app.tasks["linger"].enqueue("another")

    def told() -> str:
        text = asked(f"{address}/metrics")[1]
        oldest = value(text, "packhorse_queue_oldest_ready_seconds", queue="default")
        return text if oldest and value(text, "packhorse_saturation_ratio") == 1 else ""

    until("a job that waits", told)
    yard.go()
    yard.go("another")
    assert yard.stop(parent) == 0


def test_totals_do_not_fall_when_a_process_is_replaced(yard: Yard) -> None:
    parent = yard.worker("--http", "127.0.0.1:0")
    address = probe_address(yard, parent)
    yard.app.tasks["add"].enqueue(1).result(timeout=PATIENCE_S)
    labels = {"queue": "default", "task": yard.app.tasks["add"].name, "outcome": "success"}

    def succeeded() -> float:
        return value(asked(f"{address}/metrics")[1], "packhorse_attempts_total", **labels)

    until("the count", lambda: succeeded() == 1)
    yard.finished(yard.app.tasks["take_down_once"].enqueue("kill"))

    until("the other process", lambda: counted(address)["process_restarts"] == 1)
    yard.app.tasks["add"].enqueue(1).result(timeout=PATIENCE_S)
    until("both counts", lambda: succeeded() == 2)
    lost = {**labels, "task": yard.app.tasks["take_down_once"].name, "outcome": "dead"}
    text = asked(f"{address}/metrics")[1]
    assert value(text, "packhorse_attempts_total", **lost) == 1
    assert yard.stop(parent) == 0


def test_series_replace_those_of_their_worker_and_add_up_over_workers() -> None:
    def series(task: str, count: int) -> Series:
        numbers = tuple(count if each == "success" else 0 for each in OUTCOMES)
        buckets = (count,) + (0,) * len(BOUNDS_S)
        return Series("default", task, numbers, run=buckets, run_s=count / 1000)

    first = Report(series=(series("add", 1), series("mail", 5)))
    second = Report(series=(series("add", 2),)).heard_after(first)
    total = Report(series=(series("add", 7),)).after(second)

    assert {each.task: each.outcomes[0] for each in second.series} == {"add": 2, "mail": 5}
    assert {each.task: each.run[0] for each in total.series} == {"add": 9, "mail": 5}


def test_an_expression_over_what_is_not_exposed_is_noticed() -> None:
    exposed = samples('packhorse_queue_jobs{queue="a",state="dead"} 1\n')

    assert problems('sum(rate(packhorse_queue_jobs{state="dead"}[5m])) > 0', exposed) == []
    assert problems('sum by (pod) (packhorse_queue_jobs{state="ded", x="1"}) / gone', exposed) == [
        "no sample has a label pod",
        "packhorse_queue_jobs has no state ded",
        "packhorse_queue_jobs has no label x",
        "gone is not exposed",
    ]
