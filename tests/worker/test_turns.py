# SPDX-License-Identifier: MIT
"""Queues of one worker: equals in queue priority take turns, the more urgent go first always."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.runtime.worker.attempt import Stage
from packhorse.runtime.worker.slots import CLAIM_BATCH_MAX, Slots
from packhorse.stores.requests import QueueSettings
from tests.worker.support import PATIENCE_S, HandClock, Yard, until

#: More than one claim brings.
MANY = CLAIM_BATCH_MAX + 100
FEW = 10


@pytest.fixture
def yard() -> Yard:
    return Yard()


class Recorded:
    """A task that writes down the queue each of its jobs came from."""

    def __init__(self, yard: Yard) -> None:
        self.queues: list[str] = []
        self._yard = yard
        yard.task(self.run, name="run")

    async def run(self, queue: str) -> None:
        self.queues.append(queue)

    def submit(self, queue: str, count: int) -> None:
        for _ in range(count):
            self._yard.submit("run", {"queue": queue}, queue=queue)

    def last(self, queue: str) -> int:
        """How many had run when the last one of a queue did."""
        return len(self.queues) - self.queues[::-1].index(queue)


async def test_a_queue_is_served_while_another_one_before_it_is_never_empty(yard: Yard) -> None:
    recorded = Recorded(yard)
    recorded.submit("a", MANY)
    recorded.submit("b", FEW)

    await yard.burst(queues=("a", "b"), concurrency=2)

    assert len(recorded.queues) == MANY + FEW
    assert recorded.last("b") < MANY


async def test_limited_queues_take_turns_claim_by_claim(yard: Yard) -> None:
    for name in ("a", "b"):
        yard.declare(QueueSettings(name, concurrency=1))
    recorded = Recorded(yard)
    recorded.submit("a", FEW)
    recorded.submit("b", FEW)

    await yard.burst(queues=("a", "b"), concurrency=1)

    assert recorded.queues == ["a", "b"] * FEW


async def test_a_more_urgent_queue_is_served_first_whichever_had_its_turn(yard: Yard) -> None:
    yard.declare(QueueSettings("urgent", priority=-1))
    recorded = Recorded(yard)
    recorded.submit("urgent", MANY)
    recorded.submit("a", FEW)

    await yard.burst(queues=("a", "urgent"), concurrency=2)

    assert recorded.queues == ["urgent"] * MANY + ["a"] * FEW


async def test_a_claim_for_processes_has_its_turn_though_ordinary_ones_never_end(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    async with yard.running() as worker:
        await until(lambda: worker._runtime and worker._runtime.heartbeat.lease.trusted)
        runtime = worker._runtime
        assert runtime is not None
        fetcher, gate, claims = runtime.fetcher, runtime.heartbeat.claim_lock, list[None]()

        async def claim_at_once() -> float:
            with gate:
                await asyncio.sleep(0)
            claims.append(None)
            return 0.0

        monkeypatch.setattr(fetcher, "run_once", claim_at_once)
        fetcher.nudge()
        await until(lambda: len(claims) > FEW)

        apart = asyncio.wait_for(fetcher.claim_only(("apart",), 1), PATIENCE_S)

        assert await apart is not None


async def test_less_urgent_jobs_in_processes_take_nothing_of_slots_that_are_kept() -> None:
    slots = Slots(asyncio.get_running_loop(), HandClock(), 4)
    for process in (True, False):
        plan, job = SimpleNamespace(process=process), SimpleNamespace(priority=3)
        slots.held.add(cast("Any", _Held(plan, job)))

    assert slots.held_below(1) == 1


class _Held:
    """As much of an attempt as slots ask for."""

    stage = Stage.RUNNING

    def __init__(self, handler: object, job: object) -> None:
        self.handler, self.job = handler, job
