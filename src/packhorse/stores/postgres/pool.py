# SPDX-License-Identifier: MIT
"""Connections kept open between plans: one pool for all threads, one for each event loop.

Nothing of it may be used on the other side of a fork; the store drops its pools there, unclosed,
because to close an inherited connection would close the parent's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from packhorse.clock import SystemClock
from packhorse.errors import StoreUnavailable
from packhorse.stores.postgres.link import AsyncLink, SyncLink

__all__ = ["AsyncPool", "LoopPools", "SyncPool"]


class SyncPool:
    """At most `size` connections, opened by the threads that need them."""

    def __init__(self, open_link: Callable[[], SyncLink], *, size: int, patience_s: float) -> None:
        self._open = open_link
        self._size = size
        self._patience_s = patience_s
        self._time = SystemClock()
        self._lock = threading.Lock()  # taken at every plan, so without the condition around it
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._idle: list[SyncLink] = []
        self._count = 0
        self._era = 0  #: connections of an earlier one are closed when they come back

    def take(self) -> tuple[SyncLink, int]:
        """A connection that nobody else has, and the era it belongs to."""
        with self._lock:
            era, link = self._era, self._free_link()
        if link is None:
            try:
                link = self._open()
            except BaseException:
                self._lose(era)
                raise
        return link, era

    def give(self, link: SyncLink, era: int) -> None:
        """Give it back; it is closed if it cannot be used again."""
        if not (link.at_rest and self._kept(link, era)):
            link.close()
            self._lose(era)

    def _kept(self, link: SyncLink, era: int) -> bool:
        """Whether it was put with those that are idle."""
        with self._lock:
            if era != self._era:
                return False
            self._idle.append(link)
            if self._waiting:
                self._changed.notify()
            return True

    def close(self) -> None:
        """Close what is idle now, and the rest when it comes back; later use opens anew."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._era += 1
            self._count = 0
            self._changed.notify_all()
        for link in idle:
            link.close()

    def _free_link(self) -> SyncLink | None:
        """An idle one, or None and the right to open another."""
        until: float | None = None
        while True:
            while self._idle:
                link = self._idle.pop()
                if link.usable:
                    return link
                link.close()
                self._count -= 1
            if self._count < self._size:
                self._count += 1
                return None
            now_s = self._time.monotonic()
            until = until or now_s + self._patience_s
            if not self._has_changed(until - now_s):
                raise _exhausted(self._size, self._patience_s)

    def _has_changed(self, within_s: float) -> bool:
        """Wait for somebody to give a connection back, or to give it up."""
        self._waiting += 1
        try:
            return within_s > 0 and self._changed.wait(within_s)
        finally:
            self._waiting -= 1

    def _lose(self, era: int) -> None:
        with self._lock:
            if era == self._era:
                self._count -= 1
                self._changed.notify()


class AsyncPool:
    """At most `size` connections of one event loop, used in its thread only."""

    def __init__(
        self, open_link: Callable[[], Awaitable[AsyncLink]], *, size: int, patience_s: float
    ) -> None:
        self._open = open_link
        self._size = size
        self._patience_s = patience_s
        self._idle: list[AsyncLink] = []
        self._count = 0
        self._closed = False
        self._waiting: deque[asyncio.Future[AsyncLink | None]] = deque()
        self.companion: Any = None  #: whoever else wants one thing for each event loop

    async def take(self) -> AsyncLink:
        while self._idle:
            link = self._idle.pop()
            if link.usable:
                return link
            self._drop(link)
        if self._count < self._size:
            return await self._opened()
        return await self._waited()

    def give(self, link: AsyncLink) -> None:
        # Whoever takes an idle one looks at it; whoever waits for this one does not.
        if self._closed or not (link.usable if self._waiting else link.at_rest):
            self._drop(link)
            self._hand_on(None)
        elif not self._hand_on(link):
            self._idle.append(link)

    def close(self) -> None:
        """Close what is idle now, and the rest when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for link in idle:
            self._drop(link)

    async def _opened(self) -> AsyncLink:
        self._count += 1
        try:
            return await self._open()
        except BaseException:
            self._count -= 1
            self._hand_on(None)
            raise

    async def _waited(self) -> AsyncLink:
        """Somebody's connection when it comes back, or the right to open one in its place."""
        turn: asyncio.Future[AsyncLink | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._patience_s):
                link = await turn
        except TimeoutError:
            raise _exhausted(self._size, self._patience_s) from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            raise
        if link is None:
            self._count -= 1  # counted for us by whoever handed it on
            return await self._opened()
        return link

    def _pass_on(self, link: AsyncLink | None) -> None:
        if link is not None:
            self.give(link)
        else:
            self._count -= 1
            self._hand_on(None)

    def _hand_on(self, link: AsyncLink | None) -> bool:
        """Give a link, or the right to open one, to the one who has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                if link is None:
                    self._count += 1
                turn.set_result(link)
                return True
        return False

    def _drop(self, link: AsyncLink) -> None:
        self._count -= 1
        link.close()


class LoopPools:
    """A pool for each event loop that asks."""

    def __init__(self, make: Callable[[], AsyncPool]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}

    def here(self) -> AsyncPool:
        """The pool of the running loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            with self._lock:
                self._forget_closed()
                pool = self._pools[loop] = self._make()
        return pool

    def close(self) -> None:
        """Close every loop's connections, each in the thread its loop runs in."""
        with self._lock:
            pools, self._pools = self._pools, {}
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, pool in pools.items():
            if loop is here or not loop.is_running():
                pool.close()
            else:
                _close_there(loop, pool)

    def _forget_closed(self) -> None:
        """Clear up behind event loops that were closed before the store was."""
        for loop in [loop for loop in self._pools if loop.is_closed()]:
            self._pools.pop(loop).close()


def _close_there(loop: asyncio.AbstractEventLoop, pool: AsyncPool) -> None:
    try:
        loop.call_soon_threadsafe(pool.close)
    except RuntimeError:  # it was closed just now
        pool.close()


def _exhausted(size: int, patience_s: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"all {size} connections of the pool were busy for {patience_s:g} s; look for plans that "
        "hang in pg_stat_activity, or raise pool or hot_pool in the URL"
    )
