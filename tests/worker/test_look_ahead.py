# SPDX-License-Identifier: MIT
"""Look-ahead: as much as hides the store's time, no more than 50 ms, and never for long."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SystemClock
from packhorse.core.job import JobStatus
from packhorse.runtime.worker.slots import CLAIM_BATCH_MAX, LOOK_AHEAD_MAX, LookAhead, Slots
from packhorse.stores.requests import QueueSettings
from tests.worker.support import Yard, heard, turns, until


def measured(concurrency: int, *durations: float) -> LookAhead:
    look_ahead = LookAhead(concurrency)
    for duration in durations:
        look_ahead.measured(duration)
    return look_ahead


def ahead_of(look_ahead: LookAhead) -> int:
    """How many jobs are held beyond those that have a slot."""
    return look_ahead.wanted(running=look_ahead.concurrency, waiting=0)


def test_before_anything_is_measured_only_free_slots_are_filled() -> None:
    assert LookAhead(10).wanted(running=4, waiting=0) == 6


def test_fifty_milliseconds_of_work_are_held_ahead() -> None:
    assert ahead_of(measured(20, 0.005)) == 200
    assert ahead_of(measured(20, 0.1)) == 10
    assert ahead_of(measured(20, 60.0)) == 0


def test_two_claim_batches_are_the_most_and_come_one_at_a_time() -> None:
    look_ahead = measured(100, 0.000_001)
    half = LOOK_AHEAD_MAX // 2

    assert look_ahead.wanted(running=100, waiting=0) == CLAIM_BATCH_MAX
    assert look_ahead.wanted(running=100, waiting=half) == LOOK_AHEAD_MAX - half
    assert look_ahead.wanted(running=100, waiting=LOOK_AHEAD_MAX) == 0


def test_the_next_claim_goes_when_it_is_worth_a_round_trip() -> None:
    look_ahead = measured(20, 0.005)

    assert look_ahead.wanted(running=20, waiting=200) == 0
    assert look_ahead.wanted(running=20, waiting=151) == 0
    assert look_ahead.wanted(running=20, waiting=150) == 50
    assert look_ahead.wanted(running=20, waiting=0) == 200


def test_the_average_follows_what_is_measured() -> None:
    look_ahead = measured(10, 0.001, *[1.0] * 200)

    assert 0.9 < look_ahead.average_s <= 1.0


def test_suspended_it_holds_nothing_until_a_job_has_ended() -> None:
    look_ahead = measured(20, 0.005)
    look_ahead.suspend()
    assert ahead_of(look_ahead) == 0

    look_ahead.measured(0.005)
    assert ahead_of(look_ahead) == 200


async def test_jobs_that_wait_for_a_process_are_not_reported_as_running() -> None:
    slots = Slots(asyncio.get_running_loop(), SystemClock(), 10)
    slots.process_look_ahead.concurrency = 2
    slots.running, slots.in_processes = 9, 5

    assert slots.occupied == 6


@given(
    concurrency=st.integers(1, 1000),
    running=st.integers(0, 1000),
    waiting=st.integers(0, 2000),
    durations=st.lists(st.floats(0, 1000), max_size=20),
)
def test_a_claim_never_takes_more_than_slots_and_look_ahead_hold(
    concurrency: int, running: int, waiting: int, durations: list[float]
) -> None:
    look_ahead = measured(concurrency, *durations)
    running = min(running, concurrency)

    wanted = look_ahead.wanted(running, waiting)

    assert 0 <= wanted <= CLAIM_BATCH_MAX
    average_s = look_ahead.average_s
    ahead = min(LOOK_AHEAD_MAX, int(concurrency * 0.05 / average_s)) if average_s else 0
    assert wanted == 0 or running + waiting + wanted <= concurrency + ahead


async def test_look_ahead_that_cannot_begin_goes_back_for_others_to_run() -> None:
    yard = Yard()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def short() -> None: ...

    async def long() -> None:
        began.set()
        await go_on.wait()

    yard.task(short)
    yard.task(long)
    for _ in range(30):
        yard.submit("short")
    yard.submit("long")
    ahead = yard.submit("short")
    async with yard.running(concurrency=1):
        await heard(began)
        await until(lambda: yard.status(ahead) is JobStatus.PROCESSING)
        await until(lambda: yard.status(ahead) is JobStatus.QUEUED, within_s=3)
        await turns()
        assert yard.status(ahead) is JobStatus.QUEUED  # and is not taken again meanwhile
        go_on.set()
        await until(lambda: yard.status(ahead) is JobStatus.COMPLETED)

    assert yard.job(ahead).counters.attempts == 1


async def test_a_queue_with_a_limit_is_not_looked_ahead_in_before_any_job_of_it_was_seen() -> None:
    yard = Yard()
    held: list[int] = []

    async def short() -> None: ...

    async def bounded() -> None:
        held.append(sum(yard.status(job) is JobStatus.PROCESSING for job in jobs))

    yard.task(short)
    yard.task(bounded, queue="bounded")
    yard.declare(QueueSettings("bounded", concurrency=20))
    for _ in range(30):  # so short that many would be held ahead
        yard.submit("short", priority=0)
    jobs = [yard.submit("bounded", queue="bounded", priority=4) for _ in range(10)]

    await yard.burst(concurrency=1, queues=("default", "bounded"))

    assert held == [1] * 10
