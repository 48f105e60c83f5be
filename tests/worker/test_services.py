# SPDX-License-Identifier: MIT
"""The loops beside the worker, one turn at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobOptions, JobStatus, NewJob
from packhorse.core.policies.retention import DAY_US
from packhorse.errors import StoreUnavailable
from packhorse.events import JobDead, JobRescued, TasksParked
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.runtime.services.service import Driver, Service, spread
from packhorse.runtime.services.upkeep import (
    PARKED_US_MAX,
    DeathReporter,
    Expirer,
    Parker,
    Promoter,
    Pruner,
)
from packhorse.runtime.worker.shutdown import Shutdown
from packhorse.stores.requests import Renewal
from tests.worker.support import Even, HandClock, Yard, until


class Rescue:
    """A rescuer whose own clock stands still until it is moved."""

    def __init__(self, yard: Yard) -> None:
        self.clock = HandClock()
        self.counted: list[tuple[str, str, str]] = []
        self.rescuer = Rescuer(
            yard.services("rescuer", clock=self.clock),
            count=lambda *each: self.counted.append(each),
        )

    async def look(self, *, after_s: float = 0.0) -> float:
        self.clock.seconds += after_s
        return await self.rescuer.run_once()


def deaths(yard: Yard) -> DeathReporter:
    return DeathReporter(yard.services())


@pytest.fixture
def yard() -> Yard:
    return Yard()


async def test_one_look_at_an_expired_lease_is_never_enough(yard: Yard) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("dead", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)

    wait_s = await rescue.look()
    assert yard.status(job_id) is JobStatus.PROCESSING
    assert wait_s <= 1.0

    await rescue.look(after_s=2.9)
    assert yard.status(job_id) is JobStatus.PROCESSING

    await rescue.look(after_s=0.1)
    assert yard.status(job_id) is not JobStatus.PROCESSING


@pytest.mark.req("S3-26")
async def test_a_confirmed_loss_is_rescued_with_its_crash_counted_and_told(yard: Yard) -> None:
    yard.record()
    job_id = yard.submit("work")
    yard.claim_by_hand("dead", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)
    await rescue.look()
    await rescue.look(after_s=3)

    assert yard.job(job_id).counters.crashes == 1
    (event,) = yard.told(JobRescued)
    assert (event.job_id, event.lost_worker, event.dead) == (job_id, "dead", False)
    (attempt,) = yard.history(job_id)
    assert attempt.error is not None
    assert attempt.error.code == "WORKER_LOST"
    assert attempt.will_retry
    assert rescue.counted == [("default", "work", "retried")]


@pytest.mark.parametrize(
    ("moment", "others", "told"), [("after", False, 1), ("before", False, 1), ("before", True, 0)]
)
async def test_a_rescue_that_the_store_does_not_answer_is_told_once_by_who_wrote_it(
    moment: str, *, others: bool, told: int
) -> None:
    fails_at: list[str] = []

    def faults(verb: str, now: str) -> None:
        if verb == "settle" and now in fails_at:
            fails_at.clear()
            rescue.clock.seconds += 1  # for so long the call is under way
            raise StoreUnavailable("an outage", maybe_stored=True)

    yard = Yard(faults)
    yard.record()
    job_id = yard.submit("work")
    yard.claim_by_hand("dead", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue, other = Rescue(yard), Rescue(yard)
    for each in (rescue, other):
        await each.look()
    fails_at.append(moment)
    with pytest.raises(StoreUnavailable):
        await rescue.look(after_s=3)

    yard.store_clock.ahead_us += 4 * SECOND_US
    if others:
        await other.look(after_s=7)
        yard.events.clear()
    await rescue.look(after_s=4)
    await rescue.look(after_s=1)

    assert [each.job_id for each in yard.told(JobRescued)] == [job_id] * told
    assert rescue.counted == [("default", "work", "retried")] * told
    assert yard.job(job_id).counters.crashes == 1


async def test_a_job_given_up_because_its_worker_was_lost_is_told_as_dead(yard: Yard) -> None:
    yard.record()
    job_id = yard.submit("work", options=JobOptions(max_crashes=0))
    yard.claim_by_hand("lost", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)
    await rescue.look()
    await rescue.look(after_s=3)

    (rescued,), (dead,) = yard.told(JobRescued), yard.told(JobDead)
    assert (rescued.dead, rescued.crashes, rescued.lost_worker) == (True, 1, "lost")
    assert (rescued.error_code, rescued.error_type) == ("WORKER_LOST", "WorkerLost")
    assert "worker lost went away" in rescued.error_message
    assert (dead.job_id, dead.task, dead.queue, dead.attempt) == (job_id, "work", "default", 1)
    assert (dead.reason, dead.status) == ("worker_crashed", "dead")
    assert (dead.worker, dead.error_code) == ("rescuer", "WORKER_LOST")
    assert "worker lost went away" in dead.error_message


async def test_a_lost_job_that_could_only_run_after_its_deadline_is_told_as_dead(
    yard: Yard,
) -> None:
    yard.record()
    deadline_us = yard.store_clock.now_us() + 32 * SECOND_US
    job_id = yard.submit("work", deadline_us=deadline_us)
    yard.claim_by_hand("lost", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)
    await rescue.look()
    await rescue.look(after_s=3)

    assert yard.job(job_id).dead_reason is DeadReason.EXPIRED
    (rescued,), (dead,) = yard.told(JobRescued), yard.told(JobDead)
    assert rescued.dead
    assert rescue.counted == [("default", "work", "dead")]
    assert (dead.job_id, dead.reason) == (job_id, "expired")


async def test_a_sighting_soon_to_be_confirmed_is_looked_at_just_then(yard: Yard) -> None:
    yard.submit("work")
    yard.claim_by_hand("dead", "work", lease_us=SECOND_US)
    yard.store_clock.ahead_us += 2 * SECOND_US

    assert await Rescue(yard).look() == pytest.approx(1 / 3, abs=0.001)


async def test_a_failed_store_call_between_two_looks_starts_the_suspicion_again() -> None:
    failing = False

    def faults(verb: str, moment: str) -> None:
        if failing and verb == "expired":
            raise StoreUnavailable("an outage")

    yard = Yard(faults)
    job_id = yard.submit("work")
    yard.claim_by_hand("dead", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)
    await rescue.look()

    failing = True
    with pytest.raises(StoreUnavailable):
        await rescue.look(after_s=3)
    failing = False

    await rescue.look(after_s=3)
    assert yard.status(job_id) is JobStatus.PROCESSING
    await rescue.look(after_s=3)
    assert yard.status(job_id) is not JobStatus.PROCESSING


async def test_a_lease_renewed_in_between_is_not_gone(yard: Yard) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("slow", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)
    await rescue.look()

    yard.do(yard.store.leases.renew(Renewal(worker="slow", lease_us=30 * SECOND_US)))
    await rescue.look(after_s=3)

    assert yard.status(job_id) is JobStatus.PROCESSING


async def test_a_worker_does_not_rescue_from_itself(yard: Yard) -> None:
    job_id = yard.submit("work")
    yard.claim_by_hand("rescuer", "work")
    yard.store_clock.ahead_us += 31 * SECOND_US
    rescue = Rescue(yard)

    await rescue.look()
    await rescue.look(after_s=3)

    assert yard.status(job_id) is JobStatus.PROCESSING


@pytest.mark.req("S4-26")
async def test_a_job_that_takes_its_worker_down_each_time_is_given_up(yard: Yard) -> None:
    yard.record()
    job_id = yard.submit("killer")
    for crash in range(1, 6):  # twice among others, then three times alone
        yard.claim_by_hand(f"victim-{crash}", "killer", quarantine=crash > 2)
        yard.store_clock.ahead_us += 100 * SECOND_US
        rescue = Rescue(yard)
        await rescue.look()
        await rescue.look(after_s=3)
        assert yard.job(job_id).counters.crashes == crash

    job = yard.job(job_id)
    assert (job.status, job.dead_reason) == (JobStatus.DEAD, DeadReason.WORKER_CRASHED)
    assert [event.crashes for event in yard.told(JobRescued)] == [1, 2, 3, 4, 5]


async def test_a_suspect_that_was_not_alone_any_more_is_not_to_blame(yard: Yard) -> None:
    suspect = yard.submit("killer")
    for crash in range(1, 6):
        beside = yard.submit("work")
        yard.claim_by_hand(f"victim-{crash}", "killer", quarantine=crash > 2)
        yard.claim_by_hand(f"victim-{crash}", "work")  # as once a suspect has run for a while
        yard.store_clock.ahead_us += 100 * SECOND_US
        rescue = Rescue(yard)
        await rescue.look()
        await rescue.look(after_s=3)
        yard.do(yard.store.jobs.cancel(beside))

    counters = yard.job(suspect).counters
    assert (counters.crashes, counters.lone_crashes) == (5, 0)


async def test_due_jobs_become_ready_also_without_workers_of_their_queue(yard: Yard) -> None:
    job_id = yard.submit("work", queue="unserved", delay_us=SECOND_US)
    yard.store_clock.ahead_us += 2 * SECOND_US

    await Promoter(yard.services()).run_once()

    assert yard.status(job_id) is JobStatus.QUEUED


async def test_jobs_past_their_deadline_are_given_up(yard: Yard) -> None:
    job_id = yard.submit("work", deadline_us=yard.store_clock.now_us() + SECOND_US)
    yard.store_clock.ahead_us += 2 * SECOND_US

    await Expirer(yard.services(), deaths(yard)).run_once()

    assert yard.job(job_id).dead_reason is DeadReason.EXPIRED


async def test_what_is_over_and_past_its_lifetime_is_removed(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    job_id = yard.submit("noop")
    await yard.burst()
    yard.store_clock.ahead_us += 2 * DAY_US

    await Pruner(yard.services()).run_once()

    assert yard.do(yard.store.inspection.job(job_id)) is None


@pytest.mark.req("S1-29")
async def test_jobs_no_worker_knows_are_set_aside_told_and_given_up_after_a_time(
    yard: Yard,
) -> None:
    async def known() -> None: ...

    yard.task(known)
    yard.record()
    job_id = yard.submit("unknown")
    async with yard.running():
        await until(lambda: yard.do(yard.store.leases.workers()))
        await Parker(yard.services(), deaths(yard)).run_once()
        (event,) = yard.told(TasksParked)
        assert event.tasks == ("unknown",)
        assert yard.job(job_id).parked_us is not None
        with yard.store._lock:
            yard.store._state.jobs[job_id].parked_us = yard.store_clock.now_us() - PARKED_US_MAX - 1
        await Parker(yard.services(), deaths(yard)).run_once()

    assert yard.job(job_id).dead_reason is DeadReason.UNKNOWN_TASK


@pytest.mark.parametrize(
    ("service", "batch"), [(Expirer, 500), (Promoter, 1000)], ids=["expirer", "promoter"]
)
async def test_a_full_batch_is_followed_by_the_next_at_once(
    yard: Yard, service: Any, batch: int
) -> None:
    now_us = yard.store_clock.now_us()
    jobs = [
        NewJob(id=f"j{n}", task="t", payload=b"{}", deadline_us=now_us + SECOND_US, delay_us=10_000)
        for n in range(batch + 1)
    ]
    yard.do(yard.store.jobs.submit(jobs))
    yard.store_clock.ahead_us += 20_000 if service is Promoter else 2 * SECOND_US
    given = (deaths(yard),) if service is Expirer else ()
    one = service(yard.services(), *given)

    assert await one.run_once() == 0.0
    assert await one.run_once() > 0.0


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.0, 5.0), (0.01, 5.0), (2.0, 400.0)])
async def test_parking_that_takes_long_is_made_rarer(took_s: float, rests_s: float) -> None:
    clock = HandClock()

    def faults(verb: str, moment: str) -> None:
        if (verb, moment) == ("park", "before"):
            clock.seconds += took_s

    yard = Yard(faults)

    rest_s = await Parker(yard.services(clock=clock), deaths(yard)).run_once()

    assert rest_s == pytest.approx(rests_s)


@pytest.mark.parametrize(("due", "rest_s"), [(499, 2.0), (500, 0.0)])
async def test_half_a_batch_of_due_jobs_says_that_more_are_coming(
    yard: Yard, due: int, rest_s: float
) -> None:
    jobs = [NewJob(id=f"j{n}", task="t", payload=b"{}", delay_us=10_000) for n in range(due)]
    yard.do(yard.store.jobs.submit(jobs))
    yard.store_clock.ahead_us += 20_000

    assert await Promoter(yard.services()).run_once() == rest_s


class Flaky(Service):
    """A service that fails every other time."""

    name = "flaky"
    interval_s = 0.001

    def __init__(self) -> None:
        self.runs = 0

    async def run_once(self) -> float:
        self.runs += 1
        if self.runs % 2:
            raise ValueError("odd")
        return 0.001


async def test_a_service_that_raises_is_told_of_and_run_again() -> None:
    shutdown, told, flaky = Shutdown(), [], Flaky()
    driver = Driver(
        sleep=shutdown.sleep,
        stopped=lambda: shutdown.begun,
        failed=lambda name, error: told.append((name, str(error))),
        worked=lambda name: told.append((name, "worked")),
        chance=Even(),
    )
    driving = asyncio.create_task(driver.run(flaky))

    await until(lambda: flaky.runs >= 4)
    shutdown.request("enough")
    await asyncio.wait_for(driving, 1)

    assert told[:4] == [("flaky", "odd"), ("flaky", "worked")] * 2


async def test_a_service_first_waits_for_a_part_of_its_interval() -> None:
    waits: list[float] = []

    class At:
        def roll(self) -> float:
            return 0.75

    class Every(Service):
        name, interval_s = "every", 8.0

        def __init__(self) -> None:
            """Need nothing."""

        async def run_once(self) -> float:
            return 5.0

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    driver = Driver(
        sleep=sleep,
        stopped=lambda: len(waits) == 3,
        failed=lambda _name, _error: None,
        worked=lambda _name: None,
        chance=At(),
    )

    await driver.run(Every())

    assert waits == [6.0, 5.0, 5.0]


def test_intervals_are_spread_by_a_quarter_either_way() -> None:
    class At:
        def __init__(self, value: float) -> None:
            self.value = value

        def roll(self) -> float:
            return self.value

    assert spread(4.0, At(0.0)) == 3.0
    assert spread(4.0, At(0.999)) == pytest.approx(5.0, abs=0.01)
