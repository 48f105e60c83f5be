# SPDX-License-Identifier: MIT
"""Processes for handlers that are let go of while they still start: in silence, and entirely."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse.core.clock import SystemClock
from packhorse.core.job import Job, JobStatus, NewJob
from packhorse.core.job_logs import RunningJob
from packhorse.core.outcome import Released, Succeeded
from packhorse.runtime.worker.processes import pool as process_pool
from packhorse.runtime.worker.processes import runner
from packhorse.runtime.worker.processes.messages import Setup
from packhorse.runtime.worker.processes.pool import PoolProcess, ProcessLimits, ProcessPool
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import ClaimRequest, Renewal
from tests.supervisor.yard import IN_PROCESSES, JOBS, PATIENCE_S, Yard, lives, soon

#: Says where it is, and goes on when it may.
SLOW: Final = """
import asyncio, os, pathlib, time
from packhorse import Packhorse

def say(word):
    pathlib.Path(f"{word}.{os.getpid()}.part").write_text(str(os.getpid()))
    os.rename(f"{word}.{os.getpid()}.part", word)

say("importing")
while os.path.exists("hold-import"):
    time.sleep(0.02)
app = Packhorse("memory://")

@app.task
def begin():
    with open("begun", "a") as file:
        file.write("1")

@app.lifespan
async def resources():
    say("entering")
    while os.path.exists("hold-hooks"):
        await asyncio.sleep(0.02)
    yield {}
    say("left")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the app is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process_pool, "_PARTING_S", 10 * PATIENCE_S)  # no process is killed for it
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    return tmp_path


@asynccontextmanager
async def warming(folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[ProcessPool]:
    """A pool that starts one process; nothing may be left of it, and nothing be said about it."""
    loop, said = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _loop, context: said.append(context))
    await asyncio.to_thread(lambda: None)  # what asyncio opens for itself is there before
    gc.collect()  # what earlier tests left behind closes now, and not in between
    before = descriptors()
    path = (str(folder), *sys.path)
    setup = Setup(
        app="slow:app", folder="", path=path, main=None, worker="w", log_level=logging.WARNING
    )
    limits = ProcessLimits(slots=2, max_jobs=10, max_failures=10, recycle_mib=None)
    pool = ProcessPool(setup, limits, hopeless=said.append)
    with caplog.at_level(logging.DEBUG, "packhorse"):
        pool.warm()
        try:
            yield pool
        finally:
            for hold in folder.glob("hold-*"):  # also after a failure no process is left behind
                hold.unlink()
    gc.collect()  # tasks whose error was not seen say so now
    assert (said, caplog.messages) == ([], [])
    assert descriptors() <= before
    assert len(asyncio.all_tasks()) == 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_pool_closed_as_it_starts_its_first_process_ends_it_in_silence(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with warming(folder, caplog) as pool:
        while not pool.started:
            await asyncio.sleep(0)
        await asyncio.wait_for(pool.close(), PATIENCE_S)


async def test_a_process_that_is_not_wanted_while_it_imports_the_app_goes_at_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "hold-import").touch()
    async with warming(folder, caplog) as pool:
        await soon("the import", (folder / "importing").exists)
        pid = int((folder / "importing").read_text())

        await asyncio.wait_for(pool.close(), PATIENCE_S)

        assert not Path(f"/proc/{pid}").exists()  # and it is no zombie either
        assert not (folder / "entering").exists()


async def test_a_process_that_is_not_wanted_while_it_enters_its_hooks_leaves_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "hold-hooks").touch()
    async with warming(folder, caplog) as pool:
        await soon("the hooks", (folder / "entering").exists)
        pid = int((folder / "entering").read_text())

        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        (folder / "hold-hooks").unlink()
        await asyncio.wait_for(closing, PATIENCE_S)

        assert (folder / "left").read_text() == str(pid)
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("source", [JOBS + IN_PROCESSES])
def test_a_short_run_of_an_app_with_process_tasks_says_nothing_about_them(yard: Yard) -> None:
    yard.app.tasks["add"].enqueue(1)

    worker = yard.worker("--burst", "--log-level", "warning", "--no-banner")

    assert worker.wait(PATIENCE_S) == 0
    assert yard.output(worker) == ""
    assert not any(lives(int(each.name[9:])) for each in yard.folder.glob("imported-*"))


@pytest.mark.parametrize("source", [JOBS + IN_PROCESSES])
@pytest.mark.parametrize("inside", ["nothing", "a middleware"])
async def test_a_job_whose_process_cannot_be_started_goes_back_at_no_cost_and_runs_later(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, inside: str
) -> None:
    failing, start = [True, True], PoolProcess._started

    def started(process: PoolProcess, *descriptors: Any) -> subprocess.Popen[bytes]:
        if failing and failing.pop():
            raise BlockingIOError(errno.EAGAIN, "no more processes for now")
        return start(process, *descriptors)

    monkeypatch.setattr(PoolProcess, "_started", started)
    monkeypatch.setattr(runner, "_WAIT_S", 0.05)
    monkeypatch.syspath_prepend(str(yard.folder))
    yard.app.origin = "jobs:app"
    if inside == "a middleware":
        yard.app.middleware(lambda _ctx, proceed: proceed())
    job = await yard.app.tasks["wait_a_little"].aenqueue()

    worker = asyncio.create_task(yard.app.arun(process_slots=1))
    assert await job.aresult(timeout=PATIENCE_S) > 0
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(worker, PATIENCE_S)

    counters = yard.record(job).counters
    assert (counters.attempts, counters.failures, counters.crashes) == (1, 0, 0)
    assert caplog.text.count("no process can be started") == 2


@pytest.mark.parametrize("source", [JOBS + IN_PROCESSES])
@pytest.mark.parametrize("most", [1, 3])
async def test_max_jobs_counts_jobs_in_processes_and_others_together(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.syspath_prepend(str(yard.folder))
    yard.app.origin = "jobs:app"
    tasks = yard.app.tasks
    jobs = [await tasks["wait_a_little"].aenqueue() for _ in range(4)]
    jobs += [await tasks["add"].aenqueue(1) for _ in range(4)]

    await asyncio.wait_for(yard.app.arun(process_slots=1, max_jobs=most), PATIENCE_S)

    assert sum(yard.record(job).status is JobStatus.COMPLETED for job in jobs) == most


@pytest.mark.req("S1-66")
async def test_a_job_that_reaches_its_process_too_late_goes_back_without_having_begun(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = RunningJob(claimed_job("begin"), "", "begin")
    async with warming(folder, caplog) as pool:
        process = await pool.acquire()
        now = SystemClock.monotonic()

        late = await process.run(job, (0, 0), lambda _: None, start_by=now - 0.001)
        in_time = await process.run(job, (0, 0), lambda _: None, start_by=now + PATIENCE_S)
        pool.release(process)
        await pool.close()

    assert late == Released(started=False)
    assert isinstance(in_time, Succeeded)
    assert (folder / "begun").read_text() == "1"


def claimed_job(task: str) -> Job:
    store = MemoryStore()
    store.run(store.leases.renew(Renewal("w", 60_000_000, queues=("default",), tasks=(task,))))
    store.run(store.jobs.submit([NewJob("job-1", task, b"{}")]))
    request = ClaimRequest("w", ("default",), (task,), 1, 60_000_000)
    (job,) = store.run(store.jobs.claim(request)).jobs
    return job
