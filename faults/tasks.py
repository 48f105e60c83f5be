# SPDX-License-Identifier: MIT
"""The app of the rig's workers: every kind of job and limit, on handlers that write down."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from faults.checking.contest import Limits
from faults.records import RECORDS_VARIABLE, SMALL_FILE_LINES, Recorder
from packhorse import Context, Packhorse, RateLimited, RetryPolicy, StoreUnavailable, Unique
from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.attachments import Attaching
from packhorse.events import JobCompleted, JobLimited, JobStale
from packhorse.stores import open_store
from packhorse.stores.protocol import Store

record = Recorder(lines_max=SMALL_FILE_LINES)

#: What is declared, and what the checker judges by. A rig makes four or five jobs a second in all:
#: rates are so low that these few use them up, or nothing would be judged about them.
LIMITS: Final = Limits(
    queue_concurrency={"capped": 3, "narrow": 2},
    task_concurrency={"keyed": 2},
    queue_rate={"rated": (3, SECOND_US)},
    tenant_rate={"tenants": (2, SECOND_US)},
    task_rate={"called": (2, SECOND_US)},
    max_depth={"narrow": 4},
    unique=frozenset({"single"}),
    throttle_us={"throttled": SECOND_US},
    idempotent=frozenset({"charged"}),
    closed_us={"called": 300_000},
)
#: Served by supervised workers only: each keeps processes warm for it.
PROCESS_QUEUE: Final = "processes"
#: Tasks that take their process down each time.
GUILTY: Final = frozenset({"poison", "poison_child"})
_SOON: Final = RetryPolicy(backoff="fixed", initial_delay="50ms", max_delay="50ms", jitter=False)
#: A job that takes seconds is killed with its worker again and again, also when it runs alone: how
#: often is the rig's choice, and proves nothing against it.
_MANY_CRASHES: Final = 1_000
#: How long a job that waits to be cancelled does so.
_PATIENT_S: Final = 4.0
#: More than a child of a rig's worker may have, see `workers`.
_GOBBLED_MIB: Final = 4_000


def create_app(url: str | None = None, *, clock: Clock | None = None) -> Packhorse:
    """The app of a worker or producer process, or of the rig."""
    app = Packhorse(url, clock=clock)
    _declare_queues(app)
    for handler in (capped, narrow, rated, tenants, ordered, charged):
        app.task(queue=handler.__name__, retry=_SOON, max_crashes=_MANY_CRASHES)(handler)
    app.task(
        queue="keyed",
        concurrency=LIMITS.task_concurrency["keyed"],
        concurrency_key="key",
        max_crashes=_MANY_CRASHES,
    )(keyed)
    app.task(
        queue="called",
        rate_limit=_rate(LIMITS.task_rate["called"]),
        rate_key="key",
        max_crashes=_MANY_CRASHES,
    )(called)
    app.task(queue="once", unique=Unique("key"))(single)
    window = LIMITS.throttle_us["throttled"] / SECOND_US
    throttle = Unique("key", scope="window", on_conflict="throttle", window=window)
    app.task(queue="once", unique=throttle)(throttled)
    for plain in (quick, doze, block_loop, swept):
        app.task(retry=_SOON)(plain)
    for long in (slow, patient):
        app.task(retry=_SOON, max_crashes=_MANY_CRASHES)(long)
    app.task(retry=RetryPolicy(max_retries=10, backoff="fixed", initial_delay="50ms"))(flaky)
    for apart in (crunch, gobble, taken):
        app.task(queue=PROCESS_QUEUE, executor="process", retry=_SOON)(apart)
    app.task(max_crashes=1)(poison)
    app.task(queue=PROCESS_QUEUE, executor="process", max_crashes=1)(poison_child)
    app.on(JobCompleted)(_note)
    app.on(JobStale)(_note)
    app.on(JobLimited)(_note_limit)
    return app


def _declare_queues(app: Packhorse) -> None:
    for queue, limit in LIMITS.queue_concurrency.items():
        app.queue(queue, concurrency=limit, max_depth=LIMITS.max_depth.get(queue))
    for queue, rule in LIMITS.queue_rate.items():
        app.queue(queue, rate_limit=_rate(rule))
    for queue, rule in LIMITS.tenant_rate.items():
        app.queue(queue, tenant_rate_limit=_rate(rule))


def _rate(rule: tuple[int, int]) -> tuple[int, float]:
    return rule[0], rule[1] / SECOND_US


def _note(event: JobCompleted | JobStale) -> None:
    """What the store answered this worker, written down with the handlers' own lines."""
    record.write_line(event.status, event.job_id, event.attempt)


def _note_limit(event: JobLimited) -> None:
    """The store knows of a limit that a handler met; until then its key is open."""
    record.write_line("limited", event.job_id, event.attempt)


def _done(ctx: Context, key: str | None = None) -> dict[str, int]:
    """Record the effect twice: always without a key, and under the key if it is not there yet."""
    record.write("effect", ctx)
    place = Path(os.environ[RECORDS_VARIABLE]).parent / "effects" / (key or ctx.job.id)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        record.write("keyed effect", ctx, note=place.name)
    except FileExistsError:
        record.write("effect known", ctx, note=place.name)
    record.write("end", ctx)
    return {"fence": ctx.job.fence, "pid": os.getpid()}


