# SPDX-License-Identifier: MIT
"""What an attempt held is free when it has ended: nothing of it waits for the collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packhorse import Context, Packhorse, RetryPolicy
from packhorse.runtime.worker.attempt import Attempt
from packhorse.steps.runner import StepRunner
from packhorse.steps.spending import Spending

JOBS = 20
OF_AN_ATTEMPT = (Attempt, Context, StepRunner, Spending)


async def _same(number: int) -> int:
    return number


def _same_here(number: int) -> int:
    return number


async def context(ctx: Context, number: int) -> None:
    ctx.log.debug("%d", number)


async def steps(ctx: Context, number: int) -> None:
    await ctx.astep("first", _same, number)
    await ctx.asleep("second", "1ms")


def in_a_thread(ctx: Context, number: int) -> None:
    ctx.step("first", _same_here, number)
    ctx.spend(tokens=number)


async def waits(ctx: Context, number: int) -> None:
    await ctx.await_cancelled(0.001)
    ctx.progress(number)


async def fails(ctx: Context, number: int) -> None:
    raise ValueError(f"{ctx.job.id} {number}")


async def too_long(ctx: Context, number: int) -> None:
    await asyncio.sleep(60 + number)


@pytest.fixture
def _by_hand() -> Iterator[None]:
    """Collected are only the cycles of the test."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.usefixtures("_by_hand")
@pytest.mark.parametrize("handler", [context, steps, in_a_thread, waits, fails, too_long])
def test_no_cycle_keeps_what_an_attempt_held(handler: Callable[..., Any]) -> None:
    app = Packhorse("memory://")
    timeout = "20ms" if handler is too_long else None
    task = app.task(retry=RetryPolicy(max_retries=0), timeout=timeout)(handler)
    task.enqueue_many([{"number": number} for number in range(JOBS)])

    app.run(burst=True, handle_signals=False)
    gc.collect()

    assert [each for each in gc.garbage if type(each) in OF_AN_ATTEMPT] == []
