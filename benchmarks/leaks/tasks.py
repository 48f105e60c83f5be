# SPDX-License-Identifier: MIT
"""The app of the worker that is looked at: jobs that succeed, fail, wait, and are cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from packhorse import Context, Packhorse, RetryPolicy

#: Finished jobs are taken away soon, so that upkeep has as much to do as the rest.
_RETENTION: Final = "30s"
#: How long a job that is to be cancelled waits for it at most.
_WAIT_S: Final = 30.0
_SOON: Final = RetryPolicy(max_retries=2, initial_delay=0.001, max_delay=0.01)


def create_app(url: str | None = None) -> Packhorse:
    """The app, for the worker and for the producer."""
    app = Packhorse(url)
    app.queue("default", retention=_RETENTION)
    for handler in (succeed, report, block):
        app.task(handler)
    app.task(retry=_SOON)(stumble)
    app.task(retry=_SOON, timeout="20ms")(dawdle)
    app.task(wait)
    return app


async def succeed(number: int) -> int:
    """Most jobs."""
    return number


async def report(ctx: Context, number: int) -> dict[str, int]:
    """Says how far it is, and has a result of some size."""
    ctx.progress(number, number + 1, "on the way")
    return {f"part {part}": number for part in range(10)}


def block(number: int) -> int:
    """Runs in a thread."""
    time.sleep(0.0001)
    return number


async def stumble(ctx: Context, number: int) -> int:
    """Fails the first time."""
    if ctx.job.attempt == 1:
        raise ConnectionError(f"not today, {number}")
    return number


async def dawdle(ctx: Context, number: int) -> int:
    """Takes too long the first time."""
    if ctx.job.attempt == 1:
        await asyncio.sleep(_WAIT_S)
    return number


async def wait(ctx: Context, number: int) -> int:
    """Is cancelled, while it waits or while it runs."""
    await ctx.await_cancelled(_WAIT_S)
    return number