@cache
def _store(pid: int) -> Store:
    """The store of this process; a forked child opens its own."""
    del pid
    return open_store(os.environ["PACKHORSE_URL"])


def _keep(ctx: Context) -> None:
    """Attach a value under the fence; only what was answered is written down."""
    store, name = _store(os.getpid()), f"fence-{ctx.job.fence}"
    with suppress(StoreUnavailable):
        kept = [Attaching(ctx.job.id, ctx.job.fence, {name: b""})]
        if store.run(store.attachments.attach(kept)) == ("applied",):
            record.write("attached", ctx, note=name)


async def _work(ctx: Context, seconds: float, key: str | None = None) -> dict[str, int]:
    record.write("start", ctx)
    await asyncio.sleep(seconds)
    return _done(ctx, key)


def _work_here(ctx: Context, seconds: float) -> dict[str, int]:
    record.write("start", ctx)
    time.sleep(seconds)
    return _done(ctx)


async def capped(ctx: Context, seconds: float) -> dict[str, int]:
    """One of few at once, over all workers."""
    return await _work(ctx, seconds)


async def narrow(ctx: Context, seconds: float) -> dict[str, int]:
    """One of few that may wait."""
    return await _work(ctx, seconds)


def rated(ctx: Context, seconds: float) -> dict[str, int]:
    """One of so many a second, some of them heavy; in a thread."""
    return _work_here(ctx, seconds)


async def tenants(ctx: Context, seconds: float) -> dict[str, int]:
    """One of so many a second of its tenant."""
    return await _work(ctx, seconds)


async def keyed(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """One of few at once with its key."""
    return await _work(ctx, seconds)


async def called(ctx: Context, key: str, seconds: float, refusals: int) -> dict[str, int]:
    """Meet the limit of another system first, if told to; one of so many a second with its key."""
    if ctx.job.attempt > refusals:
        return await _work(ctx, seconds)
    record.write("start", ctx)
    record.write("end", ctx)
    raise RateLimited(LIMITS.closed_us["called"] / SECOND_US)


async def ordered(ctx: Context, seconds: float, failures: int) -> dict[str, int]:
    """One of a line; fails at first, if told to, and must not be overtaken for that."""
    return await flaky(ctx, seconds, failures)


async def charged(ctx: Context, order: str, seconds: float) -> dict[str, int]:
    """Submitted again and again under one idempotency key, which is that of its effect too."""
    return await _work(ctx, seconds, order)


async def single(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """The only one of its key that waits or runs."""
    return await _work(ctx, seconds)


async def throttled(ctx: Context, key: str, seconds: float) -> dict[str, int]:
    """One of its key in a window of time."""
    return await _work(ctx, seconds)


async def quick(ctx: Context, seconds: float) -> dict[str, int]:
    """A coroutine, as most are."""
    return await _work(ctx, seconds)


def doze(ctx: Context, seconds: float) -> dict[str, int]:
    """A thread that does not listen, and has something kept with its job."""
    _keep(ctx)
    return _work_here(ctx, seconds)


async def block_loop(ctx: Context, seconds: float) -> dict[str, int]:
    """A mistake people make: blocking work in a coroutine. Nothing else of the loop runs."""
    return _work_here(ctx, seconds)


async def slow(ctx: Context, seconds: float) -> dict[str, int]:
    """Longer than a lease, or about."""
    return await _work(ctx, seconds)


async def flaky(ctx: Context, seconds: float, failures: int) -> dict[str, int]:
    """Fails at first."""
    if ctx.job.attempt > failures:
        return await _work(ctx, seconds)
    record.write("start", ctx)
    await asyncio.sleep(seconds)
    record.write("end", ctx)
    raise ValueError("as asked")


async def patient(ctx: Context) -> dict[str, int]:
    """Wait to be cancelled, and then go on as if it were not."""
    record.write("start", ctx)
    await ctx.await_cancelled(_PATIENT_S)
    return _done(ctx)


def crunch(ctx: Context, seconds: float) -> dict[str, int]:
    """In a process of its own."""
    return _work_here(ctx, seconds)


def gobble(ctx: Context) -> dict[str, int]:
    """Asks for more memory than a child may have, the first time."""
    record.write("start", ctx)
    if ctx.job.attempt == 1:
        record.write("end", ctx)
        return {"fence": ctx.job.fence, "size": len(bytearray(_GOBBLED_MIB << 20))}
    return _done(ctx)


def taken(ctx: Context) -> dict[str, int]:
    """Its process is killed the first time, as the kernel does when memory is short."""
    record.write("start", ctx)
    if ctx.job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _done(ctx)


def swept(ctx: Context) -> dict[str, int]:
    """The same, for a whole worker."""
    return taken(ctx)


def poison(ctx: Context) -> None:
    """Takes its worker down, every time."""
    record.write("start", ctx)
    os._exit(86)


def poison_child(ctx: Context) -> None:
    """Takes the process down that it runs in, every time."""
    record.write("start", ctx)
    os._exit(86)
