# SPDX-License-Identifier: MIT
"""Connections of event loops: one for each loop, shared by all that runs on it.

Redis answers in the order it was asked, one after the other, so more connections would not make
it faster. The socket is watched directly, not through a transport: any number of requests are
under way at once, what was asked in one round of the loop leaves in one packet, and a loop that was
closed without notice leaves nothing to clean up but a socket.
"""

from __future__ import annotations

import asyncio
import select
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from hiredis import PushNotification

from packhorse.stores.redis.connection import NOTHING, READ_BYTES, RedisConnection
from packhorse.stores.redis.faults import Lost, ReplyError

#: Reads in one go, so that a flood cannot starve the loop.
_READS_MAX: Final = 16
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SharedConnection:
    """The connection of one event loop; made when needed, and again after it was lost."""

    def __init__(
        self,
        connect: Callable[[], RedisConnection],
        outdated: Callable[[RedisConnection], bool],
        timeout_s: float,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._outdated = outdated
        self._timeout_s = timeout_s
        self._pipeline: _Pipeline | None = None
        self._connecting: Connecting | None = None

    async def ask(self, request: bytes) -> Any:
        """One exchange; an error reply is returned, not raised."""
        pipeline = self._pipeline
        while pipeline is None or pipeline.ended or self._outdated(pipeline.connection):
            if pipeline is not None:
                pipeline.finish()
            pipeline = await self._connected()
        return await pipeline.ask(request)

    def close(self) -> None:
        """Close the connection once all requests on it have been answered."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.finish()
        if self._connecting is not None and not self.loop.is_running():
            self._connecting.abandon()  # else a caller waits for it, and may have it

    async def _connected(self) -> _Pipeline | None:
        if self._connecting is None:
            self._connecting = Connecting(self._connect)
            self._connecting.future.add_done_callback(self._take_over)
        made = self._connecting.future
        await asyncio.shield(made)
        # If it was made in this very round of the loop, `await` did not wait, and the callback has
        # not run yet; a caller that asks in a loop would keep it from ever running.
        self._take_over(made)
        return self._pipeline

    def _take_over(self, made: asyncio.Future[RedisConnection]) -> None:
        if self._connecting is None or self._connecting.future is not made:
            return  # done already
        self._connecting = None
        if not made.cancelled() and made.exception() is None:
            self._pipeline = _Pipeline(made.result(), self.loop, self._timeout_s)


class _Pipeline:
    """The requests on one connection that wait for their replies."""

    def __init__(
        self, connection: RedisConnection, loop: asyncio.AbstractEventLoop, timeout_s: float
    ) -> None:
        self.connection = connection
        self.ended = False
        self._loop = loop
        self._timeout_s = timeout_s
        self._stream = SocketStream(connection, loop, replied=self._replied, lost=self._was_lost)
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
        """End when all requests have been answered; at once if the loop does not run."""
        self._finishing = True
        if not self._waiting or not self._loop.is_running():
            self._end()
            self._fail(Lost("the store was closed", sent=True))

    def _send(self) -> None:
        if not self.ended:
            request, self._unsent = b"".join(self._unsent), []
            self._stream.send(request)

    def _replied(self, reply: Any) -> None:
        if isinstance(reply, PushNotification):  # not a reply
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
        self._stream.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connecting:
    """A connection that a new thread makes for an event loop.

    Connecting takes time, and the loop's own threads may all be busy.
    """

    def __init__(self, connect: Callable[[], RedisConnection]) -> None:
        self.future: asyncio.Future[RedisConnection] = asyncio.get_running_loop().create_future()
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: RedisConnection | None = None
        self._abandoned = False
        try:
            threading.Thread(target=self._work, name="packhorse-redis", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            self._tell(Lost(f"no thread to connect with ({error})", sent=False))

    def abandon(self) -> None:
        """Close it, now or when it is made: no caller waits for it any more."""
        with self._lock:
            self._abandoned = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _work(self) -> None:
        trouble: BaseException | None = None
        try:
            connection = self._connect()
        except BaseException as error:  # noqa: BLE001 - raised in the callers that wait
            trouble = error
        else:
            with self._lock:
                self._connection = connection
                trouble = Lost("the store was closed", sent=False) if self._abandoned else None
        try:
            self.future.get_loop().call_soon_threadsafe(self._tell, trouble)
        except RuntimeError:  # the loop was closed meanwhile
            trouble = Lost("the event loop was closed", sent=False)
        if trouble is not None:
            self.abandon()

    def _tell(self, trouble: BaseException | None) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if self.future.done():
            if connection is not None:
                connection.close()
        elif connection is not None:
            self.future.set_result(connection)
        else:
            self.future.set_exception(trouble or Lost("the store was closed", sent=False))
            self.future.exception()  # or asyncio would log it if no caller is left


class SocketStream:
    """Sends requests and receives replies, in the event loop that made it."""

    def __init__(
        self,
        connection: RedisConnection,
        loop: asyncio.AbstractEventLoop,
        *,
        replied: Callable[[Any], None],
        lost: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._replied = replied
        self._lost = lost
        self._unsent: deque[memoryview] = deque()
        self._open = True
        connection.sock.setblocking(False)
        self._loop.add_reader(connection.sock, self._read)

    def send(self, request: bytes) -> None:
        """Send now what the socket takes, and the rest when it takes more."""
        self._unsent.append(memoryview(request))
        if len(self._unsent) == 1:
            self._send_first()
            if self._unsent and self._open:
                self._loop.add_writer(self._connection.sock, self._send_rest)

    def pump(self, patience_s: float) -> bool:
        """Wait for replies and handle them, here and now; False when none came in time."""
        if not self._open:
            return False
        readable, _, _ = select.select([self._connection.sock], [], [], patience_s)
        if readable:
            self._read()
        return bool(readable)

    def close(self) -> None:
        """Close the socket, even after the loop was closed or from another thread if it stopped."""
        if not self._open:
            return
        self._open = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._connection.sock)
            self._loop.remove_writer(self._connection.sock)
        self._connection.close()

    def _send_rest(self) -> None:
        self._send_first()
        if not self._unsent:
            self._loop.remove_writer(self._connection.sock)

    def _send_first(self) -> None:
        try:
            sent = self._connection.sock.send(self._unsent[0])
        except _NOT_NOW:
            return
        except OSError as error:
            self._end(f"the connection broke ({error})")
            return
        self._unsent[0] = self._unsent[0][sent:]  # no copy
        if not self._unsent[0]:
            self._unsent.popleft()

    def _read(self) -> None:
        if not self._open:  # asked to read once more, and closed since
            return
        trouble = self._receive()
        try:
            while (reply := self._connection.reader.gets()) is not NOTHING:
                self._replied(reply)
        except ReplyError as error:
            trouble = f"the server speaks another language ({error})"
        if trouble is not None:
            self._end(trouble)

    def _receive(self) -> str | None:
        """Feed what has arrived to the reader; says what ended the connection, if anything did."""
        connection = self._connection
        for _ in range(_READS_MAX):
            try:
                received = connection.sock.recv(READ_BYTES)
            except _NOT_NOW:
                return None
            except OSError as error:
                return f"the connection broke ({error})"
            if not received:
                return "the server closed the connection"
            connection.reader.feed(received)
            if len(received) < READ_BYTES and not connection.tls:
                return None
        # What TLS has already unpacked would not wake us again.
        self._loop.call_soon(self._read)
        return None

    def _end(self, trouble: str) -> None:
        if self._open:
            self.close()
            self._lost(trouble)
