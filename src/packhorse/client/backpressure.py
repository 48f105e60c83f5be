# SPDX-License-Identifier: MIT
"""Full queues: wait for room, and tell producers before a queue is full."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from packhorse.client.waiting import next_look
from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.depth import over_soft_depth
from packhorse.errors import QueueFull
from packhorse.events import EventBus, QueueFilling
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, QueueState, Submitted

#: How long a submit waits for room in a queue with `on_full='wait'`, by default.
WAIT_US_DEFAULT: Final = 30 * SECOND_US


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a submit waits for room, and in which queues."""

    timeout_s: float
    queues: frozenset[str] | None  #: None: in any


def patience(
    full: QueueFull, states: Iterable[QueueState], declared_us: int | None, chosen_us: int | None
) -> Patience | None:
    """Return how long a submit waits at a full queue; None: not at all. The call beats the queue.

    The queue's setting is read from the store: an operator may have changed it.
    """
    if chosen_us is not None:
        return Patience(chosen_us / SECOND_US, None) if chosen_us > 0 else None
    waiting = frozenset(state.settings.name for state in states if state.settings.on_full == "wait")
    if full.queue not in waiting:
        return None
    span_us = WAIT_US_DEFAULT if declared_us is None else declared_us
    return Patience(span_us / SECOND_US, waiting)


async def submit_with_room(
    store: Store,
    ask: Callable[[Store], Plan[tuple[Submitted, ...]]],
    topics: frozenset[str],
    patient: Patience,
    clock: Clock,
) -> tuple[Submitted, ...]:
    """Store jobs as soon as there is room for all of them, or raise the last `QueueFull`.

    The listener starts before each try, so that no wake-up is missed.
    """
    until_s = clock.monotonic() + patient.timeout_s
    listener = store.wakeups.listen(topics)
    with contextlib.closing(listener):
        while True:
            try:
                return await store.arun(ask(store))
            except QueueFull as full:
                rest_s = until_s - clock.monotonic()
                _refuse_hopeless(full, patient, rest_s)
            await next_look(listener, clock, rest_s)


def _refuse_hopeless(full: QueueFull, patient: Patience, rest_s: float) -> None:
    """Raise where waiting is no use: too many jobs at once, or a queue that is not waited for."""
    other = patient.queues is not None and full.queue not in patient.queues
    if rest_s <= 0 or full.depth == 0 or other:
        raise full


#: How old the settings may be that tell which queues have a soft depth; an operator may set one.
SETTINGS_AGE_S_MAX: Final = 5.0


class FillingWatch:
    """Knows which queues have a soft depth, and which were last seen above it."""

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
        """Note the present settings."""
        settings = (state.settings for state in states)
        self._soft = {each.name: each for each in settings if each.soft_depth is not None}
        self._read_at = self._clock.monotonic()

    def watched(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return those of these queues that have a soft depth."""
        return tuple(queue for queue in dict.fromkeys(queues) if queue in self._soft)

    def note(self, queue: str, depth: int) -> None:
        """Note the depth of a queue; emit an event when it rises above the soft depth."""
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
