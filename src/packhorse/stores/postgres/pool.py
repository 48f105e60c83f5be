# SPDX-License-Identifier: MIT
"""Keep connections open between plans: one pool for all threads, one for each event loop.

A role, a database or a server may limit the number of connections. When the server refuses one for
that, `ConnectionOpener` closes whatever is idle in any pool of the store and tries again. For a
while after that connections are *scarce*: pools keep them neither idle nor for long, so that all
pools, and other processes, get their turn. So a worker lives on one connection.

Nothing here may be used on the other side of a fork; the store drops its pools there, unclosed,
because closing an inherited connection would end the parent's session.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from psycopg import OperationalError

from packhorse.core.clock import SystemClock
from packhorse.errors import StoreUnavailable
from packhorse.stores.postgres.connection import LoopConnection, ThreadConnection
from packhorse.stores.postgres.errors import is_crowded

T = TypeVar("T")

#: How long connections are scarce after one was refused.
_SCARCE_S: Final = 30.0
#: Between two tries to connect.
_RETRY_S: Final = 0.025
#: After being refused for so long, the listening connection is closed, too.
_STOP_LISTENING_S: Final = 0.5
#: How long a connection is kept idle, and at all, while they are scarce.
_IDLE_S: Final = 0.1
_LIFE_S: Final = 1.0
#: How long no connection is opened after one was closed for its age: others get their turn.
_YIELD_S: Final = 3 * _RETRY_S


class ConnectionOpener:
    """Opens the connections of a store, and makes room for them when the server refuses."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._monotonic = SystemClock().monotonic
        self._scarce_until = self._yield_until = 0.0
        self.close_idle: Callable[[], None] = _nothing  #: in all pools
        self.stop_listening: Callable[[float], None] = _nothing  #: for so many seconds

    @property
    def scarce(self) -> bool:
        """Whether the server refused a connection a while ago."""
        return self._monotonic() < self._scarce_until

    def yield_turn(self) -> None:
        """Open no connection for a moment, so that others can."""
        self._yield_until = self._monotonic() + _YIELD_S

    def open(self, connect: Callable[[], T], *, patience_s: float | None = None) -> T:
        """Connect; try again while the server refuses more, up to the store's patience."""
        began = self._monotonic()
        threading.Event().wait(max(0.0, self._yield_until - began))
        while True:
            try:
                return connect()
            except OperationalError as error:
                self._make_room(error, began, patience_s)
            threading.Event().wait(_RETRY_S)

    async def aopen(self, connect: Callable[[], Awaitable[T]], idle: Callable[[], T | None]) -> T:
        """As `open`; or return what `idle` finds between two tries."""
        began = self._monotonic()
        await asyncio.sleep(max(0.0, self._yield_until - began))
        while True:
            try:
                return await connect()
            except OperationalError as error:
                self._make_room(error, began)
            await asyncio.sleep(_RETRY_S)
            found = idle()
            if found is not None:
                return found

    def _make_room(
        self, error: OperationalError, began: float, patience_s: float | None = None
    ) -> None:
        """Close what is not needed; raise an error that is about something else."""
        now = self._monotonic()
        if not is_crowded(error) or now - began >= (patience_s or self._patience_s):
            raise error
        self._scarce_until = now + _SCARCE_S
        self.close_idle()
        if now - began >= _STOP_LISTENING_S:
            self.stop_listening(_SCARCE_S)


class _Pooled(Protocol):
    """What a pool asks of a connection."""

    @property
    def usable(self) -> bool: ...
    @property
    def idle(self) -> bool: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=_Pooled)


