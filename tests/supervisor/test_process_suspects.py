# SPDX-License-Identifier: MIT
"""A job for a process that was lost with its worker twice is a suspect, and still runs again."""

from __future__ import annotations

import time
from typing import Final

import pytest

from packhorse import JobStatus
from tests.supervisor.yard import IN_PROCESSES, JOBS, PATIENCE_S, Yard

FIRST_TIME: Final = """
@app.task(executor="process")
def stumble(ctx: Context) -> int:
    say(f"begun-{ctx.job.attempt}", ctx.job)
    if ctx.job.attempt <= 2:
        os.kill(os.getppid(), 9)
        time.sleep(600)
    return ctx.job.attempt
"""


@pytest.fixture
def source() -> str:
    """The app with a task that takes its worker down the first two times."""
    return JOBS + IN_PROCESSES + FIRST_TIME


@pytest.mark.req("S4-24", "S3-26")
def test_a_suspect_for_a_process_runs_in_an_idle_worker(yard: Yard) -> None:
    job = yard.app.tasks["stumble"].enqueue()
    yard.worker("--process-slots", "1")

    assert job.result(timeout=PATIENCE_S) == 3
    info = job.info()
    assert (info.status, info.crashes) == (JobStatus.COMPLETED, 2)


@pytest.mark.req("S4-24", "S3-26")
def test_other_jobs_for_processes_do_not_keep_it_from_its_turn(yard: Yard) -> None:
    job = yard.app.tasks["stumble"].enqueue()
    parent = yard.worker("--process-slots", "2")
    waits = [yard.app.tasks["wait_a_little"].enqueue() for _ in range(20)]

    deadline = time.monotonic() + PATIENCE_S
    while job.status() is not JobStatus.COMPLETED:  # there is always another one
        assert time.monotonic() < deadline, job.explain()
        waits.append(yard.app.tasks["wait_a_little"].enqueue())
        waits.pop(0).result(timeout=PATIENCE_S)

    assert [one.result(timeout=PATIENCE_S) > 0 for one in waits] == [True] * len(waits)
    assert yard.stop(parent) == 0
