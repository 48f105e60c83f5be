# SPDX-License-Identifier: MIT
"""No attempt keeps its slot beyond its bound, whatever its handler does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.outcome import TimedOut
from packhorse.core.policies.retry import RetryPolicy
from packhorse.events import JobAbandoned, JobTimedOut
from packhorse.runtime.worker import EXIT_ABANDONED, EXIT_OK
from packhorse.runtime.worker.attempt import Ending
from packhorse.runtime.worker.outcomes import ended_by_worker
from tests.worker.support import AheadClock, Yard, heard, until

TINY_US = 20_000
NEVER = RetryPolicy(max_retries=0)


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.mark.req("S1-31", "S3-9", "S3-27", "S3-29", "S3-30", "S4-25")
async def test_a_coroutine_that_takes_too_long_is_cancelled_and_ends_as_timeout(
    yard: Yard,
) -> None:
    cancelled = False

    async def hang() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    yard.task(hang, retry=RetryPolicy(max_retries=1, initial_delay="1h", max_delay="1h"))
    job_id = yard.submit("hang", timeout_us=TINY_US)

    async with yard.running():
        await until(lambda: yard.status(job_id) is JobStatus.TIMEOUT)

    (attempt,) = yard.history(job_id)
    assert cancelled
    assert attempt.status is JobStatus.TIMEOUT
    assert attempt.error is not None
    assert attempt.error.code == "TASK_TIMEOUT"
    assert attempt.error.message == "Task exceeded 20ms timeout"
    assert attempt.error.reason == "job_timeout"
    assert attempt.will_retry


@pytest.mark.req("S1-30")
@pytest.mark.parametrize(
    ("of_job_us", "of_task", "expected"),
    [(TINY_US, "9s", "20ms"), (None, "0.03s", "30ms"), (None, None, "40ms")],
)
async def test_the_timeout_is_the_jobs_else_the_tasks_else_the_workers(
    of_job_us: int | None, of_task: str | None, expected: str
) -> None:
    yard = Yard()

    async def hang() -> None:
        await asyncio.Event().wait()

    own = {} if of_task is None else {"timeout": of_task}
    yard.task(hang, retry=NEVER, **own)
    job_id = yard.submit("hang", timeout_us=of_job_us)

    await yard.burst(default_timeout_us=40_000)

    error = yard.job(job_id).error
    assert error is not None
    assert error.message == f"Task exceeded {expected} timeout"


async def test_timeouts_end_each_at_its_own_time(yard: Yard) -> None:
    clock, ends = SystemClock(), {}

    async def hang(name: str) -> None:
        began = clock.monotonic()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        ends[name] = clock.monotonic() - began

    yard.task(hang, retry=NEVER)
    yard.submit("hang", {"name": "long"}, timeout_us=150_000)
    yard.submit("hang", {"name": "short"}, timeout_us=50_000)

    await yard.burst()

    # A handler begins a little after its time does: on a busy machine it sees less of it.
    assert 0.01 <= ends["short"] < ends["long"]
    assert 0.08 <= ends["long"] < 5


@pytest.mark.req("S3-13")
async def test_a_coroutine_that_swallows_its_cancellation_is_abandoned_and_its_result_dropped(
    yard: Yard,
) -> None:
    let_go = asyncio.Event()
    returned = asyncio.Event()

    async def stubborn() -> str:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        returned.set()
        return "too late"

    async def noop() -> None: ...

    yard.task(stubborn, retry=NEVER)
    yard.task(noop)
    yard.record()
    job_id = yard.submit("stubborn", timeout_us=TINY_US)
    async with yard.running(concurrency=1, stop_grace_us=TINY_US):
        await until(lambda: yard.status(job_id) is JobStatus.DEAD)
        other = yard.submit("noop")  # there is one slot, and it is free
        await until(lambda: yard.status(other) is JobStatus.COMPLETED)
        let_go.set()
        await heard(returned)

    job = yard.job(job_id)
    assert (job.status, job.result) == (JobStatus.DEAD, None)
    assert job.error is not None
    assert job.error.code == "TASK_TIMEOUT"
    assert [each.job_id for each in yard.told(JobAbandoned)] == [job_id]


@pytest.mark.req("S3-13", "S4-14")
async def test_a_worker_that_leaves_a_stubborn_coroutine_behind_says_so(yard: Yard) -> None:
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    yard.task(stubborn, retry=NEVER)
    yard.submit("stubborn", timeout_us=TINY_US)

    report = await yard.burst(stop_grace_us=TINY_US)
    let_go.set()

    assert (report.abandoned, report.exit_code) == (1, EXIT_ABANDONED)


@pytest.mark.req("S1-31", "S3-13", "S3-27")
async def test_a_thread_that_does_not_stop_is_abandoned_and_replaced(yard: Yard) -> None:
    let_go = threading.Event()

    def stuck() -> str:
        let_go.wait()
        return "too late"

    def noop() -> None: ...

    yard.task(stuck, retry=NEVER)
    yard.task(noop)
    job_id = yard.submit("stuck", timeout_us=TINY_US)
    worker = yard.worker(concurrency=1, stop_grace_us=TINY_US, abandoned_threads_max=2)
    running = asyncio.create_task(worker.run())
    await until(lambda: yard.status(job_id) is JobStatus.DEAD)
    other = yard.submit("noop")
    await until(lambda: yard.status(other) is JobStatus.COMPLETED)
    let_go.set()
    runtime = worker._runtime
    assert runtime is not None
    await until(lambda: runtime.threads.stuck == 0)
    worker.stop()
    report = await running

    assert yard.job(job_id).result is None
    assert (report.timed_out, report.dead, report.exit_code) == (1, 1, EXIT_OK)


async def test_after_too_many_abandoned_threads_the_worker_stops_claiming_with_an_error(
    yard: Yard,
) -> None:
    let_go = threading.Event()

    def stuck() -> None:
        let_go.wait()

    yard.task(stuck, retry=NEVER)
    for _ in range(5):
        yard.submit("stuck", timeout_us=TINY_US)

    worker = yard.worker(concurrency=2, stop_grace_us=TINY_US)
    report = await asyncio.wait_for(worker.run(), 10)
    let_go.set()

    assert report.exit_code == EXIT_ABANDONED
    assert report.problem is not None
    assert "2 threads do not stop" in report.problem
    assert 2 <= report.failed < 5  # what began in the first one's place may be the third


def test_a_thread_that_ends_after_its_worker_disturbs_no_other() -> None:
    let_go, ended = threading.Event(), threading.Event()

    def stuck() -> None:
        let_go.wait()
        ended.set()

    async def main() -> None:
        yard = Yard()
        yard.task(stuck, retry=NEVER)
        yard.submit("stuck", timeout_us=TINY_US)
        report = await yard.burst(stop_grace_us=TINY_US)
        assert report.exit_code == EXIT_ABANDONED

    asyncio.run(main())
    let_go.set()

    assert ended.wait(5)


@pytest.mark.req("S4-30")
async def test_a_thread_that_looks_at_its_context_stops_in_time(yard: Yard) -> None:
    def polite(ctx: Context) -> str:
        return "told to stop" if ctx.wait_cancelled(10) else "finished"

    yard.task(polite, retry=NEVER)
    yard.submit("polite", timeout_us=TINY_US)

    report = await yard.burst()

    assert (report.timed_out, report.abandoned) == (1, 0)


@pytest.mark.req("S3-10", "S3-11", "S3-29")
async def test_an_attempt_ends_at_its_jobs_deadline_and_is_dead_as_expired(yard: Yard) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    yard.task(hang)
    yard.record()
    deadline_us = yard.store_clock.now_us() + SECOND_US // 2  # and long enough to be started
    job_id = yard.submit("hang", deadline_us=deadline_us)

    await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.dead_reason) == (JobStatus.DEAD, DeadReason.EXPIRED)
    (event,) = yard.told(JobTimedOut)
    assert event.error_code == "DEADLINE_EXCEEDED"
    assert event.duration_ms > 0


@pytest.mark.req("S3-10")
async def test_a_job_whose_deadline_passes_in_the_look_ahead_is_not_started() -> None:
    blocking, started = asyncio.Event(), asyncio.Event()
    ran: list[str] = []
    yard = Yard(lambda operation, when: answer_claims_late(operation, when))  # noqa: PLW0108 - below
    clock = yard.clock = AheadClock()

    def answer_claims_late(operation: str, when: str) -> None:
        if (operation, when) == ("claim", "after"):
            clock.ahead_s += 0.1
            yard.store_clock.ahead_us += SECOND_US // 10

    async def short() -> None: ...

    async def block() -> None:
        started.set()
        await blocking.wait()

    async def late() -> None:
        ran.append("late")

    for function in (short, block, late):
        yard.task(function)
    for _ in range(30):
        yard.submit("short")  # so that jobs seem short, and some are claimed ahead
    yard.submit("block")
    deadline_us = yard.store_clock.now_us() + 15 * SECOND_US
    job_id = yard.submit("late", deadline_us=deadline_us)
    async with yard.running(concurrency=1):
        await heard(started)
        await until(lambda: yard.status(job_id) is JobStatus.PROCESSING)
        left_us = deadline_us - yard.store_clock.now_us()
        clock.ahead_s += left_us / SECOND_US
        yard.store_clock.ahead_us += left_us
        blocking.set()
        await until(lambda: yard.status(job_id) is JobStatus.DEAD)

    assert ran == []
    assert yard.job(job_id).dead_reason is DeadReason.EXPIRED


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (Ending.TIMEOUT, "Task exceeded 1500ms timeout"),
        (Ending.DEADLINE, "Task exceeded its deadline after 1500ms"),
    ],
)
def test_an_end_says_after_how_many_milliseconds_it_came(ending: Ending, message: str) -> None:
    attempt: Any = SimpleNamespace(timeout_s=1.5)

    outcome = ended_by_worker(attempt, ending)

    assert isinstance(outcome, TimedOut)
    assert outcome.error.message == message