class _Pool(Generic[C]):
    """Idle and used connections, at most `size`; what both kinds of pools share."""

    def __init__(self, opener: ConnectionOpener, *, size: int, patience_s: float) -> None:
        self._opener = opener
        self._size = size
        self._patience_s = patience_s
        self._idle: list[C] = []
        self._used: set[C] = set()

    def close_idle(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _reused(self) -> C | None:
        """An idle connection that still works."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._used.add(connection)
                return connection
            connection.close()
        return None

    def _exhausted(self, patience_s: float) -> StoreUnavailable:
        return StoreUnavailable(
            f"all {self._size} connections of the pool were busy for {patience_s:g} s; look "
            "for plans that hang in pg_stat_activity, or raise pool or hot_pool in the URL"
        )


class SyncPool(_Pool[ThreadConnection]):
    """Connections that threads take turns to use."""

    def __init__(
        self,
        connect: Callable[[], ThreadConnection],
        opener: ConnectionOpener,
        *,
        size: int,
        patience_s: float,
    ) -> None:
        super().__init__(opener, size=size, patience_s=patience_s)
        self._connect = connect
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(size)
        self._waiting = 0

    def take(self, patience_s: float | None = None) -> ThreadConnection:
        """A connection for this thread alone, until it is given back.

        `patience_s`: how long to wait for one, and how long to try while the server refuses more,
        if not as long as usual.
        """
        longest_s = self._patience_s if patience_s is None else patience_s
        if not (self._slots.acquire(blocking=False) or self._wait(longest_s)):
            raise self._exhausted(longest_s)
        try:
            with self._lock:
                connection = self._reused()
            if connection is None:
                connection = self._opener.open(self._connect, patience_s=patience_s)
                self._used.add(connection)
        except BaseException:
            self._slots.release()
            raise
        return connection

    def give(self, connection: ThreadConnection) -> None:
        """Keep it for the next thread, unless it cannot be used again."""
        with self._lock:
            scarce = self._opener.scarce and not self._waiting
            kept = connection in self._used and connection.idle and not scarce
            self._used.discard(connection)
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()
        self._slots.release()

    def close_idle(self) -> None:
        with self._lock:
            super().close_idle()

    def close(self) -> None:
        """Close idle connections now, the others when they come back; later use opens new ones."""
        with self._lock:
            self._used.clear()
            super().close_idle()

    def _wait(self, longest_s: float) -> bool:
        self._waiting += 1
        try:
            return self._slots.acquire(timeout=longest_s)
        finally:
            self._waiting -= 1


class AsyncPool(_Pool[LoopConnection]):
    """Connections of one event loop, used in its thread only."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[LoopConnection]],
        opener: ConnectionOpener,
        *,
        size: int,
        patience_s: float,
    ) -> None:
        super().__init__(opener, size=size, patience_s=patience_s)
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(size)
        self._end_of_loop: AsyncGenerator[None, None] | None = None
        self._closed = False
        self.groups: Any = None  #: the runner's plans that share commits in this loop

    async def take(self) -> LoopConnection:
        """A connection for the caller alone, until it is given back."""
        if self._slots.locked():
            await self._wait()
        else:
            await self._slots.acquire()  # does not wait
        try:
            return self._reused() or await self._opened()
        except BaseException:
            self._slots.release()
            raise

    def give(self, connection: LoopConnection) -> None:
        """Keep it for the next caller, unless it cannot be used again."""
        self._used.discard(connection)
        scarce = self._opener.scarce
        old = scarce and connection.age_s > _LIFE_S
        if self._closed or old or not connection.idle:
            connection.close()
            if old:
                self._opener.yield_turn()
        else:
            self._idle.append(connection)
            if scarce:
                self._loop.call_later(_IDLE_S, self.close_idle)
        self._slots.release()

    def close(self) -> None:
        """Close idle connections now, the others when they come back, or when the loop ends."""
        self._closed = True
        self.close_idle()
        if not self._loop.is_running():
            self._close_used()

    async def _opened(self) -> LoopConnection:
        if self._end_of_loop is None:
            self._end_of_loop = self._watch_loop()
            await anext(self._end_of_loop)
        connection = await self._opener.aopen(self._connect, self._reused)
        self._used.add(connection)
        return connection

    async def _watch_loop(self) -> AsyncGenerator[None, None]:
        """Wait for the end of the loop: `asyncio.run` closes the generators that are suspended."""
        try:
            yield
        finally:
            self._closed = True
            self.close_idle()
            self._close_used()

    def _close_used(self) -> None:
        """Close connections whose callers will not come back."""
        while self._used:
            self._used.pop().close()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._exhausted(self._patience_s) from None


class LoopPools:
    """A pool for each event loop."""

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
                for closed in [known for known in self._pools if known.is_closed()]:
                    self._pools.pop(closed).close()
                pool = self._pools[loop] = self._make()
        return pool

    def close(self) -> None:
        """Close every loop's connections, each in the thread its loop runs in."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            call_in_loop(loop, pool.close)

    def close_idle(self) -> None:
        """Close every loop's idle connections, each in the thread its loop runs in."""
        with self._lock:
            pools = tuple(self._pools.items())
        for loop, pool in pools:
            call_in_loop(loop, pool.close_idle)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in the thread of a loop that runs elsewhere; here, if it is ours or does not run."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    try:
        if loop is not here and loop.is_running():
            loop.call_soon_threadsafe(call)
            return
    except RuntimeError:  # it was closed just now
        pass
    call()


def _nothing(*_: float) -> None:
    pass
