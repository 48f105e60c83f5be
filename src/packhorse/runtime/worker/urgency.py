# SPDX-License-Identifier: MIT
"""Which priorities to claim: slots kept for urgent jobs, background jobs while nothing else waits.

Pure decisions, as in `claim_policy`. A worker without either asks for everything, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from packhorse.core.job import PRIORITY_BY_NAME, Priority

_ALL: Final = int(Priority.BACKGROUND)


class Asked(NamedTuple):
    """What a claim asks for."""

    limit: int
    levels: Mapping[str, int]  #: of queues; empty: every priority
    level: int = _ALL  #: of all queues
    spared: bool = False  #: background jobs of some queues were left alone


class Urgency:
    """How many jobs of which priorities a worker may claim.

    A slot kept for `critical` is one that only critical jobs may take; so many less may be held by
    all others together. Kept for `high`, it is for critical and high ones.
    """

    def __init__(
        self,
        reserve: Mapping[str, int],
        concurrency: int,
        held_below: Callable[[int], int],
    ) -> None:
        self.concurrency = concurrency
        self._reserve = sorted((PRIORITY_BY_NAME[name], kept) for name, kept in reserve.items())
        self._held_below = held_below  #: how many jobs less urgent than a level are held
        self._background: frozenset[str] = frozenset()
        self._nothing_else = False
        self._empty_level = _ALL
        self.plain = not reserve  #: everything is asked for always, also ahead of free slots

    def set_background(self, queues: Iterable[str]) -> None:
        """Of these queues, background jobs are taken while nothing else waits."""
        self._background = frozenset(queues)
        self.plain = not (self._reserve or self._background)

    def within(self, queues: tuple[str, ...], limit: int) -> Asked:
        """What to ask for, where so many jobs could be held."""
        level, limit = self._room(limit)
        levels = dict.fromkeys(queues, level) if level < _ALL else {}
        spared = level == _ALL and not self._nothing_else
        if spared:
            levels = dict.fromkeys(self._background.intersection(queues), _ALL - 1)
        return Asked(limit, levels, level, spared and bool(levels))

    def answered(self, asked: Asked, *, full: bool) -> bool:
        """What a claim brought; says whether one for background jobs is to follow at once."""
        self._nothing_else = asked.spared and not full
        self._empty_level = asked.level
        return self._nothing_else

    def is_news(self, limit: int) -> bool:
        """Whether less urgent jobs could be held now than the last claim, in vain, asked for."""
        return bool(self._reserve) and self._room(limit)[0] > self._empty_level

    def _room(self, limit: int) -> tuple[int, int]:
        """The least urgent level that has room, and how much."""
        level, room, kept = int(Priority.CRITICAL), limit, 0
        rooms = [(level, room)]
        for reserved, count in self._reserve:
            kept += count
            room = min(room, self.concurrency - kept - self._held_below(reserved))
            rooms[-1] = (reserved, rooms[-1][1])
            rooms.append((_ALL, room))
        if not self._reserve:
            return _ALL, limit
        return next(((level, room) for level, room in reversed(rooms) if room > 0), rooms[0])
