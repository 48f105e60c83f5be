# SPDX-License-Identifier: MIT
"""How often a worker looks into an outbox, and that one worker at a time does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from packhorse.core.policies.records import RecordId
from packhorse.events import EventBus
from packhorse.runtime.services.drainer import Drainer
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.intake import ADMITTED_MAX
from packhorse.stores.memory.store import MemoryStore
from packhorse.testing.virtual_clock import VirtualClock
from tests.worker.support import Even


class Box:
    """An outbox in which so many wait."""

    duty = RecordId("duty", "", "outbox:a table")

    def __init__(self) -> None:
        self.waits = 0
        self.created = self.looks = 0

    def create(self) -> None:
        self.created += 1

    async def adrain(self, _store: object) -> int:
        self.looks += 1
        delivered, self.waits = min(self.waits, ADMITTED_MAX), max(0, self.waits - ADMITTED_MAX)
        return delivered


class Depot:
    """Workers of a store, all with the same outbox."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock)
        self.box = Box()
        self.found = 0

    def worker(self, name: str) -> Callable[[], Any]:
        return Drainer(
            ServiceContext(self.store, self.clock, Even(), EventBus(), name),
            cast("Any", self.box),
            found=self._note,
        ).run_once

    def _note(self) -> None:
        self.found += 1


@pytest.fixture
def depot() -> Depot:
    return Depot()


async def test_an_outbox_is_looked_at_often_while_it_is_used(depot: Depot) -> None:
    look = depot.worker("anna")
    assert (await look(), depot.found) == (1.0, 0)

    depot.box.waits = ADMITTED_MAX + 1
    rests = [await look() for _ in range(3)]
    depot.clock.advance(59.0)
    rests.append(await look())
    depot.clock.advance(1.0)
    rests.append(await look())

    assert rests == [0.0, 0.1, 0.1, 0.1, 1.0]
    assert (depot.found, depot.box.created) == (2, 1)


async def test_one_worker_looks_and_another_takes_over_when_it_is_gone(depot: Depot) -> None:
    anna, bert = depot.worker("anna"), depot.worker("bert")
    await anna()
    assert (await bert(), depot.box.looks) == (1.0, 1)

    depot.clock.advance(9.0)
    await bert()
    await anna()
    assert depot.box.looks == 2
    depot.clock.advance(9.0)
    await bert()
    assert depot.box.looks == 2

    depot.clock.advance(1.5)
    await bert()

    assert depot.box.looks == 3
    assert depot.store.run(depot.store.records.record(Box.duty)) is not None
