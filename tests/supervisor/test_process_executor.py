# SPDX-License-Identifier: MIT
"""Handlers with executor="process": killable, bounded, and never a danger to their worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse import ConfigError, DeadReason, JobHandle, JobStatus, Packhorse
from packhorse.client.worker_signals import aask_stacks
from packhorse.events import JobCancelling
from packhorse.runtime.worker import slots
from packhorse.runtime.worker.processes import runner
from packhorse.runtime.worker.processes.messages import Setup
from packhorse.runtime.worker.processes.pool import PoolProcess
from packhorse.runtime.worker.processes.runner import origin_of
from tests.supervisor.yard import (
    IN_PROCESSES,
    JOBS,
    PATIENCE_S,
    Yard,
    lives,
    soon,
    supervised,
    until,
)


@pytest.fixture
def source() -> str:
    """The app with tasks that run in processes."""
    return JOBS + IN_PROCESSES


def result(job: JobHandle[Any]) -> Any:
    return job.result(timeout=PATIENCE_S)


def test_processes_of_a_worker_that_went_elsewhere_keep_its_store(yard: Yard) -> None:
    jobs = [yard.app.tasks["submit_elsewhere"].enqueue() for _ in range(2)]
    yard.worker("--process-slots", "1", YARD_WANDERS="1")

    submitted = [yard.app.job(result(job)) for job in jobs]

    assert all(result(job) > 0 for job in submitted)
    assert [path.parent for path in yard.folder.rglob("*.db")] == [yard.folder]


@pytest.mark.req("S3-18")
def test_handlers_run_in_a_warm_process_with_its_resources_and_their_context(yard: Yard) -> None:
    looks = [yard.app.tasks["look"].enqueue(number) for number in range(4)]
    other = yard.app.tasks["wait_a_little"].enqueue()
    parent = yard.worker("--process-slots", "1")

    seen = [result(look) for look in looks]

    worker = next(one.pid for one in yard.app.insights.workers() if one.live)
    pids = {one["pid"] for one in seen}
    assert len(pids) == 1  # it is kept from job to job
    assert worker not in pids
    assert result(other) in pids
    for one in seen:
        assert (one["made_in"], one["attempt"], one["mine"], one["lost"]) == (
            *(one["pid"], 1, True, False),
        )
        assert all(abs(offset_s) < PATIENCE_S for offset_s in one["offsets_s"])  # of the store
    progress = looks[3].progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (3, 10, "looking")
    until("its line in the log", lambda: '"looked at 3"' in yard.output(parent))
    assert looks[3].id in yard.output(parent)
    assert [(line.level, line.message) for line in looks[3].logs()] == [("warning", "looked at 3")]
    assert yard.stop(parent) == 0
    assert (yard.folder / f"left-{pids.pop()}").exists()


@asynccontextmanager
async def held_ahead(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> AsyncIterator[JobHandle[Any]]:
    """A worker whose only process has a long job, and a short one that it holds for so long."""
    monkeypatch.setattr(slots, "_WORK_S", 600.0)  # whatever the machine takes for a short one
    monkeypatch.setattr(runner, "_WAIT_S", wait_s)
    monkeypatch.syspath_prepend(str(yard.folder))
    yard.app.origin = "jobs:app"
    tasks = yard.app.tasks
    await yard.app.aenqueue_many([tasks["quick"].call() for _ in range(3)])
    long, behind = await tasks["hold_process"].aenqueue(), await tasks["quick"].aenqueue()
    worker = asyncio.create_task(yard.app.arun(process_slots=1))
    await asyncio.to_thread(yard.begun, long)
    yield behind
    yard.go()
    await asyncio.wait_for(worker, PATIENCE_S)
    assert (await long.ainfo()).status is JobStatus.COMPLETED


async def test_a_job_held_ahead_goes_back_at_no_cost_if_no_process_becomes_free(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_ahead(yard, monkeypatch, wait_s=0.2) as behind:
        await soon("it to go back", lambda: yard.record(behind).counters.releases == 1)
        assert yard.record(behind).counters.attempts == 0

        yard.go()
        await soon("it to run", lambda: yard.record(behind).status is JobStatus.COMPLETED)
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("because", ["a limit", "a middleware"])
async def test_nothing_is_held_ahead_where_a_limit_or_a_middleware_would_count_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, because: str
) -> None:
    if because == "a limit":
        yard.app.queue("default", concurrency=100)
    else:

        @yard.app.middleware
        async def around(ctx: Any, proceed: Any) -> Any:
            return await proceed()

    async with held_ahead(yard, monkeypatch, wait_s=PATIENCE_S * 10) as behind:
        record = yard.record(behind)
        os.kill(os.getpid(), signal.SIGTERM)

    assert (record.status, record.fence) == (JobStatus.QUEUED, 0)


async def test_a_job_that_is_cancelled_before_its_process_is_ready_does_not_begin(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside of a middleware, where the attempt itself has begun."""
    ready, told, opened = asyncio.Event(), asyncio.Event(), PoolProcess.open

    async def open_later(process: PoolProcess, setup: Setup) -> None:
        await ready.wait()
        await opened(process, setup)

    monkeypatch.setattr(PoolProcess, "open", open_later)
    monkeypatch.syspath_prepend(str(yard.folder))
    yard.app.origin = "jobs:app"
    yard.app.middleware(lambda _ctx, proceed: proceed())
    yard.app.on(JobCancelling)(lambda _event: told.set())
    yard.go()
    job = await yard.app.tasks["hold_process"].aenqueue()
    worker = asyncio.create_task(yard.app.arun(process_slots=1))
    await soon("it to be held", lambda: yard.record(job).status is JobStatus.PROCESSING)

    assert await job.acancel()
    await asyncio.wait_for(told.wait(), PATIENCE_S)
    ready.set()

    await soon("its end", lambda: yard.record(job).status is JobStatus.CANCELLED)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(worker, PATIENCE_S)
    assert not (yard.folder / f"begun-{job.id}").exists()


