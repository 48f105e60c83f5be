# SPDX-License-Identifier: MIT
"""A ready job that is overtaken for long is told of, once; one that waits rightly is not."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import Job, JobStatus, Priority
from packhorse.events import QueueStarving
from packhorse.runtime.services.service import REST_PER_COST, ServiceContext
from packhorse.runtime.services.upkeep import Served, Starvation
from packhorse.stores.plan import Plan
from tests.worker.support import Even, HandClock, Yard, until


class Shift:
    """A yard whose one worker takes a job now and then, and looks for starvation."""

    def __init__(self, clock: SystemClock | None = None) -> None:
        self.yard = Yard()
        self.yard.record()
        self.served: dict[str, Served] = {}
        self.starvation = Starvation(
            ServiceContext(
                self.yard.store, clock or SystemClock(), Even(), self.yard.bus, worker="me"
            ),
            served=self.served,
        )

    def passes(self, seconds: int) -> None:
        self.yard.store_clock.ahead_us += seconds * SECOND_US

    def serve_one(self) -> Job:
        job = self.yard.claim_by_hand("me", "work", lease_us=3_600 * SECOND_US)
        served = Served(job.ready_us, job.priority, self.yard.store_clock.now_us())
        self.served[job.queue] = min(served, self.served.get(job.queue, served))
        return job

    async def told(self) -> list[QueueStarving]:
        self.yard.events.clear()
        await self.starvation.run_once()
        return self.yard.told(QueueStarving)


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.0, 1), (2.0, 20)])
async def test_a_look_that_takes_long_is_made_rarer(
    took_s: float, rests_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    shift = Shift(clock)
    shift.yard.submit("work")
    shift.serve_one()
    run = shift.yard.store.run

    def slowly(plan: Plan[Any]) -> Any:
        clock.seconds += took_s
        return run(plan)

    monkeypatch.setattr(shift.yard.store, "run", slowly)

    rest_s = await shift.starvation.run_once()

    assert rest_s == max(shift.starvation.interval_s, took_s * REST_PER_COST)
    assert rest_s > rests_s


@pytest.fixture
def shift() -> Shift:
    return Shift()


@pytest.mark.req("S2-18")
async def test_a_low_job_that_later_high_ones_overtake_is_told_of_once(shift: Shift) -> None:
    shift.yard.submit("work", priority=Priority.LOW)
    shift.passes(90)
    for _ in range(2):
        shift.yard.submit("work", priority=Priority.HIGH)

    shift.serve_one()
    (event,) = await shift.told()
    assert (event.queue, event.priority) == ("default", "high")
    assert event.waited_s == pytest.approx(90, abs=5)

    shift.serve_one()
    assert await shift.told() == []


async def test_it_is_told_of_again_after_it_was_over(shift: Shift) -> None:
    for _ in range(2):
        shift.yard.submit("work", priority=Priority.LOW)
    for ended in (False, True):
        shift.passes(90)
        shift.yard.submit("work", priority=Priority.HIGH)
        shift.serve_one()
        assert len(await shift.told()) == 1
        if not ended:
            shift.serve_one()  # a low one
            assert await shift.told() == []


async def test_a_long_line_that_moves_is_not_starving(shift: Shift) -> None:
    for _ in range(5):
        shift.yard.submit("work")
    shift.passes(600)
    shift.serve_one()

    assert await shift.told() == []


async def test_who_is_overtaken_now_and_then_is_not_starving_while_others_of_his_time_go(
    shift: Shift,
) -> None:
    for _ in range(5):
        shift.yard.submit("work")
    shift.passes(600)
    shift.serve_one()
    shift.yard.submit("work", priority=Priority.HIGH)
    shift.serve_one()

    assert await shift.told() == []


async def test_where_some_are_held_back_by_limits_of_their_own_no_queue_is_accused(
    shift: Shift,
) -> None:
    shift.yard.submit("work", priority=Priority.LOW)
    shift.passes(90)
    shift.yard.submit("work", priority=Priority.HIGH)
    shift.starvation.leave_out(frozenset({"default"}))
    shift.serve_one()

    assert await shift.told() == []


async def test_a_worker_that_served_no_queue_does_not_even_look(shift: Shift) -> None:
    shift.yard.submit("work", priority=Priority.LOW)
    shift.passes(90)

    assert await shift.told() == []
    assert await shift.starvation.run_once() == pytest.approx(15.0)


async def test_a_worker_notes_of_its_claims_the_lowest_job_that_was_ready_for_longest() -> None:
    async def work() -> None: ...

    yard = Yard()
    yard.task(work)
    began_us = yard.store_clock.now_us()

    async def done(priority: Priority) -> None:
        job_id = yard.submit("work", priority=priority)
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)

    async with yard.running() as worker:
        await done(Priority.LOW)
        between_us = yard.store_clock.now_us()
        await done(Priority.HIGH)
        assert worker._runtime is not None
        served = worker._runtime.fetcher.served["default"]

    assert served.priority == Priority.LOW
    assert began_us <= served.ready_us <= between_us <= served.now_us
