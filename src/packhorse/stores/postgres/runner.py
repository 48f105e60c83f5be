# SPDX-License-Identifier: MIT
"""Run plans: take a connection, run the plan, and try again where that is safe.

A plan is atomic, and can be repeated until its commit is sent. So the runner repeats it, a bounded
number of times, after a serialization failure, a deadlock or a connection that had died while
idle; a connection lost at the commit is an error that says so.

In an event loop, short plans that wait together share a commit, since each commit waits for the
disk: only a few run on connections of their own, the others wait for those and go out as one
transaction. If that fails, each is run alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from packhorse.core.clock import Chance, SystemChance
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.errors import (
    Unanswered,
    has_answered,
    is_lost,
    is_passing,
    is_taken,
    is_unprepared,
    translated,
)
from packhorse.stores.postgres.pipeline import Exchange, PipelinedConnection
from packhorse.stores.postgres.plan_transaction import StoreContext, run_plan, run_shorts
from packhorse.stores.postgres.pool import AsyncPool, LoopPools, SyncPool
from packhorse.stores.postgres.statements import Again

T = TypeVar("T")

#: Runs of one plan, whatever is in its way.
_TRIES_MAX: Final = 20
#: The first pause between two of them, and the longest.
_PAUSE_S: Final = 0.002
_PAUSE_S_MAX: Final = 0.25
#: Connections that one plan may lose before it commits. One may have died while idle; the next may
#: end because its client got no processor for longer than a transaction may stand still.
_LOST_MAX: Final = 3
#: Verbs of the loop that hands out work: nothing else may keep them waiting for a connection.
_HOT: Final = frozenset({"claim", "settle", "renew", "cancelled", "note_progress", "leave"})
#: Short plans of one event loop that run alone at a time; more wait, and form groups.
_ALONE_MAX: Final = 2
#: Plans in one group.
_GROUP_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of threads and of event loops, for hot verbs and for all others."""

    hot: SyncPool
    other: SyncPool
    hot_async: LoopPools
    other_async: LoopPools

    def of(self, verb: str) -> SyncPool:
        return self.hot if verb in _HOT else self.other

    def of_loop(self, verb: str) -> AsyncPool:
        return (self.hot_async if verb in _HOT else self.other_async).here()

    def close_idle(self) -> None:
        """Close the connections that are not in use."""
        for pool in (self.hot, self.other, self.hot_async, self.other_async):
            pool.close_idle()

    def close(self) -> None:
        for pool in (self.hot, self.other, self.hot_async, self.other_async):
            pool.close()


class _Tries:
    """Decides whether a plan is run once more, and after which pause."""

    def __init__(
        self, context: StoreContext, chance: Chance, stop_preparing: Callable[[], None]
    ) -> None:
        self._context = context
        self._chance = chance
        self._stop_preparing = stop_preparing
        self._count = 0
        self._lost = 0

    def pause_s(
        self, error: Exception, connection: PipelinedConnection | None, *, writes: bool
    ) -> float:
        """How long to wait before the next run; raise the error in Packhorse's words if none."""
        self._count += 1
        committed = connection is not None and connection.committed
        ambiguous = writes and (committed or (connection is not None and connection.committing))
        if self._count < _TRIES_MAX and not committed:
            if isinstance(error, Again) or is_taken(error):
                return 0.0
            if is_passing(error):
                longest: float = min(_PAUSE_S * 2**self._count, _PAUSE_S_MAX)
                return longest * self._chance.roll()
            if is_unprepared(error) and connection is not None and connection.prepares:
                self._stop_preparing()
                return 0.0
            if is_lost(error) and connection is not None and not ambiguous:
                # An answer that did not come has cost a whole timeout: only one more is waited for.
                self._lost += _LOST_MAX - 1 if isinstance(error, Unanswered) else 1
                if self._lost < _LOST_MAX:
                    return 0.0
        raise translated(error, self._context.settings, maybe_stored=ambiguous) from error


class _Runner:
    """What both runners have."""

    def __init__(
        self, pools: Pools, context: StoreContext, stop_preparing: Callable[[], None]
    ) -> None:
        self._pools = pools
        self._context = context
        self._new_tries = partial(_Tries, context, SystemChance(), stop_preparing)


