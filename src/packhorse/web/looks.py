# SPDX-License-Identifier: MIT
"""What is counted over the whole store, kept for a while for all pages of a process.

To count a million jobs takes a store a good part of a second. So what was counted is shown again
while it is young, and while it is counted again; the more a look costs, the longer it is kept, so
that pages, however many, take a bounded share of the store's time.
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

#: Jobs of one lane of a queue, and finished ones in all, that are counted for a page.
_COUNTED_MAX: Final = 10_000
#: A look is kept for so long, or for so many times what it took.
_KEPT_S: Final = 1.0
_TIMES: Final = 10.0
#: One that is older is not shown while it is renewed.
_OLD_S: Final = 30.0


class Look(Generic[T]):
    """One thing that is looked at."""

    def __init__(self) -> None:
        self._found: T | None = None
        self._at = self._took_s = 0.0
        self._number = 0  # of the changes that made what was found old
        self._looking: asyncio.Task[T] | None = None

    def forget(self) -> None:
        """Look again before anything is shown: something was changed."""
        self._number, self._found, self._looking = self._number + 1, None, None

    @property
    def age_s(self) -> float:
        """How long ago what is shown was found."""
        return asyncio.get_running_loop().time() - self._at

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` finds, or has found not long ago."""
        while True:
            age_s, found = self.age_s, self._found
            if found is not None and age_s < max(_KEPT_S, _TIMES * self._took_s):
                return found
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(read, self._number))
                self._looking.add_done_callback(_heard)
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


def _heard(task: asyncio.Task[Any]) -> None:
    """Take an error that nothing waits for: who comes next looks again."""
    if not task.cancelled():
        task.exception()


class FleetLooks:
    """The looks of one web application."""

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        # A store answers an event loop one by one: a long look would hold up every other request.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="packhorse-looks")
        self._queues: Look[tuple[QueueInfo, ...]] = Look()
        self.dead: Look[dict[str, Any]] = Look()
        self.history: dict[str, Look[History]] = {name: Look() for name in RANGES}

    @property
    def age_s(self) -> float:
        """How long ago the queues were counted that are shown."""
        return self._queues.age_s

    async def queues(self) -> tuple[QueueInfo, ...]:
        """Every queue, and what it holds."""
        return await self._queues.get(lambda: self.apart(self._read_queues))

    def _read_queues(self) -> tuple[QueueInfo, ...]:
        return self._app.insights.queues(most=_COUNTED_MAX)

    def apart(self, read: Callable[[], T]) -> Awaitable[T]:
        """Read in a thread of its own, one at a time."""
        return asyncio.get_running_loop().run_in_executor(self._thread, read)

    def forget(self) -> None:
        """Look again: something was changed through this process."""
        self._queues.forget()
        self.dead.forget()
