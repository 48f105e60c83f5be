# SPDX-License-Identifier: MIT
"""A job for a process that was lost with its worker twice is a suspect, and still runs again."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from packhorse import JobHandle, JobStatus
from tests.supervisor.yard import IN_PROCESSES, JOBS, PATIENCE_S, Yard, until

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


STANDING: Final = """
@app.task
async def alone(ctx: Context) -> int:
    if ctx.job.attempt <= 2:
        os.kill(os.getpid(), 9)
    say("begun", ctx.job)
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    return os.getpid()
"""


@pytest.mark.parametrize("source", [JOBS + STANDING])
def test_one_process_stands_still_for_suspects_and_the_others_go_on(yard: Yard) -> None:
    parent = yard.worker("-p", "2")
    suspects = [yard.app.tasks["alone"].enqueue() for _ in range(2)]
    until("a suspect to run", lambda: any(map(_begun, [yard] * 2, suspects)))

    others = [yard.app.tasks["add"].enqueue(number) for number in range(20)]

    assert [one.result(timeout=PATIENCE_S) for one in others] == list(range(20))
    assert [_begun(yard, job) for job in suspects].count(True) == 1  # they run one by one
    yard.go()
    assert len({job.result(timeout=PATIENCE_S) for job in suspects}) == 1
    assert yard.stop(parent) == 0


def _begun(yard: Yard, job: JobHandle[Any]) -> bool:
    return (yard.folder / f"begun-{job.id}").exists()
