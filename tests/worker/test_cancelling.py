# SPDX-License-Identifier: MIT
"""Cancelling running jobs: the handler is told, and whatever it does then is discarded."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from packhorse.context import Context
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import CancelAnswer
from packhorse.events import JobCancelled, JobCancelling
from tests.worker.support import Yard, heard, until


@pytest.fixture
def yard() -> Yard:
    return Yard()


def cancel(yard: Yard, job_id: str) -> CancelAnswer:
    return yard.do(yard.store.jobs.cancel(job_id))


@pytest.mark.req("S1-45", "S3-16", "S3-17")
async def test_a_running_coroutine_is_cancelled_and_that_is_told_once_each(yard: Yard) -> None:
    started = asyncio.Event()
    saw: list[str] = []

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            saw.append("cancelled")
            raise

    yard.task(hang)
    yard.record()
    job_id = yard.submit("hang")
    async with yard.running():
        await heard(started)
        assert cancel(yard, job_id) is CancelAnswer.FLAGGED
        await until(lambda: yard.status(job_id) is JobStatus.CANCELLED)

    assert saw == ["cancelled"]
    assert len(yard.told(JobCancelling)) == len(yard.told(JobCancelled)) == 1
    assert yard.job(job_id).dead_reason is None


@pytest.mark.req("S3-15")
async def test_cancelling_one_job_does_not_touch_another(yard: Yard) -> None:
    started, go_on = [], asyncio.Event()

    async def wait(name: str) -> str:
        started.append(name)
        await go_on.wait()
        return name

    yard.task(wait)
    first, second = yard.submit("wait", {"name": "a"}), yard.submit("wait", {"name": "b"})
    async with yard.running():
        await until(lambda: len(started) == 2)
        cancel(yard, first)
        await until(lambda: yard.status(first) is JobStatus.CANCELLED)
        go_on.set()
        await until(lambda: yard.status(second) is JobStatus.COMPLETED)

    assert yard.job(second).result == b'"b"'


@pytest.mark.req("S1-45", "S4-30")
async def test_a_thread_sees_that_its_job_is_cancelled(yard: Yard) -> None:
    started = threading.Event()

    def patient(ctx: Context) -> str:
        started.set()
        assert ctx.wait_cancelled(10)
        assert ctx.cancel_requested
        return "stopped"

    yard.task(patient)
    job_id = yard.submit("patient")
    async with yard.running():
        await until(started.is_set)
        cancel(yard, job_id)
        await until(lambda: yard.status(job_id) is JobStatus.CANCELLED)

    assert yard.job(job_id).result is None


@pytest.mark.req("S1-45", "S3-16")
async def test_a_success_that_comes_after_the_wish_to_cancel_is_discarded(yard: Yard) -> None:
    """The handler ends before the worker hears of the wish, so only the store can know."""

    async def finish_first(ctx: Context) -> str:
        cancel(yard, ctx.job.id)
        return "done"

    yard.task(finish_first)
    yard.record()
    job_id = yard.submit("finish_first")

    report = await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.result) == (JobStatus.CANCELLED, None)
    assert (report.cancelled, report.succeeded) == (1, 0)
    assert len(yard.told(JobCancelling)) == len(yard.told(JobCancelled)) == 1


@pytest.mark.req("S3-13", "S3-17")
async def test_a_coroutine_that_swallows_the_cancellation_is_cancelled_all_the_same(
    yard: Yard,
) -> None:
    started = asyncio.Event()

    async def swallow() -> str:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "I am fine"

    yard.task(swallow)
    job_id = yard.submit("swallow")
    async with yard.running():
        await heard(started)
        cancel(yard, job_id)
        await until(lambda: yard.status(job_id) is JobStatus.CANCELLED)

    assert yard.job(job_id).result is None


async def test_a_wish_whose_wake_up_is_lost_is_heard_within_seconds(yard: Yard) -> None:
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    yard.task(hang)
    job_id = yard.submit("hang")
    yard.store.wakeups.send = lambda topics: None  # type: ignore[method-assign]
    async with yard.running():
        await heard(started)
        cancel(yard, job_id)
        await until(lambda: yard.status(job_id) is JobStatus.CANCELLED, within_s=3)


async def test_a_job_that_waits_in_the_look_ahead_is_cancelled_without_running(
    yard: Yard,
) -> None:
    blocking, started = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    async def short() -> None: ...

    async def block() -> None:
        started.set()
        await blocking.wait()

    async def behind() -> None:
        ran.append("behind")

    for function in (short, block, behind):
        yard.task(function)
    for _ in range(30):
        yard.submit("short")
    yard.submit("block")
    job_id = yard.submit("behind")
    async with yard.running(concurrency=1):
        await heard(started)
        await until(lambda: yard.status(job_id) is JobStatus.PROCESSING)
        cancel(yard, job_id)
        await until(lambda: yard.status(job_id) is JobStatus.CANCELLED)
        blocking.set()

    assert ran == []
    assert yard.job(job_id).counters.attempts == 0


async def test_a_coroutine_may_await_its_cancellation(yard: Yard) -> None:
    answers: list[bool] = []

    async def ask(ctx: Context) -> None:
        answers.append(await ctx.await_cancelled("1ms"))

    yard.task(ask)
    yard.submit("ask")

    await yard.burst()

    assert answers == [False]
