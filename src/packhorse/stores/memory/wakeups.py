# SPDX-License-Identifier: MIT
"""Wake-ups inside one process, across its threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable

from packhorse.stores.protocol import Listener

__all__ = ["MemoryWakeups"]


class MemoryWakeups:
    """Tells listeners, each in its own event loop, what they asked to hear."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, set[_Listener]] = {}

    def listen(self, topics: frozenset[str]) -> Listener:
        listener = _Listener(self, topics, asyncio.get_running_loop())
        with self._lock:
            for topic in topics:
                self._listeners.setdefault(topic, set()).add(listener)
        return listener

    def send(self, topics: Iterable[str]) -> None:
        """Wake everybody who listens to one of these."""
        for topic in topics:
            with self._lock:
                listeners = tuple(self._listeners.get(topic, ()))
            for listener in listeners:
                listener.tell(topic)

    def close(self) -> None:
        """End every wait."""
        with self._lock:
            listeners = set().union(*self._listeners.values())
        for listener in listeners:
            listener.close()

    def forget(self, listener: _Listener) -> None:
        """Tell a listener no more."""
        with self._lock:
            for topic in listener.topics:
                told = self._listeners.get(topic, set())
                told.discard(listener)
                if not told:
                    self._listeners.pop(topic, None)


class _Listener:
    """Hears its topics until it is closed, or its loop is."""

    def __init__(
        self, wakeups: MemoryWakeups, topics: frozenset[str], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.topics = topics
        self._wakeups = wakeups
        self._loop = loop
        self._lock = threading.Lock()
        self._heard: set[str] = set()  # at most all of `topics`
        self._closed = False
        self._something = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> frozenset[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._hear()
        with self._lock:
            heard = frozenset(self._heard)
            self._heard.clear()
        return heard

    def close(self) -> None:
        self._closed = True
        self._wakeups.forget(self)
        self._signal()

    def tell(self, topic: str) -> None:
        """Hear a topic, from any thread."""
        with self._lock:
            first = not self._heard
            self._heard.add(topic)
        if first:
            self._signal()

    async def _hear(self) -> None:
        # The event is set only by callbacks of this loop, so none gets lost between the lines.
        while not self._heard and not self._closed:
            self._something.clear()
            await self._something.wait()

    def _signal(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._something.set)
        except RuntimeError:  # its loop is closed: nobody will ever listen again
            self._wakeups.forget(self)
