# SPDX-License-Identifier: MIT
"""From where claims look for ready jobs, so that they need not walk past those that are gone.

Rows that were claimed stay in the index, dead, until no old snapshot can see them. A claim that
began at the front would walk past all of them; so each queue has a *floor* for every priority, the
last place handed out there. Whoever comes in below it (a release, a rescue, a submit that was
committed late) is found when the floors are forgotten: after a second, when a claim is not filled,
or when somebody says so. A claim passes by the tasks it does not know, so that its floors are good
for claims of the same tasks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.job import Priority
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.rows import PASSES

__all__ = ["FLOOR_TOPIC", "Floors"]

#: Tells the other processes that claims should look from the front again.
FLOOR_TOPIC: Final = "floor"
#: How long floors are kept.
_FLOORS_US: Final = 1_000_000
#: Queues whose floors are kept; whoever serves more has none.
_FLOORS_MAX: Final = 1000
#: Before and behind every rank and place.
_FIRST: Final = -1
_LAST: Final = 2**63 - 1


class Floors:
    """Up to where queues have been handed out, as far as this store object knows."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}
        self._tasks: Sequence[str] = ()
        self._since_us = 0

    def serve(self, tasks: Sequence[str]) -> None:
        """Forget what claims of other tasks have learnt."""
        if tasks != self._tasks:
            self._tasks = tasks
            self.forget()

    def forget(self) -> None:
        """Let the next claim look from the front."""
        self._places = {}

    def give_up(self) -> Steps[None]:
        """Forget, and let others forget: somebody goes back to a place below."""
        self.forget()
        yield Wake(FLOOR_TOPIC)

    def known(self, queues: Sequence[str]) -> bool:
        return any(queue in self._places for queue in queues)

    def ranges(self, queues: Sequence[str]) -> dict[str, list[Any]]:
        """Where to look in each queue: (low, place) exclusively, up to the rank `high`."""
        names, lows, places, highs = [], [], [], []
        for queue in queues:
            floors = self._places.get(queue)
            levels = [(_FIRST, _FIRST, _LAST)] if floors is None else _levels(floors)
            for low, place, high in levels:
                names.append(queue)
                lows.append(low)
                places.append(place)
                highs.append(high)
        return {"floor_queues": names, "lows": lows, "places": places, "highs": highs}

    def raise_to(self, rows: Sequence[Sequence[Any]], now_us: int, tasks: Sequence[str]) -> None:
        """Remember what was handed out to who knows these tasks: rows of (rank, place, queue)."""
        if tasks != self._tasks:  # another claim came between
            return
        places = self._places
        if not 0 <= now_us - self._since_us < _FLOORS_US or len(places) > _FLOORS_MAX:
            places, self._since_us = {}, now_us
        for rank, place, queue in rows:
            floors = places.get(queue)
            if floors is None:
                floors = places[queue] = [_FIRST] * len(Priority)
            level = rank // PASSES
            if level < len(floors) and place > floors[level]:
                floors[level] = place
        self._places = places


def _levels(floors: Sequence[int]) -> list[tuple[int, int, int]]:
    levels = [(level * PASSES, place, (level + 1) * PASSES) for level, place in enumerate(floors)]
    low, place, _ = levels[-1]
    return [*levels[:-1], (low, place, _LAST)]
