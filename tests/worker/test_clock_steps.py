# SPDX-License-Identifier: MIT
"""The store's clock is set forward: workers keep what they hold, and rescuers wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.events import JobRescued
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.stores.requests import Renewal
from tests.worker.support import HandClock, Yard, heard, until

LEASE_US = 30 * SECOND_US
HOLD_S = 60 + 30  # the timeout of a job claimed by hand, and the grace


class Rescue:
    """A rescuer whose own clock and that of the store go together, unless one is set."""

    def __init__(self, yard: Yard) -> None:
        self.clock = HandClock()
        self.renewals = 0
        self._yard = yard
        self._rescuer = Rescuer(yard.services("rescuer", clock=self.clock), renew=self._renew)

    async def look(self, *, after_s: float = 0.0) -> float:
        self.clock.seconds += after_s
        self._yard.store_clock.ahead_us += round(after_s * SECOND_US)
        return await self._rescuer.run_once()

    def _renew(self) -> None:
        self.renewals += 1


@pytest.fixture
def yard() -> Yard:
    return Yard()


async def test_after_a_step_no_job_is_rescued_before_all_must_have_renewed(
    yard: Yard,
) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("anna", "work")
    rescue = Rescue(yard)
    await rescue.look()

    yard.store_clock.ahead_us += 10 * LEASE_US
    for _ in range(19):
        await rescue.look(after_s=1)
        assert yard.status(job_id) is JobStatus.PROCESSING
    assert rescue.renewals == 1  # its own worker was told at once

    await rescue.look(after_s=2)  # two thirds of a lease, and no worker has renewed
    assert yard.status(job_id) is not JobStatus.PROCESSING


async def test_a_second_step_starts_the_wait_again(yard: Yard) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("anna", "work")
    rescue = Rescue(yard)
    await rescue.look()
    for _ in range(3):
        yard.store_clock.ahead_us += 2 * LEASE_US
        for _ in range(18):
            await rescue.look(after_s=1)

    assert yard.status(job_id) is JobStatus.PROCESSING


async def test_a_clock_set_back_delays_no_rescue_that_was_due(yard: Yard) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("dead", "work")
    rescue = Rescue(yard)
    yard.store_clock.ahead_us += 40 * SECOND_US
    await rescue.look()

    yard.store_clock.ahead_us -= 5 * SECOND_US  # the lease is expired even so
    await rescue.look(after_s=3)

    assert yard.status(job_id) is not JobStatus.PROCESSING


async def test_an_own_lease_that_the_store_calls_expired_is_renewed(yard: Yard) -> None:
    yard.submit("work")
    yard.claim_by_hand("rescuer", "work")
    yard.store_clock.ahead_us += LEASE_US
    rescue = Rescue(yard)

    await rescue.look()

    assert rescue.renewals == 1


async def test_a_hold_beyond_its_limit_is_ended_when_seen_so_twice(yard: Yard) -> None:
    yard.record()
    job_id = yard.submit("work")
    yard.claim_by_hand("stuck", "work", lease_us=3600 * SECOND_US)
    yard.store_clock.ahead_us += HOLD_S * SECOND_US
    rescue = Rescue(yard)

    await rescue.look()
    await rescue.look(after_s=2.9)
    assert yard.status(job_id) is JobStatus.PROCESSING

    await rescue.look(after_s=0.2)
    assert [event.job_id for event in yard.told(JobRescued)] == [job_id]


async def test_no_hold_is_ended_soon_after_a_step(yard: Yard) -> None:
    job_id = yard.submit("work")
    job = yard.claim_by_hand("anna", "work", lease_us=3600 * SECOND_US)
    rescue = Rescue(yard)
    await rescue.look()

    yard.store_clock.ahead_us += 600 * SECOND_US
    for _ in range(10):
        await rescue.look(after_s=1)
    held = ((job.id, job.fence),)
    yard.do(
        yard.store.leases.renew(
            Renewal("anna", 3600 * SECOND_US, held=held, step_us=600 * SECOND_US)
        )
    )
    for _ in range(20):
        await rescue.look(after_s=1)

    assert yard.status(job_id) is JobStatus.PROCESSING


async def test_a_worker_has_its_holds_moved_along_with_the_clock(yard: Yard) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        began.set()
        await go_on.wait()

    yard.task(wait)
    job_id = yard.submit("wait")
    async with yard.running(lease_us=LEASE_US) as worker:
        await heard(began)
        hold_us = _hold_us(yard, job_id)
        yard.store_clock.ahead_us += 3600 * SECOND_US
        # Ten seconds before its next renewal would be due.
        await until(lambda: _hold_us(yard, job_id) > hold_us, within_s=3)
        (record,) = yard.do(yard.store.leases.workers())
        assert (record.worker, record.live) == (worker.id, True)
        go_on.set()
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)

    assert yard.job(job_id).counters.attempts == 1


def _hold_us(yard: Yard, job_id: str) -> int:
    with yard.store._lock:
        return yard.store._state.jobs[job_id].hold_until_us


async def test_a_worker_whose_event_loop_is_blocked_renews_all_the_same(yard: Yard) -> None:
    live: list[bool] = []

    async def block() -> None:
        yard.store_clock.ahead_us += 10 * LEASE_US
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s and not (live and live[-1]):
            live.extend(record.live for record in yard.do(yard.store.leases.workers()))
            time.sleep(0.05)

    yard.task(block)
    yard.submit("block")

    await yard.burst(lease_us=LEASE_US)

    assert live[0] is False
    assert live[-1] is True
