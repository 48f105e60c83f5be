# SPDX-License-Identifier: MIT
"""Process handlers that fork, start programs or leave code running: no other job suffers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import Any, Final

import pytest

from packhorse import JobHandle, JobStatus
from packhorse.core.job import Progress
from tests.supervisor.yard import JOBS, PATIENCE_S, Yard, lives, supervised, until

FORKS: Final = """
import multiprocessing, subprocess, threading

def note(word):
    with open(word, "a") as file:
        file.write(f"{os.getpid()}\\n")

@app.task(executor="process")
def plain(number: int) -> str:
    return f"plain {number}"

@app.task(executor="process")
def fork(how: str) -> str:
    if os.fork() == 0:
        note(how)
        if how == "exit":
            sys.exit(0)
        if how == "fail":
            raise ValueError("in the fork")
        if how == "stay":
            time.sleep(600)
        return "from the fork"
    until_noted(how)
    return "from the handler"

@app.task(executor="process")
async def fork_awaiting() -> str:
    if os.fork() == 0:
        note("forked")
        sys.exit(0)
    until_noted("forked")
    await asyncio.sleep(0)
    return "from the handler"

@app.task(executor="process")
def exit_code(code: int) -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@app.task
def fork_in_a_thread(how: str) -> str:
    return fork(how)

@app.task
async def fork_on_the_loop() -> str:
    if os.fork() == 0:
        note("forked")
        sys.exit(0)
    until_noted("forked")
    await asyncio.sleep(0)
    return "from the handler"

def until_noted(word):
    while not (os.path.exists(word) and os.path.getsize(word)):
        time.sleep(0.01)

@app.task(executor="process")
def start(how: str) -> int:
    if how == "program":
        pid = subprocess.Popen(["sleep", "600"]).pid
    elif how == "session":
        pid = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
    else:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        pid = child.pid
    pathlib.Path("started").write_text(str(pid))
    return pid

@app.task(executor="process")
def start_and_wait() -> None:
    if os.fork() == 0:
        note("forked")
        time.sleep(600)
    subprocess.Popen([sys.executable, "-c",
        "import os, time; open('program', 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"])
    time.sleep(600)

@app.task(executor="process")
def leak_a_thread(ctx: Context) -> int:
    def go_on():
        while not os.path.exists("next"):
            time.sleep(0.01)
        ctx.progress(77, 100, "from the job before")
        pathlib.Path("told").touch()
    threading.Thread(target=go_on, daemon=True).start()
    return os.getpid()

@app.task(executor="process")
def follow(ctx: Context) -> int:
    ctx.progress(1, 2)
    pathlib.Path("next").touch()
    while not os.path.exists("told"):
        time.sleep(0.01)
    return os.getpid()

@app.task(executor="process")
async def leak_a_task() -> int:
    async def exit_later():
        await asyncio.sleep(0.01)
        sys.exit(0)
    app.leaked = asyncio.create_task(exit_later())
    return os.getpid()

@app.task(executor="process")
async def await_a_moment() -> int:
    await asyncio.sleep(0.1)
    return os.getpid()

@app.task(executor="process")
def use_and_end(how: str) -> int:
    context = multiprocessing.get_context(how)
    with context.Pool(1) as pool:
        assert pool.apply(abs, (-3,)) == 3
    return os.getpid()
"""


@pytest.fixture
def source() -> str:
    """The app with handlers that fork."""
    return JOBS + FORKS


def result(job: JobHandle[Any]) -> Any:
    return job.result(timeout=PATIENCE_S)


def pids(yard: Yard, word: str) -> list[int]:
    path = yard.folder / word
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def one_forked_and_ended(yard: Yard, word: str) -> None:
    until("the fork to end", lambda: not any(map(lives, pids(yard, word))))
    assert len(pids(yard, word)) == 1


@pytest.mark.req("S4-24", "S4-27")
def test_results_stay_with_their_jobs_when_a_handler_forks(yard: Yard) -> None:
    plain, fork = yard.app.tasks["plain"], yard.app.tasks["fork"]
    ways = ("return", "exit", "fail", "stay")
    jobs = [job for how in ways for job in (fork.enqueue(how), *map(plain.enqueue, range(5)))]
    parent = yard.worker("--process-slots", "1")

    expected = ["from the handler", *(f"plain {number}" for number in range(5))]
    assert [result(job) for job in jobs] == expected * len(ways)
    assert [job.info().crashes for job in jobs] == [0] * len(jobs)
    for how in ways:
        one_forked_and_ended(yard, how)
    assert yard.stop(parent) == 0


def test_a_coroutine_that_forks_keeps_its_result_too(yard: Yard) -> None:
    jobs = [yard.app.tasks["fork_awaiting"].enqueue(), yard.app.tasks["plain"].enqueue(1)]
    parent = yard.worker("--process-slots", "1")

    assert [result(job) for job in jobs] == ["from the handler", "plain 1"]
    assert yard.stop(parent) == 0


def test_a_fork_of_the_worker_itself_ends_with_its_handler(yard: Yard) -> None:
    parent = yard.worker()
    in_thread = yard.app.tasks["fork_in_a_thread"]
    ways = [(how, in_thread, (how,)) for how in ("return", "exit", "fail")]

    for word, task, arguments in (*ways, ("forked", yard.app.tasks["fork_on_the_loop"], ())):
        job = task.enqueue(*arguments)
        assert result(job) == "from the handler"
        one_forked_and_ended(yard, word)
        assert result(yard.app.tasks["add"].enqueue(40, 2)) == 42
        assert (job.info().attempts, job.info().crashes) == (1, 0)

    assert yard.stop(parent) == 0


def test_a_fork_that_exits_has_the_code_it_gave(yard: Yard) -> None:
    codes = [yard.app.tasks["exit_code"].enqueue(code) for code in (0, 3)]
    parent = yard.worker("--process-slots", "1")

    assert [result(job) for job in codes] == [0, 3]
    assert yard.stop(parent) == 0


def test_a_process_that_a_job_leaves_behind_is_ended_and_said(yard: Yard) -> None:
    parent = yard.worker("--process-slots", "1")

    for how in ("program", "session", "multiprocessing"):
        job = yard.app.tasks["start"].enqueue(how)
        ended_and_said(yard, parent, job, result(job))

    assert yard.stop(parent) == 0


def ended_and_said(
    yard: Yard, parent: subprocess.Popen[str], job: JobHandle[Any], left: int
) -> None:
    until("what was left behind to end", lambda: not lives(left))
    assert result(yard.app.tasks["plain"].enqueue(1)) == "plain 1"
    said = until(
        "a word",
        lambda: [x for x in yard.output(parent).splitlines() if "left" in x and job.id in x],
    )
    assert "1 process" in said[0]


def test_a_handler_that_ends_what_it_starts_keeps_its_process(yard: Yard) -> None:
    use_and_end = yard.app.tasks["use_and_end"]
    jobs = [use_and_end.enqueue(how) for how in ("fork", "fork", "spawn", "spawn")]
    parent = yard.worker("--process-slots", "1")

    assert len({result(job) for job in jobs}) == 1
    assert yard.stop(parent) == 0


async def test_progress_of_a_thread_a_job_left_does_not_land_on_the_next(yard: Yard) -> None:
    later = asyncio.to_thread
    async with supervised(process_slots=1):
        first = await yard.app.tasks["leak_a_thread"].aenqueue()
        one = await first.aresult(timeout=PATIENCE_S)
        following = await yard.app.tasks["follow"].aenqueue()
        same = await following.aresult(timeout=PATIENCE_S)
        third = await later(result, await yard.app.tasks["await_a_moment"].aenqueue())

    assert one == same  # a thread alone is no reason to start over
    assert third != same  # one that speaks for a job that has ended is
    assert first.progress() is None
    progress = following.progress()
    assert isinstance(progress, Progress)
    assert (progress.done, progress.total, progress.note) == (1, 2, "")


def test_a_task_that_a_coroutine_leaves_behind_does_not_end_the_next_job(yard: Yard) -> None:
    jobs = [yard.app.tasks[name].enqueue() for name in ("leak_a_task", "await_a_moment")]
    parent = yard.worker("--process-slots", "1")

    assert len({result(job) for job in jobs}) == 2  # it ended with its process
    assert [job.info().crashes for job in jobs] == [0, 0]
    assert yard.stop(parent) == 0


@pytest.mark.parametrize("who", ["worker", "process"])
def test_nothing_a_handler_started_outlives_its_worker_or_its_process(yard: Yard, who: str) -> None:
    parent = yard.worker("--process-slots", "1", "--lease", "2s")
    job = yard.app.tasks["start_and_wait"].enqueue()
    until("both to start", lambda: pids(yard, "forked") and pids(yard, "program"))
    left = [*pids(yard, "forked"), *pids(yard, "program")]
    worker = next(one.pid for one in yard.app.insights.workers() if one.live)

    if who == "worker":
        os.kill(worker, signal.SIGKILL)
    else:
        assert job.cancel()

    until("all it started to end", lambda: not any(map(lives, left)))
    job.cancel()
    yard.finished(job)
    assert job.status() is JobStatus.CANCELLED
    assert yard.stop(parent) == 0
