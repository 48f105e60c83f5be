# SPDX-License-Identifier: MIT
"""Telling producers that a queue fills up, before it is full: once each time it crosses the line.

It costs a read after each submit to a queue with a soft depth, and only while somebody listens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from packhorse.clock import Clock
from packhorse.events import EventBus, QueueFilling
from packhorse.policies.depth import over_soft_depth
from packhorse.stores.requests import QueueSettings, QueueState

__all__ = ["SETTINGS_AGE_S_MAX", "FillingWatch"]

#: How old the settings may be that tell which queues have a soft depth; an operator may set one.
SETTINGS_AGE_S_MAX: Final = 5.0


class FillingWatch:
    """Which queues have a soft depth, and which of them are above it as far as was seen."""

    def __init__(self, bus: EventBus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._soft: dict[str, QueueSettings] = {}
        self._read_at: float | None = None
        self._above: frozenset[str] = frozenset()

    @property
    def stale(self) -> bool:
        """Whether the settings should be read again."""
        age_s = None if self._read_at is None else self._clock.monotonic() - self._read_at
        return age_s is None or age_s >= SETTINGS_AGE_S_MAX

    def learn(self, states: tuple[QueueState, ...]) -> None:
        """Take in the settings as they hold now."""
        settings = (state.settings for state in states)
        self._soft = {each.name: each for each in settings if each.soft_depth is not None}
        self._read_at = self._clock.monotonic()

    def watched(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Those of these queues whose depth is worth a look."""
        return tuple(queue for queue in dict.fromkeys(queues) if queue in self._soft)

    def note(self, queue: str, depth: int) -> None:
        """A queue is so deep; say so if it was not before."""
        settings = self._soft[queue]
        if not over_soft_depth(depth, settings.soft_depth):
            self._above -= {queue}
        elif queue not in self._above:
            self._above |= {queue}
            self._bus.emit(
                QueueFilling(
                    queue=queue,
                    depth=depth,
                    soft_depth=settings.soft_depth or 0,
                    max_depth=settings.max_depth,
                )
            )
