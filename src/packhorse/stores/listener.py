# SPDX-License-Identifier: MIT
"""Wait for wake-ups in an event loop, whatever channel of a store brings them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

#: Stands for any topic: something changed, and the listener has to look.
ANYTHING: Final = "*"


class TopicListener:
    """Collects topics since the last `wait`; see `Listener`.

    Only the thread of its loop may use it, except for `hear_soon`.
    """

    def __init__(
        self,
        topics: frozenset[str],
        leave: Callable[[TopicListener], None],
        waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.topics = topics
        self.loop = asyncio.get_running_loop()
        self._leave = leave  #: called once, when it is closed
        self._waiting = waiting  #: entered while it waits
        self._heard: set[str] = set()
        self._woken = asyncio.Event()
        self._closed = False

    async def wait(self, timeout_s: float | None) -> frozenset[str]:
        if not self._woken.is_set():
            with self._waiting(), suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._woken.wait()
        if not self._closed:
            self._woken.clear()
        heard, self._heard = frozenset(self._heard), set()
        return heard

    def hear(self, topics: Iterable[str]) -> None:
        """Note topics, and end a wait."""
        self._heard.update(topics)
        self._woken.set()

    def hear_soon(self, topics: Iterable[str]) -> None:
        """As `hear`, from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self.hear, topics)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._woken.set()
            self._leave(self)