async def test_jobs_that_wait_for_a_process_go_back_as_soon_as_the_worker_stops(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_ahead(yard, monkeypatch, wait_s=PATIENCE_S * 10) as behind:
        await soon("it to be held", lambda: yard.record(behind).status is JobStatus.PROCESSING)

        os.kill(os.getpid(), signal.SIGTERM)

        await soon("it to go back", lambda: yard.record(behind).counters.releases == 1)
    assert yard.record(behind).counters.attempts == 0


@pytest.mark.req("S4-24", "S4-26")
def test_a_process_that_dies_costs_its_own_job_alone_a_crash(yard: Yard) -> None:
    parent = yard.worker("--process-slots", "2")
    beside = yard.app.tasks["linger"].enqueue()
    worker = yard.begun(beside)
    ways = {
        "exit": "exit code 7",
        "segfault": "signal SIGSEGV",
        "overflow": "signal SIGSEGV",
        "kill": "signal SIGKILL",
    }

    crashes = {how: yard.app.tasks["crash"].enqueue(how) for how in ways}

    for how, evidence in ways.items():
        info = yard.finished(crashes[how])
        assert (info.dead_reason, info.crashes, info.failures) == (
            *(DeadReason.WORKER_CRASHED, 1, 0),
        )
        assert info.error.code == "WORKER_LOST"
        assert evidence in info.error.message, how
        assert yard.record(crashes[how]).counters.lone_crashes == 1
    assert "in die" in yard.finished(crashes["segfault"]).error.stack
    yard.go()
    assert result(beside) == worker  # the worker has not been touched
    assert (beside.info().crashes, beside.info().attempts) == (0, 1)
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-9", "S3-13", "S1-31", "S1-45")
async def test_timeouts_and_cancels_end_the_process_and_one_with_a_context_is_told_first(
    yard: Yard,
) -> None:
    tasks, later = yard.app.tasks, asyncio.to_thread
    async with supervised(process_slots=3, stop_grace=0.5):
        spin, obey = await tasks["spin"].aenqueue(), await tasks["obey"].aenqueue()
        ignore = await tasks["ignore"].aenqueue("ignoring")
        spinning, obeying = await later(yard.begun, spin), await later(yard.begun, obey)
        marker = yard.folder / "ignoring"
        await soon("its pid", lambda: marker.exists() and marker.read_text())
        ignoring = int(marker.read_text())
        [worker] = await yard.app.insights.aworkers()
        told = await aask_stacks(yard.app.store, worker.id, by="test", timeout_s=PATIENCE_S)
        [place] = [one for one in told.stacks if one.job_id == obey.id]
        assert (place.kind, "in obey" in place.stack) == ("process", True)

        assert await obey.acancel()
        assert await ignore.acancel()

        assert (await later(yard.finished, obey)).status is JobStatus.CANCELLED
        assert (await later(yard.finished, ignore)).status is JobStatus.CANCELLED
        timed_out = await later(yard.finished, spin)
        assert (timed_out.error.code, timed_out.failures) == ("TASK_TIMEOUT", 1)
        assert (yard.folder / f"noticed-{obey.id}").exists()
        await soon("those that did not stop to be gone", lambda: not lives(spinning))
        await soon("those that did not stop to be gone", lambda: not lives(ignoring))
        assert lives(obeying)  # it stopped by itself, and is used again
        again = await tasks["wait_a_little"].aenqueue()
        assert await again.aresult(timeout=PATIENCE_S) == obeying


@pytest.mark.req("S3-20")
def test_resources_are_built_again_after_so_many_jobs_and_failures_and_when_memory_ran_out(
    yard: Yard,
) -> None:
    limits = ("--process-max-jobs", "4", "--process-max-failures", "2")
    memory = ("--process-memory-mib", "300", "--process-cpu", "1s")
    parent = yard.worker("--process-slots", "1", *limits, *memory)

    def look() -> int:
        seen = result(yard.app.tasks["look"].enqueue(1))
        assert seen["made_in"] == seen["pid"]
        pid: int = seen["pid"]
        return pid

    def ended(task: str, *arguments: Any) -> Any:
        return yard.finished(yard.app.tasks[task].enqueue(*arguments))

    first = [look() for _ in range(4)]
    second = [look()]
    failures = [ended("fail"), ended("fail")]  # the second process has failed twice in a row
    third = [look()]
    hungry = ended("gobble", 2_000)
    fourth = [look()]
    burnt = ended("burn")
    fifth = [look()]

    assert [len(set(each)) for each in (first, second, third, fourth, fifth)] == [1] * 5
    assert len({each[0] for each in (first, second, third, fourth, fifth)}) == 5
    assert [each.error.message for each in failures] == [str(second[0])] * 2
    assert (hungry.error.type, hungry.crashes) == ("MemoryError", 0)
    assert burnt.dead_reason == DeadReason.WORKER_CRASHED
    assert "signal SIGXCPU" in burnt.error.message
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-20")
@pytest.mark.parametrize(("mib", "processes"), [(1, 3), (100_000, 1)])
def test_a_process_is_replaced_after_a_job_that_leaves_it_too_large(
    yard: Yard, mib: int, processes: int
) -> None:
    parent = yard.worker("--process-slots", "1", "--process-recycle-mib", str(mib))

    seen = [result(yard.app.tasks["look"].enqueue(1))["pid"] for _ in range(3)]

    assert len(set(seen)) == processes
    assert yard.stop(parent) == 0


GRUMBLE = """
@app.task(executor="process")
def grumble(ctx: Context) -> None:
    try:
        int("odd")
    except ValueError:
        ctx.log.exception("it grumbles")
"""


@pytest.mark.parametrize("source", [JOBS + GRUMBLE])
def test_a_traceback_that_a_handler_logs_in_its_process_stays_one(yard: Yard) -> None:
    for log_format in ("console", "json"):
        yard.app.tasks["grumble"].enqueue()
        worker = yard.worker("--burst", "--log-format", log_format)
        assert worker.wait(PATIENCE_S) == 0

    people, programs = (yard.output(process).splitlines() for process in yard.processes)
    at = next(number for number, line in enumerate(people) if "it grumbles" in line)
    assert people[at + 1] == "Traceback (most recent call last):"
    assert "ValueError: invalid literal for int() with base 10: 'odd'" in people
    (line,) = [json.loads(line) for line in programs if "it grumbles" in line]
    assert line["message"] == "it grumbles"
    assert line["exception"].startswith("Traceback (most recent call last):\n")


STAND: Final = """
@app.task
async def stand(ctx: Context) -> None:
    say("begun", ctx.job)
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)

@app.task(executor="process")
def stand_apart(ctx: Context) -> None:
    say("begun", ctx.job)
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("source", [JOBS + IN_PROCESSES + STAND])
def test_jobs_in_processes_and_others_do_not_wait_for_each_others_slots(yard: Yard) -> None:
    yard.worker("--concurrency", "1", "--process-slots", "1")
    here = yard.app.tasks["stand"].enqueue()
    yard.begun(here)

    assert result(yard.app.tasks["wait_a_little"].enqueue()) > 0

    apart = yard.app.tasks["stand_apart"].enqueue()
    yard.begun(apart)
    [worker] = [one for one in yard.app.insights.workers() if one.live]
    assert (worker.running, worker.concurrency) == (2, 2)
    yard.go()
    result(here)
    result(apart)
    yard.folder.joinpath("go").unlink()
    apart = yard.app.tasks["stand_apart"].enqueue()
    yard.begun(apart)

    assert result(yard.app.tasks["add"].enqueue(1)) == 1
    yard.go()
    result(apart)


def test_an_app_that_no_process_could_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Packhorse("memory://")
    with pytest.raises(ConfigError, match="it is no variable of any module"):
        origin_of([app], None)
    assert origin_of(app, "shop.jobs:app") == "shop.jobs:app"
    monkeypatch.setenv("PACKHORSE_PROCESS", "3,4")
    with pytest.raises(ConfigError, match="if __name__ == '__main__'"):
        origin_of(app, "shop.jobs:app")


TYPED: Final = """
from packhorse import Packhorse

app = Packhorse("sqlite:///typed.db")


@app.task(executor="process")
def double(number: int) -> int:
    return 2 * number


job = double.enqueue(1)
try:
    app.run(burst=True)
finally:
    print(job.status(), job.info().attempts)
"""


@pytest.mark.parametrize("arguments", [["-"], ["-c", TYPED]], ids=["standard input", "-c"])
def test_an_app_in_a_program_without_a_file_is_refused_before_a_job_is_tried(
    arguments: list[str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, *arguments],
        input=TYPED,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert "ConfigError: executor='process' imports the app in another process" in ended.stderr
    assert ended.stdout.split() == ["queued", "0"]
