# SPDX-License-Identifier: MIT
"""Jobs that end their worker politely have crashed: by exit code 0, or by way of its loop."""

from __future__ import annotations

import os
import signal
from typing import Final

import pytest

from packhorse import DeadReason, JobStatus
from tests.supervisor.yard import JOBS, PATIENCE_S, Yard, lives, until
from tests.support.twins import ordinarily

POLITE: Final = """
async def leave(how):
    loop = asyncio.get_running_loop()
    if how == "exit 0":
        os._exit(0)
    if how == "sys.exit":
        async def exit():
            sys.exit(0)
        app.kept = asyncio.create_task(exit())
    if how == "callback":
        loop.call_soon(sys.exit, 0)
    if how == "loop.stop":
        loop.stop()
    if how == "all_tasks":
        for task in asyncio.all_tasks():
            task.cancel()
    await asyncio.sleep(600)

@app.task(max_crashes=1)
async def end_politely(ctx: Context, how: str) -> None:
    say("begun", ctx.job)
    await leave(how)

@app.task
async def stop_and_return() -> str:
    asyncio.get_running_loop().stop()
    return "done"

@app.task
async def beside(ctx: Context, number: int) -> int:
    say("begun", ctx.job)
    await asyncio.sleep(0.3)
    return number
"""

WAYS: Final = ("exit 0", "sys.exit", "callback", "loop.stop", "all_tasks")

RUN_HERE: Final = """
import sys
from jobs import app
report = app.run(lease="2s")
print(f"problem: {report.problem}")
sys.exit(report.exit_code)
"""


@pytest.fixture
def source() -> str:
    """The app with jobs that end their worker."""
    return JOBS + POLITE


@pytest.mark.req("S4-24", "S4-26")
@pytest.mark.parametrize("how", ordinarily(WAYS, "exit 0", "sys.exit", "all_tasks"))
def test_a_job_that_ends_its_worker_politely_has_crashed(yard: Yard, how: str) -> None:
    job = yard.app.tasks["end_politely"].enqueue(how)
    parent = yard.worker()

    dead = yard.finished(job)

    assert (dead.dead_reason, dead.crashes, dead.failures, dead.releases) == (
        *(DeadReason.WORKER_CRASHED, 1, 0, 0),
    )
    assert (dead.error.code, "its process" in dead.error.message) == ("WORKER_LOST", True)
    assert yard.app.tasks["add"].enqueue(40, 2).result(timeout=PATIENCE_S) == 42
    assert "another one takes its place" in yard.output(parent)
    assert yard.stop(parent) == 0


@pytest.mark.parametrize("how", ["sys.exit", "exit 0"])  # of the loop, and of the process
def test_the_neighbours_of_such_a_job_get_on(yard: Yard, how: str) -> None:
    jobs = [yard.app.tasks["beside"].enqueue(number) for number in range(5)]
    job = yard.app.tasks["end_politely"].enqueue(how)
    parent = yard.worker()

    assert [each.result(timeout=PATIENCE_S) for each in jobs] == list(range(5))
    assert yard.finished(job).dead_reason is DeadReason.WORKER_CRASHED
    assert [each.info().failures for each in jobs] == [0] * 5
    assert yard.stop(parent) == 0


def test_a_result_that_was_there_when_the_loop_was_stopped_stands(yard: Yard) -> None:
    job = yard.app.tasks["stop_and_return"].enqueue()
    parent = yard.worker()

    assert job.result(timeout=PATIENCE_S) == "done"
    assert (job.info().attempts, job.info().crashes) == (1, 0)
    assert yard.app.tasks["add"].enqueue(40, 2).result(timeout=PATIENCE_S) == 42
    assert yard.stop(parent) == 0


@pytest.mark.parametrize("how", ordinarily(("sys.exit", "loop.stop", "all_tasks"), "loop.stop"))
def test_it_has_crashed_without_a_parent_too(yard: Yard, how: str) -> None:
    job = yard.app.tasks["end_politely"].enqueue(how)
    (yard.folder / "here.py").write_text(RUN_HERE, encoding="utf-8")

    process = yard.python("here.py")

    assert process.wait(PATIENCE_S) == 8
    assert f"job {job.id}" in yard.output(process)
    info = job.info()
    assert (info.dead_reason, info.crashes, info.releases) == (DeadReason.WORKER_CRASHED, 1, 0)
    assert info.error is not None
    assert info.error.code == "WORKER_LOST"


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_child_that_is_stopped_from_outside_is_replaced(yard: Yard, processes: int) -> None:
    parent = yard.worker("-p", str(processes))

    def workers() -> set[int]:
        return {one.pid for one in yard.app.insights.workers() if one.live}

    until("the workers", lambda: len(workers()) == processes)
    one = min(workers())
    os.kill(one, signal.SIGTERM)

    until("it to go", lambda: not lives(one))
    until("another one", lambda: len(workers() - {one}) == processes)
    assert f"process {one} ended by itself (exit code 0" in yard.output(parent)
    assert yard.app.tasks["add"].enqueue(40, 2).result(timeout=PATIENCE_S) == 42
    assert yard.stop(parent) == 0


def test_an_app_that_exits_with_0_as_it_is_imported_is_an_error(yard: Yard) -> None:
    (yard.folder / "leaving.py").write_text("import os; os._exit(0)", encoding="utf-8")

    process = yard.start("worker", "leaving:app")

    assert process.wait(PATIENCE_S) == 1
    assert "before it had begun" in yard.output(process)


def test_a_burst_ends_with_code_0_and_stays_ended(yard: Yard) -> None:
    job = yard.app.tasks["add"].enqueue(1)
    parent = yard.worker("--burst", "-p", "2")

    assert parent.wait(PATIENCE_S) == 0
    assert job.status() is JobStatus.COMPLETED
    assert "takes its place" not in yard.output(parent)
