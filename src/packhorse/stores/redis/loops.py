# SPDX-License-Identifier: MIT
"""One connection for each event loop, shared by all that runs on it.

Redis answers in the order it was asked, one after the other, so more connections would not make
it faster: requests are sent as they come, those of one round of the loop together, and each is
told its reply. A connection that stays silent for too long is given up with all who wait on it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from hiredis import PushNotification

from packhorse.stores.redis.connection import Wire
from packhorse.stores.redis.faults import Lost
from packhorse.stores.redis.flow import Flow

__all__ = ["Connecting", "LoopLine"]


class LoopLine:
    """The connection of one event loop; made when needed, and again after it was lost."""

    def __init__(
        self, connect: Callable[[], Wire], outdated: Callable[[Wire], bool], timeout_s: float
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._outdated = outdated
        self._timeout_s = timeout_s
        self._talk: _Talk | None = None
        self._connecting: Connecting | None = None

    async def ask(self, request: bytes) -> Any:
        """One exchange; an error reply is returned, not raised."""
        talk = self._talk
        while talk is None or talk.ended or self._outdated(talk.wire):
            if talk is not None:
                talk.finish()
            talk = await self._connected()
        return await talk.ask(request)

    def close(self) -> None:
        """Close the connection once everybody who waits on it has been answered."""
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.finish()
        if self._connecting is not None and not self.loop.is_running():
            self._connecting.abandon()  # else somebody waits for it, and may have it

    async def _connected(self) -> _Talk | None:
        if self._connecting is None:
            self._connecting = Connecting(self._connect)
            self._connecting.future.add_done_callback(self._take_over)
        made = self._connecting.future
        await asyncio.shield(made)
        # Where it was made in this very round of the loop, nothing was waited for: its callback is
        # still to come, and whoever asked in a loop would keep it from ever coming.
        self._take_over(made)
        return self._talk

    def _take_over(self, made: asyncio.Future[Wire]) -> None:
        if self._connecting is None or self._connecting.future is not made:
            return  # done already
        self._connecting = None
        if not made.cancelled() and made.exception() is None:
            self._talk = _Talk(made.result(), self.loop, self._timeout_s)


class _Talk:
    """What is said on one connection, from its first request to its end."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.wire = wire
        self.ended = False
        self._loop = loop
        self._timeout_s = timeout_s
        self._flow = Flow(wire, loop, replied=self._replied, lost=self._was_lost)
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._finishing = False

    def ask(self, request: bytes) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(request)
        self._waiting.append((future, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look_at_time)
        return future

    def finish(self) -> None:
        """End when everybody has been answered; at once if the loop does not turn."""
        self._finishing = True
        if not self._waiting or not self._loop.is_running():
            self._end()
            self._fail(Lost("the store was closed", sent=True))

    def _send(self) -> None:
        if not self.ended:
            request, self._unsent = b"".join(self._unsent), []
            self._flow.send(request)

    def _replied(self, reply: Any) -> None:
        if isinstance(reply, PushNotification):  # said by the server unasked
            return
        future, _ = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)
        if self._finishing and not self._waiting:
            self._end()

    def _look_at_time(self) -> None:
        """Give up a connection whose oldest request has waited too long."""
        self._timer = None
        if not self._waiting:
            return
        _, since = self._waiting[0]
        rest_s = since + self._timeout_s - self._loop.time()
        if rest_s > 0:
            self._timer = self._loop.call_later(rest_s, self._look_at_time)
        else:
            self._end()
            self._fail(Lost("the server does not answer", sent=True, silent=True))

    def _was_lost(self, trouble: str) -> None:
        self._end()
        self._fail(Lost(trouble, sent=True))

    def _fail(self, error: Lost) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done() and not self._loop.is_closed():
                future.set_exception(error)

    def _end(self) -> None:
        self.ended = True
        self._flow.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connecting:
    """A connection on its way: made in a thread of its own, told to the event loop.

    It takes time, and the loop's own threads may all be taken.
    """

    def __init__(self, connect: Callable[[], Wire]) -> None:
        self.future: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
        self._connect = connect
        self._lock = threading.Lock()
        self._wire: Wire | None = None
        self._abandoned = False
        try:
            threading.Thread(target=self._work, name="packhorse-redis", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            self._tell(Lost(f"no thread to connect with ({error})", sent=False))

    def abandon(self) -> None:
        """Nobody waits for it any more: close it, now or when it is made."""
        with self._lock:
            self._abandoned = True
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _work(self) -> None:
        trouble: BaseException | None = None
        try:
            wire = self._connect()
        except BaseException as error:  # noqa: BLE001 - belongs to those who wait for it
            trouble = error
        else:
            with self._lock:
                self._wire = wire
                trouble = Lost("the store was closed", sent=False) if self._abandoned else None
        try:
            self.future.get_loop().call_soon_threadsafe(self._tell, trouble)
        except RuntimeError:  # the loop was closed meanwhile
            trouble = Lost("the event loop was closed", sent=False)
        if trouble is not None:
            self.abandon()

    def _tell(self, trouble: BaseException | None) -> None:
        with self._lock:
            wire, self._wire = self._wire, None
        if self.future.done():
            if wire is not None:
                wire.close()
        elif wire is not None:
            self.future.set_result(wire)
        else:
            self.future.set_exception(trouble or Lost("the store was closed", sent=False))
            self.future.exception()  # whoever waits is told; perhaps nobody does any more
