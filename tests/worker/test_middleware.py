# SPDX-License-Identifier: MIT
"""Middlewares, observers and lifespan hooks: they watch, and never touch a job."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.errors import ConfigError
from packhorse.events import ObserverFailed
from packhorse.job import JobStatus
from packhorse.outcome import Failed, Outcome, Succeeded
from packhorse.policies.retry import RetryPolicy
from tests.worker.support import Yard

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


# ------------------------------------------------------------------------------------ lifespans


async def async_generator(app: object) -> AsyncIterator[dict[str, str]]:
    yield {"kind": "async generator"}


def generator(app: object) -> Iterator[dict[str, str]]:
    yield {"kind": "generator"}


@contextlib.asynccontextmanager
async def async_manager(app: object) -> AsyncIterator[dict[str, str]]:
    yield {"kind": "async manager"}


@contextlib.contextmanager
def manager() -> Iterator[dict[str, str]]:
    yield {"kind": "manager"}


@pytest.mark.req("S3-18")
@pytest.mark.parametrize("hook", [async_generator, generator, async_manager, manager])
async def test_handlers_see_what_lifespan_hooks_yield(yard: Yard, hook: Any) -> None:
    seen: list[object] = []

    async def look(ctx: Context) -> None:
        seen.append(ctx.state["kind"])

    yard.task(look)
    yard.lifespans.append(hook)
    yard.submit("look")

    await yard.burst()

    assert seen == [hook.__name__.replace("_", " ")]


@pytest.mark.req("S3-18")
async def test_hooks_are_left_in_the_opposite_order_also_when_jobs_raise(yard: Yard) -> None:
    order: list[str] = []

    def hook(name: str) -> Any:
        @contextlib.contextmanager
        def enter() -> Iterator[None]:
            order.append(f"enter {name}")
            yield
            order.append(f"leave {name}")

        return enter

    yard.lifespans += [hook("first"), hook("second")]
    yard.submit("fails")

    await yard.burst()

    assert order == ["enter first", "enter second", "leave second", "leave first"]


async def test_a_hook_that_yields_nothing_to_enter_is_refused(yard: Yard) -> None:
    def hook(app: object) -> int:
        return 3

    yard.lifespans.append(hook)

    with pytest.raises(ConfigError, match="hook"):
        await yard.burst()


async def test_a_hook_that_fails_at_start_keeps_jobs_from_being_claimed(yard: Yard) -> None:
    def hook() -> Iterator[None]:
        raise RuntimeError("no database")
        yield

    yard.lifespans.append(hook)
    job_id = yard.submit("on_the_loop")

    with pytest.raises(RuntimeError, match="no database"):
        await yard.burst()
    assert yard.status(job_id) is JobStatus.QUEUED
