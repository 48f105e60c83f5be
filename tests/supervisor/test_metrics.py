# SPDX-License-Identifier: MIT
"""What `/metrics` counts, seen from outside, with figures that are not zero."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest

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
