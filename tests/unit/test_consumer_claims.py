# SPDX-License-Identifier: MIT
"""What a consumer claims: as much as is waited for, from all its queues, and nothing is kept."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from packhorse import JobStatus
from packhorse.core.clock import SECOND_US
from packhorse.stores.memory import MemoryStore
from packhorse.stores.memory.store import Faults
from packhorse.stores.plan import Plan
from tests.unit.consumer_support import Depot, fetched
from tests.worker.support import PATIENCE_S, heard, until
from tests.worker.test_store_trouble import Weather

T = TypeVar("T")


class SlowStore(MemoryStore):
    """A store whose claims take as long as a test says."""

    def __init__(self, faults: Faults | None = None) -> None:
        super().__init__(faults=faults)
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def arun(self, plan: Plan[T]) -> T:
        if plan.verb == "claim":
            self.asked.set()
            await self.may_answer.wait()
        return await super().arun(plan)


async def test_what_is_claimed_for_a_fetch_that_is_gone_goes_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.slots.LOOK_AHEAD_HELD_S", 3600.0)
    store = SlowStore()
    depot = Depot(store)
    depot.submit("one", "two")
    async with depot.consumer() as consumer:
        stays, leaves = (asyncio.create_task(fetched(consumer)) for _ in range(2))
        await heard(store.asked)
        leaves.cancel()
        store.may_answer.set()

        assert (await stays).id == "one"
        await until(lambda: depot.status("two") is JobStatus.QUEUED)

        assert depot.record("two").counters.attempts == 0


async def test_a_job_that_is_over_before_its_fetch_gets_it_does_not_keep_the_next_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.slots.LOOK_AHEAD_HELD_S", 3600.0)
    weather = Weather("settle")
    store = SlowStore(weather)
    depot = Depot(store)
    depot.submit("over", deadline_us=depot.clock.now_us() + 2 * SECOND_US)
    depot.submit("next")
    weather.left = 10**9  # so that no answer to the first one's end wakes the consumer
    async with depot.consumer(lease=3600) as consumer:
        fetch = asyncio.create_task(fetched(consumer))
        await heard(store.asked)
        assert consumer._runtime is not None
        consumer._runtime.fetcher._poll_s = 3600.0
        depot.clock.ahead_s += 3
        store.may_answer.set()

        assert (await fetch).id == "next"
        weather.left = 0


async def test_a_consumer_that_is_closed_waits_for_the_claim_that_is_under_way() -> None:
    store = SlowStore()
    depot = Depot(store)
    depot.submit("claimed")
    async with depot.consumer() as consumer:
        waiting = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S))
        await heard(store.asked)

        closing = asyncio.create_task(consumer.close())
        assert await waiting is None
        await asyncio.wait({closing}, timeout=0.05)
        assert not closing.done()
        store.may_answer.set()
        await closing

    record = depot.record("claimed")
    assert (record.status, record.counters.attempts) == (JobStatus.QUEUED, 0)


async def test_a_consumer_asks_all_its_queues_each_time() -> None:
    depot = Depot("memory://")
    depot.submit("first", queue="bounded", rate_key="key")
    async with depot.consumer(queues=["mail", "bounded"]) as consumer:
        await consumer.mark_complete(await fetched(consumer))
        depot.submit("urgent", priority=1)
        depot.submit("next", priority=2, queue="bounded", rate_key="key")
        depot.submit("late", priority=3)

        came = [(await fetched(consumer)).id for _ in range(3)]

    assert came == ["urgent", "next", "late"]


async def test_a_fetch_that_finds_nothing_ends_as_soon_as_the_store_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("packhorse.runtime.consumer.runtime._FIRST_LOOK_S", 3600.0)
    async with Depot("memory://").consumer() as consumer:
        assert await asyncio.wait_for(consumer.fetch(timeout=0), PATIENCE_S) is None


async def test_an_end_whose_teller_has_given_up_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)
    weather = Weather("settle")
    depot = Depot(MemoryStore(faults=weather))
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        weather.left = 10**9
        telling = asyncio.create_task(consumer.mark_complete(job, result=1))
        await until(lambda: weather.calls["settle"])
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling

        weather.left = 0
        assert await consumer.mark_complete(job, result=2)

    assert depot.record("job").result == b"2"
