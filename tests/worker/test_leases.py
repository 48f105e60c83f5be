# SPDX-License-Identifier: MIT
"""Leases: kept while the worker lives, noticed when lost, taken over when it is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Succeeded
from packhorse.core.settlement import Verdict
from packhorse.errors import StoreUnavailable
from packhorse.events import JobRescued, JobStale, LeaseLost, LeaseRegained, LoopBlocked
from packhorse.runtime.worker.heartbeat import WorkerLease
from tests.worker.support import Yard, block_until, heard, turns, until

#: Long enough for a heartbeat that has to share a busy machine.
LEASE_US = 600_000


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.mark.req("S1-43", "S1-42", "S2-8")
async def test_a_job_longer_than_its_lease_runs_once_while_others_look_on(yard: Yard) -> None:
    ran = 0

    async def long() -> None:
        nonlocal ran
        ran += 1
        await asyncio.sleep(2 * LEASE_US / SECOND_US)

    yard.task(long)
    job_id = yard.submit("long")
    async with yard.running(lease_us=LEASE_US), yard.running(lease_us=LEASE_US):
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)

    assert ran == 1
    assert yard.job(job_id).counters.crashes == 0


@pytest.mark.req("S1-43")
async def test_a_handler_that_blocks_the_loop_does_not_cost_the_lease(yard: Yard) -> None:
    async def block() -> None:
        time.sleep(2 * LEASE_US / SECOND_US)

    yard.task(block)
    yard.record("lease.*")
    job_id = yard.submit("block")

    await yard.burst(lease_us=LEASE_US)

    assert yard.job(job_id).counters.crashes == 0
    assert yard.status(job_id) is JobStatus.COMPLETED
    assert yard.events == []


@pytest.mark.req("S3-26", "S1-42", "S2-3", "S2-4")
async def test_a_dead_workers_job_is_rescued_and_run_again(yard: Yard) -> None:
    ran: list[int] = []

    async def work(ctx: Context) -> None:
        ran.append(ctx.job.fence)

    yard.task(work)
    yard.record()
    job_id = yard.submit("work")
    lost = yard.claim_by_hand("dead", "work", lease_us=50_000)
    yard.store_clock.ahead_us += 3 * SECOND_US  # its lease and the wait after the first crash

    await yard.burst()

    (rescued,) = yard.told(JobRescued)
    assert (rescued.job_id, rescued.lost_worker, rescued.crashes) == (job_id, "dead", 1)
    assert yard.status(job_id) is JobStatus.COMPLETED
    assert ran == [lost.fence + 1]


@pytest.mark.req("S1-44")
async def test_the_late_end_of_a_rescued_job_changes_nothing_and_is_told(yard: Yard) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Context) -> str:
        began.set()
        await go_on.wait()
        return f"fence {ctx.job.fence}"

    yard.task(slow)
    yard.record()
    job_id = yard.submit("slow")
    async with yard.running() as worker:
        await heard(began)
        take_over(yard, worker.id, job_id)
        go_on.set()
        await until(lambda: yard.told(JobStale))

    job = yard.job(job_id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, b'"of the successor"')


def take_over(yard: Yard, worker: str, job_id: str) -> None:
    """Give a running job to another worker, which finishes it at once."""
    with yard.store._lock:
        row = yard.store._state.jobs[job_id]
        with yard.store._state.changing(row, yard.store_clock.now_us()):
            row.status, row.worker = JobStatus.QUEUED, None
    job = yard.claim_by_hand("successor", "slow")
    settlement = settle(job, Succeeded('"of the successor"'), JobRules(), roll=0.0)
    assert yard.do(yard.store.jobs.settle([settlement])) == (Verdict.APPLIED,)


async def test_a_handler_sees_that_the_lease_is_lost_before_the_store_gives_its_job_away() -> None:
    down = threading.Event()
    saw: dict[str, Any] = {}

    def faults(verb: str, moment: str) -> None:
        if down.is_set() and verb == "renew":
            raise StoreUnavailable("cannot be reached")

    yard = Yard(faults)
    clock = SystemClock()

    def watch(ctx: Context) -> None:
        saw["at first"] = ctx.lease_lost
        down.set()
        began = clock.monotonic()
        while not ctx.lease_lost and clock.monotonic() - began < 5:
            ctx.wait_cancelled(0.001)
        (lease,) = yard.do(yard.store.leases.workers())
        saw["live"] = lease.live
        saw["still mine"] = ctx.still_mine()
        down.clear()

    yard.task(watch)
    yard.record("lease.*")
    job_id = yard.submit("watch")

    await yard.burst(lease_us=LEASE_US)

    assert saw == {"at first": False, "live": True, "still mine": True}
    assert yard.status(job_id) is JobStatus.COMPLETED


async def test_a_lost_and_regained_lease_is_told_once_each() -> None:
    down = threading.Event()
    began, go_on = asyncio.Event(), asyncio.Event()

    def faults(verb: str, moment: str) -> None:
        if down.is_set() and verb == "renew":
            raise StoreUnavailable("cannot be reached")

    yard = Yard(faults)

    async def wait() -> None:
        began.set()
        await go_on.wait()

    yard.task(wait)
    yard.record("lease.*")
    yard.submit("wait")
    async with yard.running(lease_us=LEASE_US):
        await heard(began)
        down.set()
        await until(lambda: yard.told(LeaseLost))
        later = yard.submit("wait")
        await turns()
        assert yard.status(later) is JobStatus.QUEUED  # nothing is claimed without a lease
        down.clear()
        await until(lambda: yard.told(LeaseRegained))
        go_on.set()
        await until(lambda: yard.status(later) is JobStatus.COMPLETED)

    assert len(yard.told(LeaseLost)) == 1
    assert len(yard.told(LeaseRegained)) == 1


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_lease_that_lapsed_unnoticed_is_found_out_and_its_jobs_know(
    yard: Yard, *, forgotten: bool
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    lost: list[bool] = []

    async def wait(ctx: Context) -> None:
        began.set()
        await go_on.wait()
        lost.append(ctx.lease_lost)

    async def noop() -> None: ...

    yard.task(wait)
    yard.task(noop)
    yard.record("lease.*")
    yard.submit("wait")
    async with yard.running():
        await heard(began)
        if forgotten:  # as a worker is that slept for days, with a clock that slept too
            yard.store._state.workers.clear()
        else:
            yard.store_clock.ahead_us += 60 * SECOND_US  # it has not been heard of for too long
        later = yard.submit("noop")
        await until(lambda: yard.status(later) is JobStatus.COMPLETED)
        go_on.set()
        await until(lambda: lost)

    assert lost == [True]
    assert len(yard.told(LeaseLost)) == len(yard.told(LeaseRegained)) == 1


@pytest.mark.req("S4-1")
async def test_telling_what_is_held_never_releases_what_was_just_claimed(yard: Yard) -> None:
    ran: Counter[int] = Counter()

    async def work(number: int) -> None:
        ran[number] += 1
        await asyncio.sleep(0)

    yard.task(work)
    for number in range(3_000):
        yard.submit("work", {"number": number})

    worker = yard.worker(burst=True, concurrency=20)
    run = asyncio.create_task(worker.run())
    while not run.done():
        if worker._runtime is not None:
            worker._runtime.heartbeat.renew_now()  # as often as it can
        await asyncio.sleep(0.0005)
    report = await run

    assert ran == Counter(range(3_000))
    assert report.stale == 0


async def test_while_a_renewal_tells_what_is_held_nothing_is_claimed(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    async with yard.running() as worker:
        await until(lambda: worker._runtime and worker._runtime.heartbeat.lease.trusted)
        runtime = worker._runtime
        assert runtime is not None
        await until(lambda: runtime.heartbeat.claim_lock.acquire(blocking=False))
        job_id = yard.submit("noop")
        await turns()
        assert yard.status(job_id) is JobStatus.QUEUED
        runtime.heartbeat.claim_lock.release()
        runtime.fetcher.nudge()
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)


async def test_jobs_of_a_claim_whose_answer_was_lost_are_given_back_and_run() -> None:
    lose_next = True

    def faults(verb: str, moment: str) -> None:
        nonlocal lose_next
        if verb == "claim" and moment == "after" and lose_next:
            lose_next = False
            raise StoreUnavailable("the answer was lost")

    yard = Yard(faults)
    ran: list[int] = []

    async def work(ctx: Context) -> None:
        ran.append(ctx.job.fence)

    yard.task(work)
    job_id = yard.submit("work")

    await yard.burst()  # with a lease of 30 s: that is not waited for

    assert ran == [2]
    counters = yard.job(job_id).counters
    assert (counters.attempts, counters.crashes, counters.releases) == (1, 0, 1)


async def test_a_blocked_event_loop_is_told_while_it_is_blocked(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._BLOCKED_S", 0.1)
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._LOOK_S", 0.05)
    told = threading.Event()

    async def block() -> bool:
        return told.wait(5)

    yard.task(block)
    yard.bus.subscribe(LoopBlocked, lambda _: told.set())
    yard.record("loop.*")
    job_id = yard.submit("block")

    await yard.burst()

    assert yard.job(job_id).result == b"true"
    (event,) = yard.told(LoopBlocked)
    assert event.tasks == ("block",)


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_has_a_slot_and_has_not_begun_when_the_lease_lapses_does_not_begin(
    yard: Yard, *, threaded: bool
) -> None:
    ran: list[int] = []

    def lapse_first(number: int) -> None:
        ran.append(number)
        if len(ran) == 1:
            runtime = worker._runtime
            assert runtime is not None
            block_until(lambda: runtime.slots.running == 2)  # the other one has got its slot
            runtime.heartbeat.lease.distrust()
            runtime.heartbeat.lease.renewed(asked_at=runtime.monotonic())

    async def lapse_first_on_the_loop(number: int) -> None:
        lapse_first(number)

    yard.task(lapse_first if threaded else lapse_first_on_the_loop, name="work")
    first, second = (yard.submit("work", {"number": number}) for number in (1, 2))
    async with yard.running(concurrency=2) as worker:
        if threaded:  # one thread for both, so that the second waits for it
            await until(lambda: worker._runtime is not None)
            assert worker._runtime is not None
            worker._runtime.threads._size = 1
        await until(lambda: yard.status(second) is JobStatus.COMPLETED)

    assert ran == [1, 2]
    assert yard.job(first).counters.releases == 0
    assert yard.job(second).counters.releases == 1


def test_a_lease_is_trusted_for_nine_tenths_from_the_asking() -> None:
    clock = HandClock()
    lease = WorkerLease(clock, 10 * SECOND_US)
    assert not lease.trusted

    lease.renewed(asked_at=0.0)
    clock.seconds = 8.9
    assert lease.trusted
    clock.seconds = 9.0
    assert not lease.trusted


def test_what_was_claimed_before_a_lapse_stays_lost() -> None:
    clock = HandClock()
    lease = WorkerLease(clock, 10 * SECOND_US)
    lease.renewed(asked_at=0.0)
    epoch = lease.epoch

    lease.distrust()
    lease.renewed(asked_at=1.0)

    assert lease.lost_since(epoch)
    assert not lease.lost_since(lease.epoch)


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds
