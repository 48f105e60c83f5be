# SPDX-License-Identifier: MIT
"""Waiting for room in a full queue: how long, and on wake-ups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from packhorse.clock import SECOND_US, Clock
from packhorse.errors import QueueFull
from packhorse.job import NewJob
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueState, Submitted
from packhorse.waiting import WAIT_FLOOR_S

__all__ = ["WAIT_US_DEFAULT", "Patience", "patience", "submit_with_room"]

#: How long a submit waits in a queue that is to be waited for, when nobody says.
WAIT_US_DEFAULT: Final = 30 * SECOND_US


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a submit waits for room, and in which queues."""

    timeout_s: float
    queues: frozenset[str] | None  #: None: in any


def patience(
    full: QueueFull, states: Iterable[QueueState], declared_us: int | None, chosen_us: int | None
) -> Patience | None:
    """Whether a submit that met a full queue waits; what the call chose beats what the queue says.

    What a queue says is read from the store: an operator may have changed it.
    """
    if chosen_us is not None:
        return Patience(chosen_us / SECOND_US, None) if chosen_us > 0 else None
    waiting = frozenset(state.settings.name for state in states if state.settings.on_full == "wait")
    if full.queue not in waiting:
        return None
    span_us = WAIT_US_DEFAULT if declared_us is None else declared_us
    return Patience(span_us / SECOND_US, waiting)


async def submit_with_room(
    store: Store, jobs: Sequence[NewJob], patient: Patience, clock: Clock
) -> tuple[Submitted, ...]:
    """Store jobs as soon as there is room for all of them, or raise the last `QueueFull`.

    The listener is there before each try, so room that is made in between is heard.
    """
    until_s = clock.monotonic() + patient.timeout_s
    listener = store.wakeups.listen(frozenset(f"room:{job.queue}" for job in jobs))
    with contextlib.closing(listener):
        while True:
            answer = await _tried(store, jobs)
            if not isinstance(answer, QueueFull):
                return answer
            rest_s = until_s - clock.monotonic()
            if rest_s <= 0 or _hopeless(answer, patient):
                raise answer
            await listener.wait(min(rest_s, WAIT_FLOOR_S))


async def _tried(store: Store, jobs: Sequence[NewJob]) -> tuple[Submitted, ...] | QueueFull:
    try:
        return await store.arun(store.jobs.submit(jobs))
    except QueueFull as full:
        return full


def _hopeless(full: QueueFull, patient: Patience) -> bool:
    """Whether waiting is no use: more at once than the queue holds, or one not waited for."""
    return full.depth == 0 or (patient.queues is not None and full.queue not in patient.queues)