class SyncRunner(_Runner):
    """Runs plans in the caller's thread."""

    def run(self, plan: Plan[T]) -> T:
        pool = self._pools.of(plan.verb)
        tries: _Tries | None = None
        while True:  # bounded by `_Tries`
            connection = None
            try:
                connection = pool.take()
                try:
                    return connection.drive(run_plan(connection, plan, self._context))
                finally:
                    pool.give(connection)
            except Exception as error:  # noqa: BLE001 - `_Tries` raises it again, or repeats
                tries = tries or self._new_tries()
                pause_s = tries.pause_s(error, connection, writes=plan.writes)
            if pause_s:
                threading.Event().wait(pause_s)


class AsyncRunner(_Runner):
    """Runs plans in the caller's event loop, without blocking it."""

    async def run(self, plan: Plan[T]) -> T:
        pool = self._pools.of_loop(plan.verb)
        if plan.short is None or not self._context.settings_hold():
            return await self._alone(pool, plan)
        if pool.groups is None:
            pool.groups = _Groups(pool, self._context, partial(self._alone, pool))
        answer: T = await pool.groups.run(plan)
        return answer

    async def _alone(self, pool: AsyncPool, plan: Plan[T]) -> T:
        tries: _Tries | None = None
        while True:  # bounded by `_Tries`
            connection = None
            try:
                connection = await pool.take()
                exchange = run_plan(connection, plan, self._context)
                return await connection.drive(exchange, partial(pool.give, connection))
            except Exception as error:  # noqa: BLE001 - `_Tries` raises it again, or repeats
                tries = tries or self._new_tries()
                pause_s = tries.pause_s(error, connection, writes=plan.writes)
            await asyncio.sleep(pause_s)


class _Groups:
    """Short plans of one event loop, which may share commits."""

    def __init__(
        self, pool: AsyncPool, context: StoreContext, alone: Callable[[Plan[Any]], Awaitable[Any]]
    ) -> None:
        self._pool = pool
        self._context = context
        self._alone = alone
        self._running = 0
        self._waiting: deque[tuple[Plan[Any], asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, plan: Plan[T]) -> T:
        """Run it now and alone while few are under way, else in the next group."""
        answer: T
        if self._running >= _ALONE_MAX:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append((plan, future))
            answer = await future
            return answer
        self._running += 1
        try:
            answer = await self._alone(plan)
            return answer
        finally:
            self._ended()

    def _ended(self) -> None:
        self._running -= 1
        group = self._next_group()
        if group:
            self._running += 1
            task = asyncio.get_running_loop().create_task(self._serve(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_group(self) -> list[tuple[Plan[Any], asyncio.Future[Any]]]:
        group: list[tuple[Plan[Any], asyncio.Future[Any]]] = []
        while self._waiting and len(group) < _GROUP_MAX:
            plan, future = self._waiting.popleft()
            if not future.done():  # else its caller was cancelled
                group.append((plan, future))
        return group

    async def _serve(self, group: Sequence[tuple[Plan[Any], asyncio.Future[Any]]]) -> None:
        plans = [plan for plan, _ in group]
        try:
            answers = await self._together(plans) if len(plans) > 1 else plans
            await asyncio.gather(
                *(
                    self._deliver(future, answer)
                    for (_, future), answer in zip(group, answers, strict=True)
                )
            )
        finally:
            self._ended()

    async def _deliver(self, future: asyncio.Future[Any], answer: Any) -> None:
        """Hand out an answer; a plan in its place is run first."""
        if isinstance(answer, Plan):
            try:
                answer = await self._alone(answer)
            except Exception as error:  # noqa: BLE001 - belongs to the caller
                answer = error
        if future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def _together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Return an answer or an error for each plan, or the plan itself if it must run alone."""
        connection = None
        try:
            connection = await self._pool.take()
            exchange = _run_group(connection, plans, self._context)
            return await connection.drive(exchange, partial(self._pool.give, connection))
        except Exception as error:  # noqa: BLE001 - returned to all, or each plan meets it again
            if connection is not None and connection.committing and not has_answered(error):
                failure = translated(error, self._context.settings, maybe_stored=True)
                return [failure] * len(plans)
            return list(plans)


def _run_group(
    connection: PipelinedConnection, plans: Sequence[Plan[Any]], context: StoreContext
) -> Exchange[list[Any]]:
    """Run all in one transaction; return the plan itself where it has no answer."""
    connection.committing = connection.committed = False
    shorts = [plan.short for plan in plans]
    for short in shorts:
        short.tried = True
    answers = yield from run_shorts(connection, shorts, context)
    return [plan if answer is None else answer for plan, answer in zip(plans, answers, strict=True)]
