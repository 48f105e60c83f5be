# SPDX-License-Identifier: MIT
"""How far a claim reaches: which queues it asks, and whether it goes beyond the free slots.

A job held ahead keeps others of its limit or its key from running elsewhere, so look-ahead is
for plain queues alone. A worker that serves both kinds asks all of them for its free slots, in
their order of service; while that brings plain jobs only, and as many as it wanted, it looks ahead
on the plain ones, and comes back to all of them twice a second, when one of the others is woken,
or when the plain ones run out.

    all, free slots ──full, none of a limited queue──▶ plain, ahead
           ▲                                                 │
           └──half a second, woken, or fewer than wanted ────┘

Queues of equal queue priority take turns: who was served in a claim is asked after the others in
the next, so that none waits for another to run empty. Which of them are equals the store knows.

Limited are queues with limits, or with tasks that have limits, or with a cap in this worker; and
for a minute those in which a job with a rate key was seen, or one that met somebody else's limit.
Ordering keys do not count: only the head of a line is ever given out, and look-ahead delays the
next by 50 ms of work at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

__all__ = ["Caps", "Reach", "in_turn"]

#: How long to look ahead on the plain queues before the others are asked again.
_AHEAD_S: Final = 0.5
#: For how long a queue counts as limited in which such a job was seen.
_SEEN_S: Final = 60.0


def in_turn(queues: tuple[str, ...], served: Collection[str]) -> tuple[str, ...]:
    """The order in which to ask queues next: those just served after those that were not."""
    waited = tuple(name for name in queues if name not in served)
    return (*waited, *(name for name in queues if name in served))


class Reach:
    """Decides from what is told; reads no clock."""

    def __init__(self, queues: tuple[str, ...], capped: Iterable[str] = ()) -> None:
        self.limited: frozenset[str] = frozenset()  #: those served that take no look-ahead
        self.ahead = True  #: whether a claim may go beyond the free slots now
        self.queues = queues  #: all of them, in the order in which to ask them next
        self._capped = frozenset(capped)
        self._set: frozenset[str] = frozenset()
        self._seen: dict[str, float] = {}  # at most one entry per queue served
        self._plain: tuple[str, ...] = queues
        self._ahead_until = float("-inf")
        self._sort()

    def set_limited(self, queues: frozenset[str]) -> None:
        """These have limits, and no others."""
        self._set = queues
        self._sort()

    def seen_limited(self, queues: Iterable[str], now: float) -> None:
        """A job that is limited all by itself was seen in each of these."""
        self._seen.update(dict.fromkeys(queues, now + _SEEN_S))
        self._sort()

    def woken(self, topics: Collection[str]) -> None:
        """There may be work in the queues of these topics; `*` says nothing of any one."""
        if self.limited and any(f"queue:{name}" in topics for name in self.limited):
            self._ahead_until = float("-inf")

    def served(self, queues: Collection[str]) -> None:
        """These have given jobs; equals come first in the next claim."""
        if len(self.queues) > 1 and queues:
            self.queues = in_turn(self.queues, queues)
            self._plain = in_turn(self._plain, queues)

    def ask(self, now: float) -> tuple[str, ...]:
        """The queues to ask now; `ahead` says how many jobs."""
        if not self.limited:
            return self.queues
        if any(until <= now for until in self._seen.values()):
            self._seen = {name: until for name, until in self._seen.items() if until > now}
            self._sort()
        self.ahead = not self.limited or (bool(self._plain) and now < self._ahead_until)
        return self._plain if self.ahead else self.queues

    def answered(
        self, now: float, asked: tuple[str, ...], *, full: bool, given: Iterable[str]
    ) -> bool:
        """What a claim brought: as many as it wanted, or not, of the queues `given`.

        Says whether it had asked all queues, so that there is nothing more to be had just now.
        """
        whole = len(asked) == len(self.queues)
        if not whole and not full:
            self._ahead_until = float("-inf")
        elif whole and full and self.limited and self.limited.isdisjoint(given):
            self._ahead_until = now + _AHEAD_S
        return whole

    def _sort(self) -> None:
        limited = self._set | self._capped | self._seen.keys()
        self.limited = limited & frozenset(self.queues)
        self._plain = tuple(name for name in self.queues if name not in self.limited)
        self.ahead = not self.limited


class Caps:
    """How many jobs of some queues this worker holds at most.

    A claim asks for no more than fit into every queue it asks, so that none is ever exceeded;
    queues that are full are left out.
    """

    def __init__(self, caps: Mapping[str, int], held: Callable[[str], int]) -> None:
        self._caps = dict(caps)
        self._held = held
        self._full: tuple[str, ...] = ()

    def within(self, queues: tuple[str, ...], limit: int) -> tuple[tuple[str, ...], int]:
        """The queues that have room, and how many jobs to ask for."""
        if not self._caps:
            return queues, limit
        rooms = {name: self._room(name) for name in self._caps if name in queues}
        self._full = tuple(name for name, room in rooms.items() if room < 1)
        left = tuple(name for name in queues if name not in self._full)
        return left, min([limit, *(rooms[name] for name in left if name in rooms)] if left else [0])

    @property
    def freed(self) -> bool:
        """Whether a queue that was left out for being full has room by now."""
        return any(self._room(name) > 0 for name in self._full)

    def _room(self, name: str) -> int:
        return self._caps[name] - self._held(name)
