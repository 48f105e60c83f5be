# SPDX-License-Identifier: MIT
"""Rules that are proven as pure functions are really asked by a running worker."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter

import pytest

from packhorse.core.interpreter import SWITCH_US, YOUNG_OBJECTS, switch_us
from packhorse.core.job import JobStatus
from packhorse.core.policies.retry import RetryPolicy
from packhorse.events import JobRetried, JobStarted
from packhorse.runtime.worker.store_health import Backoff
from packhorse.stores.memory.store import Faults
from tests.worker.support import PATIENCE_S, Yard, turns, until

#: Turns of the event loop in which a worker that does not wait would have tried many times more.


class Outage:
    """Lets one verb of a store fail while it lasts, and counts the calls."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.lasts = True
        self.calls: Counter[str] = Counter()

    def __call__(self, verb: str, moment: str) -> None:
        if moment == "before":
            self.calls[verb] += 1
            if self.lasts and verb == self.verb:
                raise ConnectionError(f"no {verb} today")


@pytest.fixture
def endless_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure a worker waits longer than any test; only a shutdown ends that."""
    monkeypatch.setattr(Backoff, "next_s", lambda _backoff: 60 * PATIENCE_S)


def failing(faults: Faults | None = None, **options: object) -> Yard:
    yard = Yard(faults)

    async def fail() -> None:
        raise ValueError("always")

    yard.task(fail, **options)
    return yard


@pytest.mark.req("S0-12", "S4-15", "X-4")
async def test_jobs_that_fail_together_are_not_retried_together() -> None:
    policy = RetryPolicy(max_retries=1, initial_delay="100s", max_delay="100s", jitter=True)
    yard = failing(retry=policy)
    yard.record()
    for _ in range(10):
        yard.submit("fail")

    async with yard.running():
        await until(lambda: len(yard.told(JobRetried)) == 10)

    delays = [event.delay_ms for event in yard.told(JobRetried)]
    assert len(set(delays)) == 10
    assert all(0 < delay <= 100_000 for delay in delays)


@pytest.mark.req("S4-2")
@pytest.mark.usefixtures("endless_backoff")
async def test_a_worker_waits_between_claims_that_fail() -> None:
    outage = Outage("claim")
    yard = failing(outage)

    async with yard.running():
        await until(lambda: outage.calls["claim"])
        await turns()
        tried = outage.calls["claim"]
        outage.lasts = False

    assert tried == 1


@pytest.mark.req("S0-23")
@pytest.mark.usefixtures("endless_backoff")
async def test_a_worker_waits_between_settlements_that_fail_and_stores_them_when_it_stops() -> None:
    outage = Outage("settle")
    yard = failing(outage, retry=RetryPolicy(max_retries=0))
    job_id = yard.submit("fail")

    async with yard.running():
        await until(lambda: outage.calls["settle"])
        await turns()
        tried = outage.calls["settle"]
        outage.lasts = False

    assert tried == 1
    assert yard.status(job_id) is JobStatus.DEAD


@pytest.mark.req("S4-4")
@pytest.mark.usefixtures("endless_backoff")
async def test_a_shutdown_ends_the_wait_after_a_failing_claim() -> None:
    outage = Outage("claim")
    yard = failing(outage)
    worker = yard.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: outage.calls["claim"])
    await turns()

    worker.stop("the test is over")

    # Less than a worker grants to what does not hear of a shutdown.
    await asyncio.wait_for(running, PATIENCE_S / 4)
    assert outage.calls["claim"] == 1


@pytest.mark.req("S4-2")
@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_the_next_outage_begins_with_a_short_wait_again(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def next_s(backoff: Backoff) -> float:
        waits.append(backoff._next_s)
        backoff._next_s *= 2
        return 0.001

    monkeypatch.setattr(Backoff, "next_s", next_s)
    outage = Outage(verb)
    yard = failing(outage, retry=RetryPolicy(max_retries=0))
    first = yard.submit("fail")

    async with yard.running():
        await until(lambda: len(waits) >= 3)
        outage.lasts = False
        await until(lambda: yard.status(first) is JobStatus.DEAD)
        grown, outage.lasts = waits.copy(), True
        waits.clear()
        second = yard.submit("fail")
        await until(lambda: waits)
        outage.lasts = False
        await until(lambda: yard.status(second) is JobStatus.DEAD)

    assert grown[2] > grown[0]
    assert waits[0] == grown[0]


@pytest.mark.req("S4-2")
@pytest.mark.parametrize("verb", ["claim", "settle"])
@pytest.mark.usefixtures("endless_backoff")
async def test_a_call_that_works_again_ends_the_waits_after_others_that_failed(verb: str) -> None:
    outage = Outage(verb)
    yard = failing(outage, retry=RetryPolicy(max_retries=0))
    job_id = yard.submit("fail")

    async with yard.running() as worker:
        await until(lambda: outage.calls[verb])
        await turns()
        assert worker._runtime is not None
        health = worker._runtime.health
        health.failed("renew", ConnectionError("no renewal either"))
        outage.lasts = False
        health.worked("renew")
        await until(lambda: yard.status(job_id) is JobStatus.DEAD)

    assert outage.calls[verb] >= 2


@pytest.mark.req("S0-32")
async def test_each_attempt_has_a_span_of_its_own() -> None:
    yard = failing(retry=RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False))
    yard.record()
    jobs = {yard.submit("fail") for _ in range(3)}

    await yard.burst()

    started = yard.told(JobStarted)
    assert {event.job_id for event in started} == jobs
    assert len(started) == 6
    assert len({event.span_id for event in started}) == 6


@pytest.mark.parametrize(
    ("set_before", "meanwhile"), [(700, YOUNG_OBJECTS), (5_000, 5_000), (0, 0)]
)
async def test_garbage_is_looked_for_less_often_unless_the_program_says_how_often(
    set_before: int, meanwhile: int
) -> None:
    seen: list[tuple[int, int, int]] = []
    yard = Yard()

    async def look() -> None:
        seen.append(gc.get_threshold())

    yard.task(look)
    before = gc.get_threshold()
    gc.set_threshold(set_before, 10, 10)
    try:
        yard.submit("look")
        await yard.burst()
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*before)

    assert seen == [(meanwhile, 10, 10)]
    assert after == (set_before, 10, 10)


@pytest.mark.parametrize(("set_before", "meanwhile"), [(5_000, SWITCH_US), (1_000, 1_000)])
async def test_threads_get_the_interpreter_sooner_unless_the_program_says_how_soon(
    set_before: int, meanwhile: int
) -> None:
    seen: list[int] = []
    yard = Yard()

    async def look() -> None:
        seen.append(switch_us())

    yard.task(look)
    before = sys.getswitchinterval()
    sys.setswitchinterval(set_before / 1e6)
    try:
        yard.submit("look")
        await yard.burst()
        after = switch_us()
    finally:
        sys.setswitchinterval(before)

    assert seen == [meanwhile]
    assert after == set_before
