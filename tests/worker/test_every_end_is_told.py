# SPDX-License-Identifier: MIT
"""Every end of a job is told and counted, by whatever way it came; every event says whose it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from packhorse import Context, Packhorse, RateLimited, RetryPolicy, Snooze
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobOptions, JobRecord, JobStatus
from packhorse.errors import StoreUnavailable
from packhorse.events import (
    Event,
    JobCancelled,
    JobCancelling,
    JobDead,
    JobEnded,
    JobEvent,
    JobRescued,
)
from packhorse.events.bus import EVENTS
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.runtime.services.upkeep import PARKED_US_MAX, DeathReporter, Expirer, Parker
from packhorse.stores.memory import MemoryStore
from packhorse.stores.plan import Plan
from tests.worker.support import HandClock, Yard, heard, until

#: How every job here is submitted, so that its events can be told from others.
OWN: dict[str, Any] = {"tenant": "acme", "trace_id": "trace-1", "upstream_request_id": "up-1"}


@pytest.fixture
def yard() -> Yard:
    yard = Yard()
    yard.record()
    return yard


def own(event: JobEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in OWN}


# ------------------------------------------------------------------------------- ways to the end


async def various_attempts(yard: Yard) -> None:
    attempts: dict[str, int] = {}

    async def work(ctx: Context, how: str) -> None:
        attempts[how] = attempts.get(how, 0) + 1
        if how == "fail" or attempts[how] > 1:
            if how == "fail":
                raise ValueError("broken")
            return
        if how == "snooze":
            raise Snooze(0.001)
        if how == "limited":
            raise RateLimited(0.001)
        if how == "time":
            await asyncio.sleep(60)

    yard.task(work, retry=RetryPolicy(max_retries=1, initial_delay=0.001, jitter=False))
    for how in ("complete", "fail", "snooze", "limited"):
        yard.submit("work", {"how": how}, **OWN)
    yard.submit("work", {"how": "time"}, timeout_us=10_000, **OWN)
    await yard.burst()


async def cancelled_and_released(yard: Yard) -> None:
    began = asyncio.Event()

    async def wait() -> None:
        began.set()
        await asyncio.sleep(60)

    yard.task(wait)
    cancelled = yard.submit("wait", **OWN)
    async with yard.running(shutdown_timeout_us=1000):
        await heard(began)
        yard.do(yard.store.jobs.cancel(cancelled))
        await until(lambda: yard.status(cancelled) is JobStatus.CANCELLED)
        began.clear()
        yard.submit("wait", **OWN)
        await heard(began)


async def stale_and_abandoned(yard: Yard) -> None:
    def deaf() -> None:
        time.sleep(0.4)

    yard.task(deaf)
    yard.submit("deaf", timeout_us=20_000, **OWN)
    async with yard.running(stop_grace_us=20_000, abandoned_threads_max=9):
        await until(lambda: any(event.name == "job.abandoned" for event in yard.events))

    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    yard.task(slow)
    job_id = yard.submit("slow", **OWN)
    async with yard.running():
        await heard(began)
        with yard.store._lock:
            yard.store._state.jobs[job_id].fence += 1
        go_on.set()
        await until(lambda: any(event.name == "job.stale" for event in yard.events))


async def lost(yard: Yard) -> None:
    yard.submit("lost", **OWN)
    yard.claim_by_hand("gone", "lost")
    yard.store_clock.ahead_us += 31 * SECOND_US
    await rescued(yard)


async def expired(yard: Yard) -> None:
    yard.submit("late", deadline_us=yard.store_clock.now_us() + SECOND_US, **OWN)
    yard.store_clock.ahead_us += 2 * SECOND_US
    await Expirer(yard.services(), DeathReporter(yard.services())).run_once()


async def rescued(yard: Yard) -> None:
    rescuer, clock = rescuer_of(yard)
    for _ in range(2):
        await rescuer.run_once()
        clock.seconds += 4


def rescuer_of(yard: Yard) -> tuple[Rescuer, HandClock]:
    clock = HandClock()
    return Rescuer(yard.services("rescuer", clock=clock)), clock


WAYS: tuple[Callable[[Yard], Awaitable[None]], ...] = (
    *(various_attempts, cancelled_and_released, stale_and_abandoned, lost, expired),
)


@pytest.mark.req("S3-32", "S0-30", "S4-19", "S4-22")
async def test_every_event_about_a_job_says_whose_it_is_and_who_tells() -> None:
    told: list[Event] = []
    for way in WAYS:
        yard = Yard()
        yard.record()
        await way(yard)
        told += yard.events

    about = [event for event in told if isinstance(event, JobEvent)]
    assert {type(event) for event in about} == {
        kind for kind in EVENTS.values() if issubclass(kind, JobEvent) and kind.name
    }
    for event in about:
        assert own(event) == OWN, event
        assert event.job_id, event
        assert event.task, event
        assert event.queue == "default", event
        assert event.worker, event
    for event in [event for event in about if isinstance(event, JobEnded)]:
        assert event.status, event
        assert event.attempt > 0 or event.name == "job.dead", event
        assert event.attempt == 0 or event.duration_ms > 0, event


# ---------------------------------------------------------------------------------- lost workers


@pytest.mark.req("S0-30", "S3-32")
async def test_a_rescue_tells_how_long_the_attempt_was_held_and_what_became_of_it(
    yard: Yard,
) -> None:
    await lost(yard)

    (event,) = yard.told(JobRescued)
    assert (event.lost_worker, event.worker, event.attempt) == ("gone", "rescuer", 1)
    assert (event.status, event.error_code) == ("pending", "WORKER_LOST")
    assert event.duration_ms == pytest.approx(30_000, abs=1_000)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("it cannot be read")])
async def test_a_rescue_whose_record_cannot_be_read_keeps_no_other_from_being_told(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What a store that is away does not tell is told later."""
    jobs = [yard.submit("lost", options=JobOptions(max_crashes=0), **OWN) for _ in range(3)]
    for _ in jobs:
        yard.claim_by_hand("gone", "lost")
    yard.store_clock.ahead_us += 31 * SECOND_US
    read, failing = yard.store.inspection.job, [error]

    def reading(job_id: str) -> Plan[JobRecord | None]:
        if failing:
            raise failing.pop()
        return read(job_id)

    monkeypatch.setattr(yard.store.inspection, "job", reading)
    rescuer, clock = rescuer_of(yard)
    for _ in range(4):
        with suppress(StoreUnavailable, ValueError):
            await rescuer.run_once()
        clock.seconds += 4

    told = 3 if isinstance(error, StoreUnavailable) else 2
    assert len(yard.told(JobRescued)) == len({e.job_id for e in yard.told(JobRescued)}) == told
    assert {yard.status(job) for job in jobs} == {JobStatus.DEAD}
    assert sorted(event.job_id for event in yard.told(JobDead)) == sorted(jobs)


