# SPDX-License-Identifier: MIT
"""Sets jobs aside whose task no live worker knows, and gives them up after a time."""

from __future__ import annotations

from typing import Final

from packhorse.clock import SECOND_US, Chance
from packhorse.events import EventBus, TasksParked
from packhorse.services.service import spread
from packhorse.stores.protocol import Store

__all__ = ["PARKED_US_MAX", "Parker"]

#: A deploy that brings the task back within this loses nothing.
PARKED_US_MAX: Final = 3600 * SECOND_US
_BATCH: Final = 500


class Parker:
    """Unknown tasks are surfaced and kept, instead of looping hot or vanishing."""

    name = "park"
    interval_s = 5.0

    def __init__(self, store: Store, chance: Chance, bus: EventBus, worker: str) -> None:
        self._store = store
        self._chance = chance
        self._bus = bus
        self._worker = worker

    async def run_once(self) -> float:
        """Park one batch, and name the tasks that are new among them."""
        plan = self._store.upkeep.park(after_us=PARKED_US_MAX, limit=_BATCH)
        tasks = await self._store.arun(plan)
        if tasks:
            self._bus.emit(TasksParked(worker_id=self._worker, tasks=tuple(sorted(tasks))))
        return spread(self.interval_s, self._chance)
