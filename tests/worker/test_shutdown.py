# SPDX-License-Identifier: MIT
"""Leaving in order: nothing new, what runs may finish, the rest goes back, connections last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.policies.retry import RetryPolicy
from packhorse.errors import StoreUnavailable
from packhorse.events import JobReleased
from packhorse.runtime.worker import EXIT_ABANDONED, EXIT_OK, Worker, WorkerReport
from packhorse.runtime.worker.attempt import Ending
from packhorse.runtime.worker.base_runtime import end
from packhorse.runtime.worker.shutdown import Phase, Shutdown
from tests.worker.support import Counting, Yard, heard, turns, until

TINY_US = 20_000


@pytest.fixture
def yard() -> Yard:
    return Yard()


class Waiting:
    """A task that runs until it is let go."""

    def __init__(self, yard: Yard, **options: Any) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

        async def wait() -> str:
            self.started.set()
            await self.go_on.wait()
            return "done"

        yard.task(wait, **options)


async def started(yard: Yard, **options: Any) -> tuple[Worker, asyncio.Task[Any]]:
    worker = yard.worker(**options)
    return worker, asyncio.create_task(worker.run())


def begun(worker: Worker) -> bool:
    """Whether the worker is on its way out."""
    return worker._runtime is not None and worker._runtime.shutdown.begun


@pytest.mark.req("S4-10", "S4-11", "S1-52")
async def test_running_jobs_finish_and_nothing_new_is_claimed(yard: Yard) -> None:
    waiting = Waiting(yard)
    first = yard.submit("wait")
    worker, run = await started(yard)
    await heard(waiting.started)

    worker.stop()
    second = yard.submit("wait")
    await turns()
    waiting.go_on.set()
    report = await run

    assert yard.status(first) is JobStatus.COMPLETED
    assert yard.status(second) is JobStatus.QUEUED
    assert report.exit_code == EXIT_OK


@pytest.mark.req("S4-12", "S1-52", "S4-14")
async def test_jobs_that_outlast_the_timeout_go_back_to_the_queue_at_no_cost(yard: Yard) -> None:
    waiting = Waiting(yard)
    yard.record()
    job_id = yard.submit("wait")
    worker, run = await started(yard, shutdown_timeout_us=TINY_US)
    await heard(waiting.started)

    worker.stop()
    report = await run

    job = yard.job(job_id)
    assert job.status is JobStatus.QUEUED
    assert (job.counters.failures, job.counters.crashes, job.counters.releases) == (0, 0, 1)
    assert (report.released, report.exit_code) == (1, EXIT_OK)
    assert [each.job_id for each in yard.told(JobReleased)] == [job_id]


@pytest.mark.req("S0-10", "X-13")
async def test_a_job_that_may_start_once_is_not_started_again_after_a_shutdown(yard: Yard) -> None:
    waiting = Waiting(yard, max_crashes=0, retry=RetryPolicy(max_retries=0))
    job_id = yard.submit("wait")
    worker, run = await started(yard, shutdown_timeout_us=TINY_US)
    await heard(waiting.started)

    worker.stop()
    await run
    report = await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.dead_reason) == (JobStatus.DEAD, DeadReason.WORKER_CRASHED)
    assert report.succeeded + report.failed + report.released == 0


@pytest.mark.req("S4-14")
async def test_a_second_request_hurries(yard: Yard) -> None:
    waiting = Waiting(yard)
    job_id = yard.submit("wait")
    worker, run = await started(yard, shutdown_timeout_us=600 * SECOND_US)
    await heard(waiting.started)

    worker.stop()
    worker.stop()
    await asyncio.wait_for(run, 5)

    assert yard.status(job_id) is JobStatus.QUEUED


@pytest.mark.req("S4-14")
async def test_a_third_request_leaves_what_does_not_stop_behind(yard: Yard) -> None:
    let_go, began = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        began.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    yard.task(stubborn)
    job_id = yard.submit("stubborn")
    worker, run = await started(yard, stop_grace_us=20 * SECOND_US)
    await heard(began)

    for _ in range(3):
        worker.stop()
        await turns()
    report = await asyncio.wait_for(run, 5)
    let_go.set()

    assert (report.abandoned, report.exit_code) == (1, EXIT_ABANDONED)
    assert yard.status(job_id) is JobStatus.QUEUED


@pytest.mark.req("S4-14")
def test_a_coroutine_that_never_stops_does_not_keep_the_process() -> None:
    async def endless() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def main() -> WorkerReport:
        yard = Yard()
        yard.task(endless, retry=RetryPolicy(max_retries=0))
        yard.submit("endless", timeout_us=TINY_US)
        return await yard.burst(stop_grace_us=TINY_US)

    report = asyncio.run(main())  # would not return otherwise

    assert report.exit_code == EXIT_ABANDONED


async def test_a_thread_that_does_not_stop_is_left_behind_and_its_job_released(
    yard: Yard,
) -> None:
    let_go, began = threading.Event(), threading.Event()

    def stuck() -> None:
        began.set()
        let_go.wait()

    yard.task(stuck)
    job_id = yard.submit("stuck")
    worker, run = await started(yard, shutdown_timeout_us=0, stop_grace_us=TINY_US)
    await until(began.is_set)

    worker.stop()
    report = await asyncio.wait_for(run, 5)
    let_go.set()

    assert (report.abandoned, report.exit_code) == (1, EXIT_ABANDONED)
    assert yard.status(job_id) is JobStatus.QUEUED


@pytest.mark.req("S4-30", "S1-52")
async def test_a_thread_is_told_when_its_time_is_up(yard: Yard) -> None:
    began = threading.Event()

    def polite(ctx: Context) -> None:
        began.set()
        ctx.wait_cancelled(10)

    yard.task(polite)
    job_id = yard.submit("polite")
    worker, run = await started(yard, shutdown_timeout_us=0)
    await until(began.is_set)

    worker.stop()
    report = await asyncio.wait_for(run, 5)

    assert (report.released, report.abandoned) == (1, 0)
    assert yard.status(job_id) is JobStatus.QUEUED


async def test_look_ahead_goes_back_as_if_it_had_never_been_taken(yard: Yard) -> None:
    async def short() -> None: ...

    yard.task(short)
    waiting = Waiting(yard)
    for _ in range(30):
        yard.submit("short")
    yard.submit("wait")
    ahead = [yard.submit("short") for _ in range(5)]
    worker, run = await started(yard, concurrency=1)
    await heard(waiting.started)
    await until(lambda: yard.status(ahead[0]) is JobStatus.PROCESSING)

    worker.stop()
    await until(lambda: yard.status(ahead[0]) is JobStatus.QUEUED)
    waiting.go_on.set()
    await run

    for job_id in ahead:
        counters = yard.job(job_id).counters
        assert (counters.attempts, counters.failures, counters.crashes) == (0, 0, 0)
        assert yard.status(job_id) is JobStatus.QUEUED


@pytest.mark.req("S4-9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_each_signal_begins_a_graceful_shutdown(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    yard = Yard()
    waiting = Waiting(yard)
    job_id = yard.submit("wait")
    outside = signal.signal(number, signal.SIG_DFL)  # under nohup a hang-up is ignored
    try:
        worker, run = await started(yard, handle_signals=True)
        await heard(waiting.started)

        os.kill(os.getpid(), number)
        await until(lambda: begun(worker))
        waiting.go_on.set()
        await asyncio.wait_for(run, 5)

        assert yard.status(job_id) is JobStatus.COMPLETED
        assert signal.getsignal(number) is signal.SIG_DFL
        told = "Ctrl-C lets running jobs finish (30s); twice gives them back, three times leaves"
        assert (told in caplog.messages) is (number is signal.SIGINT)
    finally:
        signal.signal(number, outside)


@pytest.mark.req("S4-4", "S3-2")
async def test_an_idle_worker_leaves_at_once_however_long_it_would_have_waited() -> None:
    counting = Counting()
    yard = Yard(counting)

    async def noop() -> None: ...

    yard.task(noop)
    worker, run = await started(yard, poll_interval_us=600 * SECOND_US)
    await until(lambda: counting.calls["claim"])
    await turns()

    began = SystemClock().monotonic()
    worker.stop()
    await run

    assert SystemClock().monotonic() - began < 1


async def test_a_worker_told_to_stop_before_it_runs_claims_nothing(yard: Yard) -> None:
    waiting = Waiting(yard)
    job_id = yard.submit("wait")
    worker = yard.worker()

    worker.stop()
    report = await asyncio.wait_for(worker.run(), 5)

    assert not waiting.started.is_set()
    assert (yard.status(job_id), report.processed) == (JobStatus.QUEUED, 0)


@pytest.mark.req("S4-4", "S4-14")
async def test_a_worker_whose_store_is_gone_leaves_in_bounded_time() -> None:
    down = False

    def faults(verb: str, moment: str) -> None:
        if down:
            raise StoreUnavailable("gone")

    yard = Yard(faults)
    waiting = Waiting(yard)
    yard.submit("wait")
    worker, run = await started(yard)
    await heard(waiting.started)

    down = True
    waiting.go_on.set()
    worker.stop()
    await turns()
    worker.stop()
    worker.stop()
    report = await asyncio.wait_for(run, 8)

    assert (report.abandoned, report.exit_code) == (1, EXIT_ABANDONED)


async def test_cancelling_the_worker_drains_it_and_then_raises(yard: Yard) -> None:
    waiting = Waiting(yard)
    job_id = yard.submit("wait")
    worker, run = await started(yard)
    await heard(waiting.started)

    run.cancel()
    await until(lambda: begun(worker))
    waiting.go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert yard.status(job_id) is JobStatus.COMPLETED


@pytest.mark.req("S4-13", "S3-18")
async def test_the_lease_ends_after_the_jobs_and_what_was_set_up_is_taken_down_last(
    yard: Yard,
) -> None:
    order: list[str] = []
    waiting = Waiting(yard)

    async def resources() -> Any:
        order.append("set up")
        yield {}
        order.append(f"taken down, {len(yard.do(yard.store.leases.workers()))} workers")

    yard.lifespans.append(resources)
    yard.bus.subscribe("job.completed", lambda _: order.append("completed"))
    yard.submit("wait")
    worker, run = await started(yard)
    await heard(waiting.started)

    worker.stop()
    waiting.go_on.set()
    await run

    assert order == ["set up", "completed", "taken down, 0 workers"]


async def test_an_attempt_told_to_stop_before_its_first_step_goes_back_as_unused(
    yard: Yard,
) -> None:
    ran: list[str] = []

    async def first() -> None:
        runtime = worker._runtime
        assert runtime is not None
        for attempt in runtime.slots.running_attempts():
            if attempt.job.task == "second":  # it has a slot, and its coroutine has not begun
                runtime.stopper.stop(attempt, Ending.SHUTDOWN)

    async def second() -> None:
        ran.append("second")

    yard.task(first)
    yard.task(second)
    yard.submit("first")
    job_id = yard.submit("second")
    worker = yard.worker(max_jobs=2)
    await asyncio.wait_for(worker.run(), 10)

    assert ran == []
    assert (yard.status(job_id), yard.job(job_id).counters.attempts) == (JobStatus.QUEUED, 0)


def test_outside_the_main_thread_a_worker_runs_without_signals() -> None:
    reports: list[WorkerReport] = []

    async def main() -> None:
        yard = Yard()

        async def noop() -> None: ...

        yard.task(noop)
        yard.submit("noop")
        reports.append(await yard.burst(handle_signals=True))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(10)

    assert [report.succeeded for report in reports] == [1]


async def test_phases_only_rise() -> None:
    shutdown = Shutdown()
    shutdown.advance(Phase.HURRYING, "first")
    shutdown.advance(Phase.DRAINING, "second")

    assert (shutdown.phase, shutdown.reason) == (Phase.HURRYING, "first")
    shutdown.request("third")
    shutdown.request("fourth")
    assert shutdown.phase is Phase.LEAVING


@pytest.mark.req("S4-4")
async def test_a_sleep_ends_at_the_next_change_of_phase() -> None:
    shutdown = Shutdown()
    sleeping = asyncio.create_task(shutdown.sleep(600))
    await asyncio.sleep(0)

    shutdown.request("now")

    await asyncio.wait_for(sleeping, 1)


async def test_a_loop_that_misses_its_cancel_is_cancelled_again() -> None:
    began = asyncio.Event()

    async def loop() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` of Python 3.11 may
            began.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await began.wait()

    await asyncio.wait_for(end([task]), 20)

    assert task.cancelled()
