# SPDX-License-Identifier: MIT
"""Remember where claims start to look for ready jobs, so that they skip rows that are gone.

Rows that were claimed stay in the index, dead, until no old snapshot can see them. A claim that
began at the front would walk past all of them. So a store object keeps, for each set of tasks that
claims ask for, a *floor* in every queue and priority: a place below which no ready job is known.

The whole rule:

1. A claim looks from the floors.
2. A floor rises in two steps. How far jobs have been handed out is *noted*; a claim that begins
   at least `LAG_S` later, and that looked past the note, makes it the floor. So a job that
   commits, or that is unlocked, within `LAG_S` of the claim that passed it by is never below.
3. What comes later than that (a long transaction), or goes back to its old place (a release, a
   rescue, a parked job), is found by a *sweep* of all that lies below the floors. One begins with
   the next claim when a verb says that a job goes back, or is ready again in its old place; with
   any claim after `SWEEP_EVERY_S`; and with one that found nothing. The last two keep away for
   `SWEEP_REST` times as long as the last sweep took, so that sweeps take no more than
   1 / `SWEEP_REST` of the time, however many rows are dead; but for `REST_S_MAX` at most, since a
   sweep may have taken long because the server stood still.
4. A sweep goes piece by piece, lowest places first: each claim looks at the next piece and from
   the floors. A piece that takes longer than usual claims by `PIECE_S` is divided, and neighbours
   that take little are joined, so that no claim waits long for the dead rows below. A claim that
   finds nothing goes on with the next piece at once.
5. A claim that was filled has not looked behind the last job it was given: it raises no floor
   there, and if that job lay below a floor, the floor goes down to it.

So a job that a claim could hand out waits below a floor for at most `SWEEP_EVERY_S`, or for
`SWEEP_REST` walks past the dead rows if that is longer (`REST_S_MAX` at most), and for the claims
of one sweep, whether claims are filled or not.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from packhorse.core.clock import SystemClock
from packhorse.core.job import Priority
from packhorse.stores.sql.rows import RANK_PER_PRIORITY

#: Topic that tells all processes to begin a sweep: a job returns to a place below a floor.
FLOOR_TOPIC: Final = "floor"
#: How long a job may take from its number to its commit, or be locked, and not be passed by.
LAG_S: Final = 0.1
#: How often a sweep begins, unless sweeps take long.
SWEEP_EVERY_S: Final = 1.0
#: How many times as long as it took no other sweep begins unasked.
SWEEP_REST: Final = 200
#: The longest rest, in seconds.
REST_S_MAX: Final = 30.0
#: How much longer than others a claim may take that looks at a piece.
PIECE_S: Final = 0.01
#: Into how many a piece is divided at once, and how many there are at most.
_PARTS_MAX: Final = 16
_PIECES_MAX: Final = 256
#: Weight of one more claim in the average time of claims.
_WEIGHT: Final = 0.1
#: How long claims search task by task before one checks whether that is still needed.
CROWDED_S: Final = 1.0
#: Queues whose floors are kept, and sets of tasks; a claim of more looks from the front.
_QUEUES_MAX: Final = 1000
_TASKS_MAX: Final = 100
#: Before and behind every rank and place.
_FIRST: Final = -1
_LAST: Final = 2**63 - 1

#: From a rank and place, exclusively, to a rank and place.
_WHOLE: Final = ((_FIRST, _FIRST, _LAST, _LAST),)

#: The place handed out last in each priority, by queue.
_Places = dict[str, list[int]]


class FloorLook(NamedTuple):
    """One look of a claim: when it began, and what it looks at beside all above the floors."""

    began: float
    piece: tuple[int, int] | None  #: the places above the first, up to the second


class Floors:
    """The floors of a store object."""

    def __init__(self, time: Callable[[], float] | None = None) -> None:
        self._time = time or SystemClock().monotonic
        self._of: dict[tuple[str, ...], Floor] = {}

    def of(self, tasks: Sequence[str]) -> Floor:
        """The floors of claims for these tasks, since a claim skips tasks it does not know."""
        key = tuple(tasks)
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= _TASKS_MAX:
                self._of.clear()
            found = self._of[key] = Floor(self._time)
        return found

    def forget(self) -> None:
        """Let sweeps begin with the next claims."""
        for floor in tuple(self._of.values()):
            floor.forget()


class Floor:
    """The floors of claims for the same tasks, in every queue."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._low: _Places = {}  #: the floors
        self._noted: _Places = {}  #: what they rise to next
        self._seen: _Places = {}  #: how far jobs have been handed out
        self._noted_at = time()
        self._sweep = Sweep()
        self._crowded_at = -math.inf
        self._learning = threading.Lock()  #: a store object may claim in several threads

    @property
    def crowded(self) -> bool:
        """Whether many jobs of other tasks stood before those of these tasks a moment ago."""
        return self._time() - self._crowded_at < CROWDED_S

    def note_crowd(self) -> None:
        """Let claims look task by task for a while."""
        self._crowded_at = self._time()

    def forget(self) -> None:
        """Let a sweep begin with the next claim."""
        self._sweep.told += 1

    def begin(self) -> FloorLook:
        """Begin the first look of a claim."""
        now = self._time()
        return FloorLook(now, self._sweep.next_piece(now))

    def again(self, first: FloorLook) -> FloorLook | None:
        """Another look for a claim that found nothing; None if there is nothing to look at."""
        now = self._time()
        piece = self._sweep.further_piece(now, since=first.began)
        return None if piece is None else FloorLook(now, piece)

    def ranges(self, queues: Sequence[str], look: FloorLook) -> dict[str, list[Any]]:
        """Where to look in each queue: behind (low, place), up to (high, end)."""
        names, lows, places, highs, ends = [], [], [], [], []
        for queue in queues:
            floors = self._low.get(queue)
            whole = floors is None or look.piece == (_FIRST, _LAST)
            for low, place, high, end in _WHOLE if whole else _levels(floors or (), look.piece):
                names.append(queue)
                lows.append(low)
                places.append(place)
                highs.append(high)
                ends.append(end)
        return {
            "floor_queues": names,
            "lows": lows,
            "places": places,
            "highs": highs,
            "ends": ends,
        }

    def learn(
        self,
        look: FloorLook,
        handed: Sequence[tuple[str, int, int]],
        *,
        queues: Sequence[str],
        filled: bool,
    ) -> None:
        """Learn from a look: the claimed (queue, rank, place), in the order of claiming."""
        with self._learning:
            self._learn(look, handed, queues, filled=filled)

    def _learn(
        self,
        look: FloorLook,
        handed: Sequence[tuple[str, int, int]],
        queues: Sequence[str],
        *,
        filled: bool,
    ) -> None:
        now = self._time()
        self._sweep.note(look, now, max(map(max, self._low.values()), default=_FIRST))
        for queue, rank, place in handed:
            level = rank // RANK_PER_PRIORITY
            if level < len(Priority):
                seen = self._seen.setdefault(queue, [_FIRST] * len(Priority))
                seen[level] = max(seen[level], place)
        rises = look.began - self._noted_at >= LAG_S
        if rises or look.piece is not None:
            self._move(self._noted if rises else self._low, queues, handed[-1] if filled else None)
        if rises:
            if len(self._seen) > _QUEUES_MAX:
                self._low, self._seen = {}, {}
            self._noted = {queue: places.copy() for queue, places in self._seen.items()}
            self._noted_at = now

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
            level = last[1] // RANK_PER_PRIORITY
            floors = self._low.get(queue, [_FIRST] * len(Priority))
            if places is not None and level < len(Priority):
                passed = [*places[:level], min(places[level], last[2])]
                self._low[queue] = [*passed, *floors[level + 1 :]]
            return  # what is served after the last job was not looked at


