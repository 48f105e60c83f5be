# SPDX-License-Identifier: MIT
"""From where claims look for ready jobs, so that they need not walk past those that are gone.

Rows that were claimed stay in the index, dead, until no old snapshot can see them. A claim that
began at the front would walk past all of them. So a store object keeps, for each set of tasks that
claims ask for, a *floor* in every queue and priority: a place below which no ready job is known.

The whole rule:

1. A claim looks from the floors.
2. A floor rises in two steps. How far jobs have been handed out is *noted*; a claim that begins
   at least `LAG_S` later, and that looked past the note, makes it the floor. So a job that
   commits, or that is unlocked, within `LAG_S` of the claim that passed it by is never below.
3. What comes later than that (a long transaction), or goes back to its old place (a release, a
   rescue, a parked job), is found by a claim that looks from the front. The next one does so when
   a verb says that a job goes back; any one after `FRONT_EVERY_S`; and one that found nothing.
   The last two keep away for `FRONT_REST` times as long as the last look from the front took, so
   that such looks take no more than 1 / `FRONT_REST` of the time, however many rows are dead.
4. A claim that was filled has not looked behind the last job it was given: it raises no floor
   there, and if it looked from the front, the floor goes down to that job.

So a job that a claim could hand out waits below a floor for at most `FRONT_EVERY_S`, or for
`FRONT_REST` walks past the dead rows if that is longer, whether claims are filled or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from packhorse.core.clock import SystemClock
from packhorse.core.job import Priority
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.rows import PASSES

__all__ = ["FLOOR_TOPIC", "FRONT_EVERY_S", "FRONT_REST", "LAG_S", "Floor", "FloorLook", "Floors"]

#: Tells the other processes that claims should look from the front again.
FLOOR_TOPIC: Final = "floor"
#: How long a job may take from its number to its commit, or be locked, and not be passed by.
LAG_S: Final = 0.1
#: How often a claim looks from the front, unless that takes long.
FRONT_EVERY_S: Final = 1.0
#: How many times as long as it took no other claim looks from the front unasked.
FRONT_REST: Final = 200
#: How long claims go on looking task by task before one looks whether that is still needed.
CROWDED_S: Final = 1.0
#: Queues whose floors are kept, and sets of tasks; a claim of more looks from the front.
_QUEUES_MAX: Final = 1000
_TASKS_MAX: Final = 100
#: Before and behind every rank and place.
_FIRST: Final = -1
_LAST: Final = 2**63 - 1

_WHOLE: Final = ((_FIRST, _FIRST, _LAST),)

#: The place handed out last in each priority, by queue.
_Places = dict[str, list[int]]


class FloorLook(NamedTuple):
    """One look of a claim: when it began, and from where."""

    began: float
    front: bool
    told: int  #: how often the floors had been told to be forgotten by then


class Floors:
    """The floors of a store object."""

    def __init__(self, time: Callable[[], float] | None = None) -> None:
        self._time = time or SystemClock().monotonic
        self._of: dict[tuple[str, ...], Floor] = {}

    def of(self, tasks: Sequence[str]) -> Floor:
        """Those of claims for these tasks: a claim passes by the tasks it does not know."""
        key = tuple(tasks)
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= _TASKS_MAX:
                self._of.clear()
            found = self._of[key] = Floor(self._time)
        return found

    def forget(self) -> None:
        """Let the next claims look from the front."""
        for floor in tuple(self._of.values()):
            floor.forget()

    def give_up(self) -> Steps[None]:
        """Forget, and let others forget: a job goes back to a place below."""
        self.forget()
        yield Wake(FLOOR_TOPIC)


class Floor:
    """From where claims of the same tasks look, in every queue."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._low: _Places = {}  #: the floors
        self._noted: _Places = {}  #: what they rise to next
        self._seen: _Places = {}  #: how far jobs have been handed out
        self._noted_at = time()
        self._told = self._heeded = 0
        self._front_ended = self._front_took = 0.0
        self._crowded_at = -math.inf

    @property
    def crowded(self) -> bool:
        """Whether many jobs of other tasks stood before those of these tasks a moment ago."""
        return self._time() - self._crowded_at < CROWDED_S

    def note_crowd(self) -> None:
        """Let claims look task by task for a while."""
        self._crowded_at = self._time()

    def forget(self) -> None:
        """Let the next claim look from the front."""
        self._told += 1

    def begin(self) -> FloorLook:
        """A claim is about to look."""
        now = self._time()
        due = self._rested(now) and now - self._front_ended >= FRONT_EVERY_S
        return FloorLook(now, due or self._told != self._heeded, self._told)

    def again(self, look: FloorLook) -> FloorLook | None:
        """Another look for a claim that found nothing, from the front; None if it may not."""
        now = self._time()
        return None if look.front or not self._rested(now) else FloorLook(now, True, self._told)

    def ranges(self, queues: Sequence[str], look: FloorLook) -> dict[str, list[Any]]:
        """Where to look in each queue: (low, place) exclusively, up to the rank `high`."""
        names, lows, places, highs = [], [], [], []
        for queue in queues:
            floors = None if look.front else self._low.get(queue)
            for low, place, high in _WHOLE if floors is None else _levels(floors):
                names.append(queue)
                lows.append(low)
                places.append(place)
                highs.append(high)
        return {"floor_queues": names, "lows": lows, "places": places, "highs": highs}

    def learn(
        self,
        look: FloorLook,
        handed: Sequence[tuple[str, int, int]],
        *,
        queues: Sequence[str],
        filled: bool,
    ) -> None:
        """What a look came to: rows of (queue, rank, place), in the order they are handed out."""
        now = self._time()
        if look.front:
            self._front_ended, self._front_took = now, now - look.began
            self._heeded = look.told
        for queue, rank, place in handed:
            level = rank // PASSES
            if level < len(Priority):
                seen = self._seen.setdefault(queue, [_FIRST] * len(Priority))
                seen[level] = max(seen[level], place)
        rises = look.began - self._noted_at >= LAG_S
        if rises or look.front:
            self._move(self._noted if rises else self._low, queues, handed[-1] if filled else None)
        if rises:
            if len(self._seen) > _QUEUES_MAX:
                self._low, self._seen = {}, {}
            self._noted = {queue: places.copy() for queue, places in self._seen.items()}
            self._noted_at = now

    def _rested(self, now: float) -> bool:
        return now - self._front_ended >= FRONT_REST * self._front_took

    def _move(
        self, target: _Places, queues: Sequence[str], last: tuple[str, int, int] | None
    ) -> None:
        """Put the floors of these queues where they belong, as far as the claim has looked."""
        for queue in queues:
            places = target.get(queue)
            if last is None or last[0] != queue:
                if places is not None:
                    self._low[queue] = places.copy()
                continue
            level = last[1] // PASSES
            floors = self._low.get(queue, [_FIRST] * len(Priority))
            if places is not None and level < len(Priority):
                passed = [*places[:level], min(places[level], last[2])]
                self._low[queue] = [*passed, *floors[level + 1 :]]
            return  # what is served after the last job was not looked at


def _levels(floors: Sequence[int]) -> Sequence[tuple[int, int, int]]:
    levels = [(level * PASSES, place, (level + 1) * PASSES) for level, place in enumerate(floors)]
    low, place, _ = levels[-1]
    return [*levels[:-1], (low, place, _LAST)]
