# SPDX-License-Identifier: MIT
"""Middlewares and observers: they watch, and never touch a job."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.job import JobStatus
from packhorse.core.outcome import Failed, Outcome, Succeeded
from packhorse.core.policies.retry import RetryPolicy
from packhorse.events import ObserverFailed
from tests.worker.support import PATIENCE_S, Yard, until

Proceed = Callable[[], Awaitable[Outcome]]


@pytest.fixture
def yard() -> Yard:
    yard = Yard()

    async def on_the_loop(ctx: Context) -> str:
        runs.append(ctx.job.id)
        return "done"

    def in_a_thread(ctx: Context) -> str:
        runs.append(ctx.job.id)
        return "done"

    async def fails() -> None:
        raise ValueError("its own")

    runs: list[str] = []
    yard.runs = runs  # type: ignore[attr-defined]
    yard.task(on_the_loop)
    yard.task(in_a_thread)
    yard.task(fails, retry=RetryPolicy(max_retries=0))
    return yard


both = pytest.mark.parametrize("task", ["on_the_loop", "in_a_thread"])


@pytest.mark.req("S3-37")
@both
async def test_middlewares_wrap_every_attempt_outermost_first(yard: Yard, task: str) -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def middleware(ctx: Context, proceed: Proceed) -> None:
            order.append(f"{name} before {ctx.job.task}")
            outcome = await proceed()
            order.append(f"{name} after {type(outcome).__name__}")

        return middleware

    yard.middlewares += [named("outer"), named("inner")]
    yard.submit(task)

    await yard.burst()

    assert order == [
        f"outer before {task}",
        f"inner before {task}",
        "inner after Succeeded",
        "outer after Succeeded",
    ]


async def raises_before(ctx: Context, proceed: Proceed) -> None:
    raise RuntimeError("before")


async def raises_after(ctx: Context, proceed: Proceed) -> None:
    await proceed()
    raise RuntimeError("after")


async def exits(ctx: Context, proceed: Proceed) -> None:
    raise SystemExit(1)


async def forgets(ctx: Context, proceed: Proceed) -> str:
    return "nothing was run"


async def repeats(ctx: Context, proceed: Proceed) -> None:
    await proceed()
    await proceed()


async def runs_off_with_it(ctx: Context, proceed: Proceed) -> None:
    ctx.log.debug("beginning")
    task = asyncio.ensure_future(proceed())
    assert not task.done()
    raise RuntimeError("the rest runs without me")


@pytest.mark.req("S3-37")
@both
@pytest.mark.parametrize(
    "middleware", [raises_before, raises_after, exits, forgets, repeats, runs_off_with_it]
)
async def test_whatever_a_middleware_does_the_handler_runs_once_and_its_outcome_stands(
    yard: Yard, task: str, middleware: Any
) -> None:
    yard.middlewares.append(middleware)
    job_id = yard.submit(task)

    report = await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, b'"done"')
    assert yard.runs == [job_id]  # type: ignore[attr-defined]
    assert report.succeeded == 1


class Slow:
    """Handlers that go on until their middleware has given up on them."""

    def __init__(self, yard: Yard) -> None:
        self.gate = threading.Event()
        self.began: list[str] = []
        self.gave_up: list[str] = []
        yard.task(self.slow_on_the_loop, name="slow_on_the_loop")
        yard.task(self.slow_in_a_thread, name="slow_in_a_thread")

    async def slow_on_the_loop(self, ctx: Context) -> str:
        self.began.append(ctx.job.id)
        await until(self.gate.is_set)
        return "done"

    def slow_in_a_thread(self, ctx: Context) -> str:
        self.began.append(ctx.job.id)
        assert self.gate.wait(PATIENCE_S)
        return "done"

    def give_up(self, how: str) -> None:
        self.gave_up.append(how)
        self.gate.set()

    async def times_out(self, ctx: Context, proceed: Proceed) -> None:
        try:
            async with asyncio.timeout(0.01):
                await proceed()
        except TimeoutError:
            self.give_up("timeout")

    async def waits_for(self, ctx: Context, proceed: Proceed) -> None:
        try:
            await asyncio.wait_for(proceed(), 0.01)
        except TimeoutError:
            self.give_up("timeout")
            raise

    async def cancels_its_task(self, ctx: Context, proceed: Proceed) -> None:
        task = asyncio.ensure_future(proceed())
        await until(lambda: self.began)
        task.cancel()
        self.give_up("cancel")
        await task

    async def is_cancelled_after_it_returned(self, ctx: Context, proceed: Proceed) -> None:
        own = asyncio.current_task()
        assert own is not None
        asyncio.get_running_loop().call_soon(own.cancel)
        asyncio.get_running_loop().call_later(0.01, self.give_up, "returned")

    async def tries_again_and_again(self, ctx: Context, proceed: Proceed) -> None:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await proceed()
        self.give_up("timeout")
        await asyncio.gather(proceed(), proceed())


@pytest.mark.req("S3-37")
@pytest.mark.parametrize("task", ["slow_on_the_loop", "slow_in_a_thread"])
@pytest.mark.parametrize(
    "misdeed",
    [
        "times_out",
        "waits_for",
        "cancels_its_task",
        "is_cancelled_after_it_returned",
        "tries_again_and_again",
    ],
)
async def test_a_middleware_that_stops_waiting_neither_stops_the_handler_nor_starts_it_again(
    yard: Yard, task: str, misdeed: str
) -> None:
    slow = Slow(yard)
    yard.middlewares.append(getattr(slow, misdeed))
    job_id = yard.submit(task)

    report = await yard.burst()

    job = yard.job(job_id)
    assert len(slow.gave_up) == 1
    assert slow.began == [job_id]
    assert (job.status, job.result) == (JobStatus.COMPLETED, b'"done"')
    assert (report.succeeded, report.failed) == (1, 0)


@pytest.mark.parametrize("task", ["slow_on_the_loop", "slow_in_a_thread"])
async def test_a_time_limit_of_an_outer_middleware_ends_the_wait_of_inner_ones_alone(
    yard: Yard, task: str
) -> None:
    slow, inner = Slow(yard), []

    async def sees(ctx: Context, proceed: Proceed) -> None:
        try:
            await proceed()
        except asyncio.CancelledError:
            inner.append("cancelled")
            raise

    yard.record("observer.*")
    yard.middlewares += [slow.times_out, sees]
    job_id = yard.submit(task)

    await yard.burst()

    assert (slow.gave_up, inner) == (["timeout"], ["cancelled"])
    assert slow.began == [job_id]
    assert yard.job(job_id).result == b'"done"'
    assert yard.told(ObserverFailed) == []


async def test_a_handler_that_is_told_to_stop_is_seen_to_by_its_middleware(yard: Yard) -> None:
    seen: list[str] = []

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def watches(ctx: Context, proceed: Proceed) -> None:
        seen.append(type(await proceed()).__name__)

    yard.task(hangs, retry=RetryPolicy(max_retries=0))
    yard.middlewares += [watches, watches]
    yard.submit("hangs", timeout_us=20_000)

    report = await yard.burst()

    assert seen == ["TimedOut", "TimedOut"]
    assert report.timed_out == 1


async def test_proceed_on_another_event_loop_is_refused_and_the_handler_runs_all_the_same(
    yard: Yard,
) -> None:
    async def elsewhere(ctx: Context, proceed: Proceed) -> None:
        async def call() -> None:
            await proceed()

        await asyncio.to_thread(asyncio.run, call())

    yard.record("observer.*")
    yard.middlewares.append(elsewhere)
    job_id = yard.submit("on_the_loop")

    await yard.burst()

    (event,) = yard.told(ObserverFailed)
    assert "another event loop" in event.error_message
    assert yard.runs == [job_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_handler_that_does_not_stop_inside_middlewares_is_given_up(
    yard: Yard, kind: str
) -> None:
    gate = threading.Event()

    async def deaf_coroutine() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)

    def deaf_thread() -> None:
        assert gate.wait(PATIENCE_S)

    async def watches(ctx: Context, proceed: Proceed) -> None:
        await proceed()

    yard.task(deaf_coroutine, retry=RetryPolicy(max_retries=0))
    yard.task(deaf_thread, retry=RetryPolicy(max_retries=0))
    yard.middlewares.append(watches)
    job_id = yard.submit(f"deaf_{kind}", timeout_us=20_000)

    report = await yard.burst(stop_grace_us=20_000)
    gate.set()

    assert yard.status(job_id) is JobStatus.DEAD
    assert (report.timed_out, report.abandoned) == (1, 1)


@pytest.mark.req("S3-37")
async def test_a_middleware_sees_a_failure_as_a_value_and_cannot_make_it_a_success(
    yard: Yard,
) -> None:
    seen: list[Outcome] = []

    async def soothe(ctx: Context, proceed: Proceed) -> Succeeded:
        seen.append(await proceed())
        return Succeeded('"all is well"')

    yard.middlewares.append(soothe)
    job_id = yard.submit("fails")

    await yard.burst()

    assert yard.status(job_id) is JobStatus.DEAD
    assert isinstance(seen[0], Failed)


async def test_a_middleware_that_fails_is_told_of(yard: Yard) -> None:
    yard.record("observer.*")
    yard.middlewares.append(raises_before)
    job_id = yard.submit("on_the_loop")

    await yard.burst()

    (event,) = yard.told(ObserverFailed)
    assert (event.job_id, event.observer, event.error_message) == (
        job_id,
        "raises_before",
        "before",
    )


@both
async def test_a_middleware_that_hangs_holds_its_job_no_longer_than_its_timeout(
    yard: Yard, task: str
) -> None:
    async def hang(ctx: Context, proceed: Proceed) -> None:
        await proceed()
        await asyncio.Event().wait()

    yard.middlewares.append(hang)
    job_id = yard.submit(task, timeout_us=20_000)

    await yard.burst(stop_grace_us=20_000)

    assert yard.job(job_id).result == b'"done"'


async def test_a_handler_left_to_a_task_of_its_middleware_is_bounded_all_the_same(
    yard: Yard,
) -> None:
    left: list[asyncio.Future[Outcome]] = []

    async def hang() -> None:
        await asyncio.Event().wait()

    async def leaves_it(ctx: Context, proceed: Proceed) -> None:
        left.append(asyncio.ensure_future(proceed()))
        raise RuntimeError("gone")

    yard.task(hang, retry=RetryPolicy(max_retries=0))
    yard.middlewares.append(leaves_it)
    job_id = yard.submit("hang", timeout_us=20_000)

    report = await yard.burst()
    left[0].cancel()

    assert report.timed_out == 1
    assert yard.status(job_id) is JobStatus.DEAD


@both
async def test_a_handler_sees_the_context_variables_its_middleware_set(
    yard: Yard, task: str
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")

    async def sets(ctx: Context, proceed: Proceed) -> None:
        variable.set(ctx.job.id)
        await proceed()

    seen: list[str] = []

    async def coroutine_looks() -> None:
        seen.append(variable.get())

    def thread_looks() -> None:
        seen.append(variable.get())

    looking = "coroutine_looks" if task == "on_the_loop" else "thread_looks"
    yard.task(coroutine_looks)
    yard.task(thread_looks)
    yard.middlewares.append(sets)
    job_id = yard.submit(looking)

    await yard.burst()

    assert seen == [job_id]
    assert variable.get() == ""


@pytest.mark.req("S3-37")
async def test_an_observer_that_raises_never_affects_the_job(yard: Yard) -> None:
    def broken(event: object) -> None:
        raise RuntimeError("broken")

    yard.bus.subscribe("*", broken)
    job_id = yard.submit("on_the_loop")

    report = await yard.burst()

    assert yard.status(job_id) is JobStatus.COMPLETED
    assert report.succeeded == 1
