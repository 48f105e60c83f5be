# SPDX-License-Identifier: MIT
"""Runs plans: takes a connection, talks, and tries again where that is safe.

A plan is atomic, and can be repeated until its commit is sent. So whatever was in the way
(serialization, deadlock, a connection that had died while idle) is met by running it again, a
bounded number of times; a connection lost at the commit is told to the caller as such.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from packhorse.clock import Chance, SystemChance
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.errors import (
    is_lost,
    is_passing,
    is_taken,
    is_unprepared,
    translated,
)
from packhorse.stores.postgres.grouping import Grouping
from packhorse.stores.postgres.link import AsyncLink
from packhorse.stores.postgres.pool import AsyncPool, LoopPools, SyncPool
from packhorse.stores.postgres.statements import Again
from packhorse.stores.postgres.talk import Shared, perform
from packhorse.stores.postgres.wire import Line

__all__ = ["AsyncRunner", "Lanes", "SyncRunner"]

T = TypeVar("T")

#: Runs of one plan, whatever is in its way.
_TRIES_MAX: Final = 20
#: The first pause between two of them, and the longest.
_PAUSE_S: Final = 0.002
_PAUSE_S_MAX: Final = 0.25
#: Verbs of the loop that hands out work: nothing else may keep them waiting for a connection.
_HOT: Final = frozenset({"claim", "settle", "renew", "cancelled", "note_progress", "leave"})


@dataclass(frozen=True, slots=True)
class Lanes:
    """The pools of threads and of event loops, each twice."""

    hot: SyncPool
    other: SyncPool
    hot_async: LoopPools
    other_async: LoopPools

    def pool(self, verb: str) -> SyncPool:
        return self.hot if verb in _HOT else self.other

    def pool_async(self, verb: str) -> LoopPools:
        return self.hot_async if verb in _HOT else self.other_async

    def close(self) -> None:
        for pool in (self.hot, self.other, self.hot_async, self.other_async):
            pool.close()


class _Tries:
    """Whether a plan may be run once more, and after which pause."""

    def __init__(self, shared: Shared, chance: Chance, stop_preparing: Callable[[], None]) -> None:
        self._shared = shared
        self._chance = chance
        self._stop_preparing = stop_preparing
        self._count = 0

    def pause_s(self, error: Exception, line: Line | None, *, writes: bool) -> float:
        """How long to wait before the next run, or the error in Packhorse's words."""
        self._count += 1
        ambiguous = line is not None and writes and (line.committing or line.committed)
        if self._count < _TRIES_MAX and not (line is not None and line.committed):
            if isinstance(error, Again) or is_taken(error):
                return 0.0
            if is_passing(error):
                longest: float = min(_PAUSE_S * 2**self._count, _PAUSE_S_MAX)
                return longest * self._chance.roll()
            if is_unprepared(error) and line is not None and line.prepares:
                self._stop_preparing()
                return 0.0
            if is_lost(error) and line is not None and not ambiguous and self._count == 1:
                return 0.0
        raise translated(error, self._shared.settings, maybe_stored=ambiguous) from error


class SyncRunner:
    """Runs plans in the thread of whoever asks."""

    def __init__(self, lanes: Lanes, shared: Shared, stop_preparing: Callable[[], None]) -> None:
        self._lanes = lanes
        self._shared = shared
        self._chance = SystemChance()
        self._stop_preparing = stop_preparing

    def run(self, plan: Plan[T]) -> T:
        pool = self._lanes.pool(plan.verb)
        tries: _Tries | None = None
        while True:  # bounded by `_Tries`
            line: Line | None = None
            try:
                link, era = pool.take()
                line = link.line
                try:
                    return link.drive(perform(line, plan, self._shared))
                finally:
                    pool.give(link, era)
            except Exception as error:  # noqa: BLE001 - told again, or by the one who judges it
                tries = tries or _Tries(self._shared, self._chance, self._stop_preparing)
                pause_s = tries.pause_s(error, line, writes=plan.writes)
            if pause_s:
                threading.Event().wait(pause_s)


class AsyncRunner:
    """Runs plans without blocking the event loop of whoever asks."""

    def __init__(self, lanes: Lanes, shared: Shared, stop_preparing: Callable[[], None]) -> None:
        self._lanes = lanes
        self._shared = shared
        self._chance = SystemChance()
        self._stop_preparing = stop_preparing

    async def run(self, plan: Plan[T]) -> T:
        pool = self._lanes.pool_async(plan.verb).here()
        if plan.short is not None and self._shared.timeouts_hold():
            grouping = pool.companion
            if grouping is None:
                alone = partial(self._alone, pool)
                grouping = pool.companion = Grouping(pool, self._shared, alone)
            answer: T = await grouping.run(plan)
            return answer
        return await self._alone(pool, plan)

    async def _alone(self, pool: AsyncPool, plan: Plan[T]) -> T:
        tries: _Tries | None = None
        while True:  # bounded by `_Tries`
            line: Line | None = None
            try:
                link: AsyncLink = await pool.take()
                line = link.line
                given_back = partial(pool.give, link)
                return await link.drive(perform(line, plan, self._shared), given_back)
            except Exception as error:  # noqa: BLE001 - told again, or by the one who judges it
                tries = tries or _Tries(self._shared, self._chance, self._stop_preparing)
                pause_s = tries.pause_s(error, line, writes=plan.writes)
            await asyncio.sleep(pause_s)
