# SPDX-License-Identifier: MIT
"""Cache what is counted over the whole store, for all pages of a process.

Counting a million jobs takes a store a good part of a second. So pages show a recent count, also
while a new one is under way; the longer a count takes, the longer it is cached, so that pages,
however many, use a bounded share of the store's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from packhorse.app import Packhorse
from packhorse.client.history import History
from packhorse.core.policies.history import RANGES
from packhorse.insights import QueueInfo

T = TypeVar("T")

#: Count at most so many jobs per lane of a queue, and finished ones in all.
_COUNTED_MAX: Final = 10_000
#: A value is cached for so long, or for so many times as long as reading it took.
_KEPT_S: Final = 1.0
_TIMES: Final = 10.0
#: An older value is not shown while it is renewed.
_OLD_S: Final = 30.0


class Look(Generic[T]):
    """One cached value, and the task that renews it."""

    def __init__(self) -> None:
        self._found: T | None = None
        self._at = self._took_s = 0.0
        self._number = 0  # how often the value was invalidated
        self._looking: asyncio.Task[T] | None = None

    def forget(self) -> None:
        """Invalidate the value: something was changed."""
        self._number, self._found, self._looking = self._number + 1, None, None

    @property
    def age_s(self) -> float:
        """The age of the value."""
        return asyncio.get_running_loop().time() - self._at

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return what `read` returns, or returned a short while ago."""
        while True:
            age_s, found = self.age_s, self._found
            if found is not None and age_s < max(_KEPT_S, _TIMES * self._took_s):
                return found
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(read, self._number))
                self._looking.add_done_callback(_drop_error)
            if found is not None and age_s < _OLD_S:
                return found
            number, found = self._number, await asyncio.shield(self._looking)
            if number == self._number:
                return found

    async def _look(self, read: Callable[[], Awaitable[T]], number: int) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            found = await read()
            if number == self._number:
                self._found, self._at, self._took_s = found, clock(), clock() - began
            return found
        finally:
            if number == self._number:
                self._looking = None


def _drop_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error that no request waits for: the next request reads again."""
    if not task.cancelled():
        task.exception()


class FleetLooks:
    """The cached values of one web application."""

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        # A store answers an event loop one call at a time: a long one would hold up other requests.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="packhorse-looks")
        self._queues: Look[tuple[QueueInfo, ...]] = Look()
        self.dead: Look[dict[str, Any]] = Look()
        self.history: dict[str, Look[History]] = {name: Look() for name in RANGES}

    @property
    def age_s(self) -> float:
        """How long ago the queues were counted."""
        return self._queues.age_s

    async def queues(self) -> tuple[QueueInfo, ...]:
        """Return every queue with its counts."""
        return await self._queues.get(lambda: self.apart(self._read_queues))

    def _read_queues(self) -> tuple[QueueInfo, ...]:
        return self._app.insights.queues(most=_COUNTED_MAX)

    def apart(self, read: Callable[[], T]) -> Awaitable[T]:
        """Read in the extra thread, one call at a time."""
        return asyncio.get_running_loop().run_in_executor(self._thread, read)

    def forget(self) -> None:
        """Invalidate the counts: this process changed something."""
        self._queues.forget()
        self.dead.forget()
