# SPDX-License-Identifier: MIT
"""The store of `memory://`: its contracts, and the runners of their plans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from packhorse.clock import Clock, SystemClock
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.inspection import MemoryInspection
from packhorse.stores.memory.jobs import MemoryJobs
from packhorse.stores.memory.leases import MemoryLeases
from packhorse.stores.memory.queues import MemoryQueues
from packhorse.stores.memory.state import State
from packhorse.stores.memory.transfer import MemoryTransfer
from packhorse.stores.memory.upkeep import MemoryUpkeep
from packhorse.stores.memory.wakeups import MemoryWakeups
from packhorse.stores.plan import Plan, Wake, drive
from packhorse.stores.protocol import (
    InspectionStore,
    JobStore,
    LeaseStore,
    QueueStore,
    UpkeepStore,
    Wakeups,
)
from packhorse.stores.transfer import TransferStore

__all__ = ["Faults", "MemoryStore"]

T = TypeVar("T")

#: Called with a verb before and after its effect; what it raises, the verb's caller gets. Raised
#: afterwards, it is a write that happened though its answer was lost.
Faults = Callable[[str, Literal["before", "after"]], None]

_SCHEMA_VERSION: Final = 1


class MemoryStore:
    """Jobs in the memory of this process: gone when it ends."""

    def __init__(self, *, clock: Clock | None = None, faults: Faults | None = None) -> None:
        self.label = "memory://"
        self.jobs: JobStore = MemoryJobs()
        self.leases: LeaseStore = MemoryLeases()
        self.queues: QueueStore = MemoryQueues()
        self.upkeep: UpkeepStore = MemoryUpkeep()
        self.inspection: InspectionStore = MemoryInspection()
        self.transfer: TransferStore = MemoryTransfer()
        self._wakeups = MemoryWakeups()
        self.wakeups: Wakeups = self._wakeups
        self._clock = clock or SystemClock()
        self._faults = faults
        self._lock = threading.Lock()
        self._state = State()

    def run(self, plan: Plan[T]) -> T:
        self._fault(plan, "before")
        wakes: list[str] = []
        with self._lock:
            answer = self._execute(plan, wakes)
        self._wakeups.send(wakes)
        self._fault(plan, "after")
        return answer

    async def arun(self, plan: Plan[T]) -> T:
        # Others get their turn first; from here on the plan runs through, so that a cancelled
        # caller knows that nothing happened.
        await asyncio.sleep(0)
        return self.run(plan)

    def migrate(self) -> int:
        return _SCHEMA_VERSION

    def facts(self) -> dict[str, str]:
        with self._lock:
            jobs = len(self._state.jobs)
        return {
            "store": self.label,
            "jobs": str(jobs),
            "durability": "none: jobs are gone when this process ends",
        }

    def close(self) -> None:
        self._wakeups.close()

    def _execute(self, plan: Plan[T], wakes: list[str]) -> T:
        access = Access(self._state, self._clock.now_us())

        def answer(asked: Any) -> Access | None:
            if isinstance(asked, Wake):
                wakes.append(asked.topic)
                return None
            return access

        return drive(plan.steps(), answer)

    def _fault(self, plan: Plan[T], moment: Literal["before", "after"]) -> None:
        if self._faults is not None:
            self._faults(plan.verb, moment)