class Sweep:
    """What lies below the floors, piece by piece: see rules 3 and 4."""

    def __init__(self) -> None:
        self.told = 0  #: how often a job went back
        self._lock = threading.Lock()  #: a store object may claim in several threads
        self._heeded = 0  #: how often that was before this sweep, or the last
        self._ends = [_LAST]  #: of the pieces
        self._at: int | None = None  #: the piece that is looked at next; None between sweeps
        self._ended = -math.inf
        self._took = 0.0  #: this sweep, or the last one
        self._before = math.inf  #: the piece before
        self._usual = 0.0  #: a claim that looks at no piece

    def next_piece(self, now: float) -> tuple[int, int] | None:
        """What a claim looks at below the floors."""
        with self._lock:
            due = self._rested(now) and now - self._ended >= SWEEP_EVERY_S
            if self._at is None and (due or self.told != self._heeded):
                self._begin()
            return self._piece()

    def further_piece(self, now: float, *, since: float) -> tuple[int, int] | None:
        """What a claim that began then and found nothing looks at; no sweep begins twice for it."""
        with self._lock:
            if self._at is None and self._ended < since and self._rested(now):
                self._begin()
            return self._piece()

    def note(self, look: FloorLook, now: float, top: int) -> None:
        """Note how long a look took; `top` is the highest floor."""
        took = now - look.began
        with self._lock:
            if look.piece is None:
                self._usual += _WEIGHT * (took - self._usual)
            elif self._at is not None and look.piece == self._piece():
                took = max(0.0, took - self._usual)
                self._took += took
                self._at = self._fit(self._at, took, top) + 1
                if self._at >= len(self._ends):
                    self._at, self._ended = None, now

    def _fit(self, at: int, took: float, top: int) -> int:
        """Divide a piece that took long, or join it with the one before; says where it ends now."""
        low = max(0, self._ends[at - 1]) if at else 0
        width = min(top, self._ends[at]) - low
        parts = min(int(took / PIECE_S), _PARTS_MAX, _PIECES_MAX - len(self._ends) + 1, width)
        before, self._before = self._before, took
        if parts > 1:
            self._ends[at:at] = [low + width * part // parts for part in range(1, parts)]
            return at + parts - 1
        if at and before + took < PIECE_S:
            self._before += before
            del self._ends[at - 1]
            return at - 1
        return at

    def _begin(self) -> None:
        self._at, self._took, self._before = 0, 0.0, math.inf
        self._heeded = self.told

    def _piece(self) -> tuple[int, int] | None:
        at = self._at
        if at is None:
            return None
        return (self._ends[at - 1] if at else _FIRST), self._ends[at]

    def _rested(self, now: float) -> bool:
        return now - self._ended >= min(SWEEP_REST * self._took, REST_S_MAX)


def _levels(
    floors: Sequence[int], piece: tuple[int, int] | None
) -> Iterator[tuple[int, int, int, int]]:
    """Above the floors of all priorities, and a piece of what lies below."""
    for level, floor in enumerate(floors):
        low, place = level * RANK_PER_PRIORITY, floor
        if piece is not None and piece[0] < floor:
            if piece[1] < floor:
                yield low, piece[0], low, piece[1]
            else:
                place = piece[0]
        last = level == len(floors) - 1
        yield low, place, _LAST if last else (level + 1) * RANK_PER_PRIORITY - 1, _LAST