@pytest.mark.req("S3-16")
async def test_a_job_cancelled_while_its_worker_was_lost_is_told_as_cancelled_once(
    yard: Yard,
) -> None:
    job_id = yard.submit("lost", **OWN)
    yard.claim_by_hand("gone", "lost")
    yard.do(yard.store.jobs.cancel(job_id))
    yard.store_clock.ahead_us += 31 * SECOND_US

    await rescued(yard)

    (start,), (end,) = yard.told(JobCancelling), yard.told(JobCancelled)
    assert (start.job_id, end.job_id) == (job_id, job_id)
    assert own(start) == own(end) == OWN
    assert end.status == "cancelled"


# ----------------------------------------------------------------------------- jobs that waited


@pytest.mark.req("S2-13", "S3-32")
async def test_jobs_that_no_worker_had_die_with_an_event_and_a_count(yard: Yard) -> None:
    counted: list[int] = []
    deaths = DeathReporter(yard.services(), count=counted.append)
    yard.submit("late", deadline_us=yard.store_clock.now_us() + SECOND_US, **OWN)
    unknown = yard.submit("unknown", **OWN)
    with yard.store._lock:
        row = yard.store._state.jobs[unknown]
        with yard.store._state.changing(row, row.updated_us):
            row.parked_us = yard.store_clock.now_us() - PARKED_US_MAX
    yard.store_clock.ahead_us += 2 * SECOND_US

    await Expirer(yard.services(), deaths).run_once()
    await Parker(yard.services(), deaths).run_once()

    late, given_up = yard.told(JobDead)
    assert (late.reason, given_up.reason) == ("expired", "unknown_task")
    assert own(late) == own(given_up) == OWN
    assert sum(counted) == 2


async def test_what_upkeep_gives_up_is_in_the_counts_of_its_worker(yard: Yard) -> None:
    async def known() -> None: ...

    yard.task(known)
    now_us = yard.store_clock.now_us()
    yard.submit("late", deadline_us=now_us - 1)
    worker = yard.worker()
    run = asyncio.create_task(worker.run())
    await until(lambda: yard.told(JobDead), within_s=15)
    worker.stop("the test is over")

    assert (await run).dead == 1


@pytest.mark.req("S3-16")
@pytest.mark.parametrize("twin", ["cancel", "acancel"])
async def test_cancelling_a_waiting_job_tells_its_start_and_its_end_once_each(twin: str) -> None:
    app = Packhorse(store=MemoryStore())
    told: list[Event] = []

    @app.task
    def work() -> None: ...

    app.on("*")(told.append)
    job = await work.using(**OWN).aenqueue()
    for _ in range(2):  # the second finds it finished
        await job.acancel() if twin == "acancel" else await asyncio.to_thread(job.cancel)

    start, end = told
    assert isinstance(start, JobCancelling)
    assert isinstance(end, JobCancelled)
    assert own(start) == own(end) == OWN
    app.close()


@pytest.mark.req("S2-13")
@pytest.mark.parametrize("twin", ["enqueue", "aenqueue"])
async def test_a_job_that_a_full_queue_drops_is_told_by_the_submit_that_did_it(twin: str) -> None:
    app = Packhorse(store=MemoryStore())
    app.queue("narrow", max_depth=1, on_full="drop")
    told: list[Any] = []

    @app.task(queue="narrow")
    def work() -> None: ...

    app.on("job.dead")(told.append)
    call = work.using(**OWN)
    first = await call.aenqueue()
    urgent = call.using(priority="high")
    await urgent.aenqueue() if twin == "aenqueue" else await asyncio.to_thread(urgent.enqueue)

    (event,) = told
    assert (event.job_id, event.reason) == (first.id, "shed")
    assert own(event) == OWN
    app.close()
