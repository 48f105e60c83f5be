# SPDX-License-Identifier: MIT
"""The app of the contested test: every kind of limit there is, on handlers that write down."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from packhorse import Context, Packhorse, RateLimited, RetryPolicy, Unique
from packhorse.clock import SECOND_US
from packhorse.events import JobCompleted, JobStale
from tests.end_to_end.contested_checker import Limits
from tests.end_to_end.recording import Recorder, SteadyClock

#: Of the store in every process, and of what is written down.
CLOCK: Final = SteadyClock()
record = Recorder(CLOCK.now_us)

#: What is declared, and what the checker judges by.
LIMITS: Final = Limits(
    queue_concurrency={"capped": 3, "narrow": 2},
    task_concurrency={"keyed": 2},
    queue_rate={"rated": (15, SECOND_US)},
    tenant_rate={"tenants": (6, SECOND_US)},
    task_rate={"called": (8, SECOND_US)},
    max_depth={"narrow": 4},
    unique=frozenset({"single"}),
    throttle_us={"throttled": SECOND_US},
    idempotent=frozenset({"charged"}),
    closed_us={"called": 300_000},
)
_SOON: Final = RetryPolicy(backoff="fixed", initial_delay="50ms", max_delay="50ms", jitter=False)
#: No number of kills makes one of these jobs guilty.
_CRASHES: Final = 1_000


def create_app(url: str | None = None) -> Packhorse:
    """The app of a worker or producer process, or of the rig."""
    app = Packhorse(url, clock=CLOCK)
    for queue, limit in LIMITS.queue_concurrency.items():
        app.queue(queue, concurrency=limit, max_depth=LIMITS.max_depth.get(queue))
    for queue, rule in LIMITS.queue_rate.items():
        app.queue(queue, rate_limit=_rate(rule))
    for queue, rule in LIMITS.tenant_rate.items():
        app.queue(queue, tenant_rate_limit=_rate(rule))
    for handler in (capped, narrow, rated, tenants, ordered, charged):
        app.task(queue=handler.__name__, retry=_SOON, max_crashes=_CRASHES)(handler)
    app.task(
        queue="keyed",
        concurrency=LIMITS.task_concurrency["keyed"],
        concurrency_key="key",
        max_crashes=_CRASHES,
    )(keyed)
    app.task(
        queue="called",
        rate_limit=_rate(LIMITS.task_rate["called"]),
        rate_key="key",
        max_crashes=_CRASHES,
    )(called)
    app.task(queue="once", unique=Unique("key"), max_crashes=_CRASHES)(single)
    window = LIMITS.throttle_us["throttled"] / SECOND_US
    app.task(
        queue="once",
        unique=Unique("key", scope="window", on_conflict="throttle", window=window),
        max_crashes=_CRASHES,
    )(throttled)
    app.on(JobCompleted)(_note)
    app.on(JobStale)(_note)
    return app


def _rate(rule: tuple[int, int]) -> tuple[int, float]:
    return rule[0], rule[1] / SECOND_US


def _note(event: JobCompleted | JobStale) -> None:
    """What the store answered this worker, written down with the handlers' own lines."""
    record.write_line(event.status, event.job_id, event.attempt)


async def _work(ctx: Context, seconds: float) -> dict[str, int]:
    record.write("start", ctx)
    await asyncio.sleep(seconds)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


async def capped(ctx: Context, seconds: float) -> dict[str, int]:
    """One of few at once, over all workers."""
    return await _work(ctx, seconds)


async def narrow(ctx: Context, seconds: float) -> dict[str, int]:
    """One of few that may wait."""
    return await _work(ctx, seconds)


def rated(ctx: Context, seconds: float) -> dict[str, int]:
    """One of so many a second, some of them heavy; in a thread."""
    record.write("start", ctx)
    time.sleep(seconds)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


async def tenants(ctx: Context, seconds: float) -> dict[str, int]:
    """One of so many a second of its tenant."""
    return await _work(ctx, seconds)


async def keyed(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """One of few at once with its key."""
    return await _work(ctx, seconds)


async def called(ctx: Context, key: str, seconds: float, refusals: int) -> dict[str, int]:
    """One of so many a second with its key; meets somebody else's limit at first, if told to."""
    if ctx.job.attempt > refusals:
        return await _work(ctx, seconds)
    record.write("start", ctx)
    record.write("limited", ctx)
    record.write("end", ctx)
    raise RateLimited(LIMITS.closed_us["called"] / SECOND_US)


async def ordered(ctx: Context, seconds: float, failures: int) -> dict[str, int]:
    """One of a line; fails at first, if told to, and must not be overtaken for that."""
    done = await _work(ctx, seconds)
    if ctx.job.attempt <= failures:
        raise ValueError("as asked")
    return done


async def charged(ctx: Context, order: str, seconds: float) -> dict[str, int]:
    """Submitted again and again under one idempotency key."""
    return await _work(ctx, seconds)


async def single(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """The only one of its key that waits or runs."""
    return await _work(ctx, seconds)


async def throttled(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """One of its key in a window of time."""
    return await _work(ctx, seconds)
