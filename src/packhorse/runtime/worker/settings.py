# SPDX-License-Identifier: MIT
"""Watch the settings of queues and tasks in the store, so that an operator's changes apply here.

Read at the start, soon after a wake-up, since a change comes with one, and every few seconds.
Nothing depends on hearing of a change at once: the store itself keeps every limit, at the claim.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from packhorse.client.registry import Registry
from packhorse.core.clock import Clock
from packhorse.runtime.worker.store_health import StoreHealth
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, TaskSettings

#: Between two reads when nothing is heard.
_REFRESH_S: Final = 5.0
#: Between two reads however many wake-ups come; most of them are about jobs.
_AFTER_WAKE_S: Final = 1.0
#: A read that takes long, in a store with millions of jobs, is made so much rarer: half a percent.
_REST_PER_COST: Final = 200
#: The longest rest, so that an operator does not wait longer.
_REST_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The current settings."""

    queues: Mapping[str, QueueSettings] = field(default_factory=dict)  #: by name
    tasks: Mapping[str, TaskSettings] = field(default_factory=dict)  #: those that have limits

    def queue(self, name: str) -> QueueSettings:
        """Return the settings of a queue; the defaults if it is not declared."""
        return self.queues.get(name) or QueueSettings(name)

    def limits(self, queue: str, task: str) -> bool:
        """Whether a job of this task in this queue may be held back."""
        return task in self.tasks or self.queue(queue).limited

    def counts(self, queue: str, task: str) -> bool:
        """Whether it counts against a concurrency limit while it runs."""
        limits = self.tasks.get(task)
        own = None if limits is None else limits.concurrency
        return own is not None or self.queue(queue).concurrency is not None


class SettingsWatch:
    """Reads the settings again and again, and reports changes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        health: StoreHealth,
        *,
        declared: Settings,
        changed: Callable[[Settings], None],
    ) -> None:
        self.looked = asyncio.Event()  #: set once the store was asked, whatever it said
        self._store = store
        self._monotonic = clock.monotonic
        self._health = health
        self.settings = declared  #: what holds now
        self._changed = changed
        self.soon = asyncio.Event()  #: set when something changed in the store: it may be this

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.soon.clear()
            took_s = await self._look()
            self.looked.set()
            await asyncio.sleep(_rest_s(took_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.soon.wait(), _REFRESH_S - _AFTER_WAKE_S)

    async def _look(self) -> float:
        """Read once; return how long that took, 0 if it failed."""
        began = self._monotonic()
        try:
            # In a thread: it may take a while, and on the loop's runner it would hold up claims.
            settings = await asyncio.to_thread(self._read)
        except Exception as error:  # noqa: BLE001 - the last known settings stay in force
            self._health.failed("settings", error)
            return 0.0
        self._health.worked("settings")
        if settings != self.settings:
            self.settings = settings
            self._changed(settings)
        return self._monotonic() - began

    def _read(self) -> Settings:
        store = self._store
        states = store.run(store.queues.queues())
        tasks = store.run(store.queues.tasks())
        return Settings(
            {state.settings.name: state.settings for state in states},
            {task.name: task for task in tasks},
        )


def _rest_s(took_s: float) -> float:
    """How long to leave the store alone after a read that took so long."""
    return max(_AFTER_WAKE_S, min(took_s * _REST_PER_COST, _REST_S_MAX))


def declared_settings(queues: Mapping[str, QueueSettings], registry: Registry) -> Settings:
    """Return what this process declares; used until the store has been read."""
    limited = [task for task in registry.tasks if task.limited]
    tasks = {task.name: TaskSettings(task.name, task.concurrency, task.rate) for task in limited}
    return Settings(queues, tasks)


def limited_queues(settings: Settings, registry: Registry) -> frozenset[str]:
    """Queues that hold back ready jobs: by limits of their own, or of tasks whose home they are."""
    own = (name for name, queue in settings.queues.items() if queue.limited)
    return frozenset(own) | dividing_queues(settings, registry)


def dividing_queues(settings: Settings, registry: Registry) -> frozenset[str]:
    """Queues in which some jobs may be held back while others are let through."""
    own = (name for name, queue in settings.queues.items() if queue.tenant_rate is not None)
    tasks = (registry.get(name) for name in settings.tasks)
    return frozenset([*own, *(task.queue for task in tasks if task is not None)])
