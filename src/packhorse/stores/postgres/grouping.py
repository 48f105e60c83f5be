# SPDX-License-Identifier: MIT
"""Plans that wait together share a commit.

A commit waits for the disk, and for every submit of a busy event loop alone that adds up. So only
a few plans at a time run on connections of their own; what comes meanwhile waits for them, and
then goes out as one transaction. If that fails, each is run alone, so that nobody suffers from a
neighbour.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from packhorse.stores.plan import Plan
from packhorse.stores.postgres.errors import has_answered, translated
from packhorse.stores.postgres.pool import AsyncPool
from packhorse.stores.postgres.talk import Shared, answers_of
from packhorse.stores.postgres.wire import Conversation, Line

__all__ = ["Grouping"]

T = TypeVar("T")

#: Transactions of one event loop at a time; more plans than that wait, and form groups.
_AT_ONCE_MAX: Final = 2
#: Plans in one group.
_GROUP_MAX: Final = 128


class Grouping:
    """The plans of one event loop that may share commits."""

    def __init__(
        self, pool: AsyncPool, shared: Shared, alone: Callable[[Plan[Any]], Awaitable[Any]]
    ) -> None:
        self._pool = pool
        self._shared = shared
        self._alone = alone
        self._running = 0
        self._waiting: deque[tuple[Plan[Any], asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, plan: Plan[T]) -> T:
        """Run it now and alone while few are under way, else in the next group."""
        answer: T
        if self._running >= _AT_ONCE_MAX:
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
            if not future.done():  # else whoever waited was cancelled
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
            except Exception as error:  # noqa: BLE001 - belongs to the one who waits
                answer = error
        if future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def _together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """An answer or an exception for each, or the plan itself where it is to run alone."""
        line: Line | None = None
        try:
            link = await self._pool.take()
            line = link.line
            given_back = partial(self._pool.give, link)
            return await link.drive(_perform(line, plans, self._shared), given_back)
        except Exception as error:  # noqa: BLE001 - told to all, or found again by each
            if line is not None and line.committing and not has_answered(error):
                told = translated(error, self._shared.settings, maybe_stored=True)
                return [told] * len(plans)
            return list(plans)


def _perform(line: Line, plans: Sequence[Plan[Any]], shared: Shared) -> Conversation[list[Any]]:
    """All in one transaction, with one commit; the plan itself where that came to no answer."""
    line.committing = line.committed = False
    shorts = [plan.short for plan in plans]
    for short in shorts:
        short.tried = True
    answers = yield from answers_of(line, shorts, shared)
    return [plan if answer is None else answer for plan, answer in zip(plans, answers, strict=True)]
