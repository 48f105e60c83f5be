# SPDX-License-Identifier: MIT
"""The store of `memory://`: its contracts, the runners of their plans, and its wake-ups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

from packhorse.core.clock import Clock, SystemClock
from packhorse.core.generators import drive
from packhorse.stores.listener import TopicListener
from packhorse.stores.memory.attachments import MemoryAttachments
from packhorse.stores.memory.inspection import MemoryInspection
from packhorse.stores.memory.jobs import MemoryJobs
from packhorse.stores.memory.queues import MemoryQueues
from packhorse.stores.memory.records import MemoryJournal, MemoryRecords
from packhorse.stores.memory.state import Access, MemoryState
from packhorse.stores.memory.transfer import MemoryTransfer
from packhorse.stores.memory.upkeep import MemoryLeases, MemoryUpkeep
from packhorse.stores.plan import Listener, Plan, Wake


class MemoryWakeups:
    """Wakes listeners, each in its own event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, set[TopicListener]] = {}

    def listen(self, topics: frozenset[str]) -> Listener:
        listener = TopicListener(topics, self._leave)
        with self._lock:
            for topic in topics:
                self._listeners.setdefault(topic, set()).add(listener)
        return listener

    def send(self, topics: Iterable[str]) -> None:
        """Wake the listeners of these topics, from any thread."""
        for topic in topics:
            with self._lock:
                listeners = tuple(self._listeners.get(topic, ()))
            for listener in listeners:
                if listener.loop.is_closed():
                    self._leave(listener)
                else:
                    listener.hear_soon((topic,))

    def close(self) -> None:
        """End every wait."""
        with self._lock:
            listeners = set().union(*self._listeners.values())
        for listener in listeners:
            with suppress(RuntimeError):  # its loop is closed
                listener.loop.call_soon_threadsafe(listener.close)

    def _leave(self, listener: TopicListener) -> None:
        with self._lock:
            for topic in listener.topics:
                others = self._listeners.get(topic, set())
                others.discard(listener)
                if not others:
                    self._listeners.pop(topic, None)


T = TypeVar("T")

#: Called with a verb before and after its effect; what it raises, the verb's caller gets. Raised
#: afterwards, it is a write that happened though its answer was lost.
Faults = Callable[[str, Literal["before", "after"]], None]

_SCHEMA_VERSION: Final = 1


class MemoryStore:
    """Jobs in the memory of this process: gone when it ends."""

    def __init__(self, *, clock: Clock | None = None, faults: Faults | None = None) -> None:
        self.label = "memory://"
        self.works_apart = False
        self.jobs = MemoryJobs()
        self.leases = MemoryLeases()
        self.queues = MemoryQueues()
        self.upkeep = MemoryUpkeep()
        self.inspection = MemoryInspection()
        self.transfer = MemoryTransfer()
        self.records = MemoryRecords()
        self.attachments = MemoryAttachments()
        self.journal = MemoryJournal()
        self.wakeups = MemoryWakeups()
        self.intake = None
        self.transactions = None  # users have no rows here
        self._clock = clock or SystemClock()
        self._faults = faults
        self._lock = threading.Lock()
        self._state = MemoryState()

    def run(self, plan: Plan[T]) -> T:
        self._fault(plan, "before")
        wakes: list[str] = []
        with self._lock:
            answer = self._execute(plan, wakes)
        self.wakeups.send(wakes)
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
        self.wakeups.close()

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
