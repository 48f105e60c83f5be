# SPDX-License-Identifier: MIT
"""Exceptions set from outside into threads that run handlers, as time-out libraries do it."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Iterator

import pytest

from packhorse.context import Context
from packhorse.core.job import JobStatus
from packhorse.core.policies.retry import RetryPolicy
from packhorse.runtime.worker import runners
from tests.worker.support import PATIENCE_S, Yard, until

#: One that is struck while its worker closes raises on its way out.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Late(BaseException):
    """What the time-out library raises."""


def raise_in(thread: int) -> None:
    """Have a thread raise as soon as it runs Python code again."""
    told = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(Late)
    )
    assert told == 1


@pytest.fixture
def yard() -> Iterator[Yard]:
    yield Yard()
    for thread in threading.enumerate():  # else one that was struck late raises in the next test
        if thread.name == "packhorse-handler":
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_idle_threads_that_are_ended_from_outside_are_replaced(
    yard: Yard, *, wrapped: bool
) -> None:
    threads: list[int] = []
    together = threading.Barrier(2)

    def work(ctx: Context, *, first: bool) -> str:
        threads.append(threading.get_ident())
        if first:  # both threads are there before one is free again
            together.wait(PATIENCE_S)
        return ctx.job.id

    if wrapped:
        yard.middlewares.append(lambda _ctx, proceed: proceed())
    yard.task(work, retry=RetryPolicy(max_retries=0))

    async with yard.running(concurrency=2):
        firsts = [yard.submit("work", {"first": True}) for _ in range(2)]
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in firsts))
        for thread in set(threads):
            raise_in(thread)
        later = [yard.submit("work", {"first": False}) for _ in range(10)]
        await until(lambda: all(yard.status(job) not in _OPEN for job in later))

    assert [yard.status(job) for job in later] == [JobStatus.COMPLETED] * 10
    assert len(threads) == 12


async def test_an_exception_that_comes_from_outside_while_a_handler_runs_fails_its_job_alone(
    yard: Yard,
) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    threads: list[int] = []
    go_on = threading.Event()

    def hit() -> None:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(began.set)
        while not go_on.wait(0.001):
            pass

    yard.task(hit, retry=RetryPolicy(max_retries=0))
    yard.task(brief)

    async with yard.running(concurrency=1):
        job = yard.submit("hit")
        await asyncio.wait_for(began.wait(), PATIENCE_S)
        raise_in(threads[0])
        after = yard.submit("brief")
        await until(lambda: yard.status(after) is JobStatus.COMPLETED)

    record = yard.job(job)
    assert record.status is JobStatus.DEAD
    assert record.error is not None
    assert record.error.type == "Late"


async def test_exceptions_at_any_moment_lose_neither_jobs_nor_slots(yard: Yard) -> None:
    threads: set[int] = set()
    over = threading.Event()

    def brief() -> str:
        threads.add(threading.get_ident())
        return "done"

    def torment() -> None:
        while not over.wait(0.0005):
            for thread in list(threads):
                threads.discard(thread)  # until it runs another one
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(Late)
                )

    yard.task(brief, retry=RetryPolicy(max_retries=0))
    tormentor = threading.Thread(target=torment)
    tormentor.start()
    try:
        async with yard.running(concurrency=2):
            jobs = [yard.submit("brief") for _ in range(300)]
            await until(lambda: all(yard.status(job) not in _OPEN for job in jobs))
            over.set()
            tormentor.join()
            last = yard.submit("brief")
            await until(lambda: yard.status(last) not in _OPEN)
    finally:
        over.set()

    errors = [yard.job(job).error for job in jobs if yard.status(job) is JobStatus.DEAD]
    assert all(error is not None and error.type == "Late" for error in errors)


async def test_a_thread_that_cannot_be_started_is_tried_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse_one(thread: threading.Thread) -> None:
        if thread.name == "packhorse-handler" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_one)
    monkeypatch.setattr(runners, "_NO_THREAD_S", 0.001)
    yard.task(brief)
    yard.submit("brief")

    report = await yard.burst(concurrency=1)

    assert (report.succeeded, len(refused)) == (1, 1)


def brief() -> str:
    return "done"


_OPEN = (JobStatus.QUEUED, JobStatus.PROCESSING)
