# SPDX-License-Identifier: MIT
"""Lifespan hooks: entered before the first claim, left in the opposite order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.job import JobStatus
from packhorse.core.policies.retry import RetryPolicy
from packhorse.errors import ConfigError
from tests.worker.support import Yard


@pytest.fixture
def yard() -> Yard:
    yard = Yard()

    async def on_the_loop() -> str:
        return "done"

    async def fails() -> None:
        raise ValueError("its own")

    yard.task(on_the_loop)
    yard.task(fails, retry=RetryPolicy(max_retries=0))
    return yard


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
