# SPDX-License-Identifier: MIT
"""One worker at a time does a service's work, and another takes over when it is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.events import EventBus
from packhorse.runtime.services.service import Duty, ServiceContext
from packhorse.stores.memory.store import MemoryStore
from packhorse.stores.plan import Plan
from packhorse.testing.virtual_clock import VirtualClock

HOLD_S = 3


class TogetherStore(MemoryStore):
    """Lets all who ask at once ask before one of them gets its answer."""

    async def arun(self, plan: Plan[Any]) -> Any:
        await asyncio.sleep(0)
        answer = self.run(plan)
        await asyncio.sleep(0)
        return answer


class CountingStore(MemoryStore):
    """Counts how often it is asked."""

    asked = 0

    async def arun(self, plan: Plan[Any]) -> Any:
        self.asked += 1
        return self.run(plan)


def duties(store: MemoryStore, clock: VirtualClock) -> tuple[Duty, Duty]:
    return (
        Duty(context(store, clock, "anna"), "fold", HOLD_S * SECOND_US),
        Duty(context(store, clock, "bert"), "fold", HOLD_S * SECOND_US),
    )


def context(store: MemoryStore, clock: VirtualClock, worker: str) -> ServiceContext:
    return ServiceContext(store, clock, SystemChance(), EventBus(), worker)


async def test_of_two_that_look_at_once_one_is_on_duty() -> None:
    clock = VirtualClock()
    anna, bert = duties(TogetherStore(clock=clock), clock)

    assert sorted(await asyncio.gather(anna.is_mine(), bert.is_mine())) == [False, True]


async def test_who_says_nothing_for_so_long_is_off_duty_and_learns_it() -> None:
    clock = VirtualClock()
    anna, bert = duties(MemoryStore(clock=clock), clock)
    assert (await anna.is_mine(), await bert.is_mine()) == (True, False)

    clock.advance(HOLD_S + 0.1)

    assert (await bert.is_mine(), await anna.is_mine()) == (True, False)


async def test_who_says_it_again_in_time_stays_on_duty() -> None:
    clock = VirtualClock()
    anna, bert = duties(MemoryStore(clock=clock), clock)

    for _ in range(5):
        assert (await anna.is_mine(), await bert.is_mine()) == (True, False)
        clock.advance(HOLD_S * 0.6)


async def test_who_is_on_duty_asks_again_after_half_of_the_time() -> None:
    clock = VirtualClock()
    store = CountingStore(clock=clock)
    anna, _ = duties(store, clock)
    assert await anna.is_mine()
    asked = store.asked

    clock.advance(HOLD_S * 0.49)
    assert await anna.is_mine()
    assert store.asked == asked

    clock.advance(HOLD_S * 0.01)
    assert await anna.is_mine()
    assert store.asked == 2 * asked
