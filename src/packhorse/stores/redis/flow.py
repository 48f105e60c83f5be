# SPDX-License-Identifier: MIT
"""A connection that an event loop reads and writes without ever waiting for it.

The socket is watched directly, not through a transport: any number of requests are under way at
once, what was asked in one round of the loop leaves in one packet, and a loop that was closed
behind our back leaves nothing to clean up but a socket.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable
from typing import Any, Final

from packhorse.stores.redis.connection import NOTHING, READ_BYTES, Wire
from packhorse.stores.redis.faults import ReplyError

__all__ = ["Flow"]

#: Reads in one go, so that a flood cannot starve the loop.
_READS_MAX: Final = 16
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Flow:
    """Requests out, replies in, in the event loop that made it."""

    def __init__(
        self,
        wire: Wire,
        loop: asyncio.AbstractEventLoop,
        *,
        replied: Callable[[Any], None],
        lost: Callable[[str], None],
    ) -> None:
        self._wire = wire
        self._loop = loop
        self._replied = replied
        self._lost = lost
        self._unsent = bytearray()
        self._open = True
        wire.sock.setblocking(False)
        self._loop.add_reader(wire.sock, self._read)

    def send(self, request: bytes) -> None:
        """Send now what the socket takes, and the rest when it takes more."""
        if self._unsent:
            self._unsent += request
            return
        try:
            sent = self._wire.sock.send(request)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            self._end(f"the connection broke ({error})")
            return
        if sent < len(request):
            self._unsent += memoryview(request)[sent:]
            self._loop.add_writer(self._wire.sock, self._send_rest)

    def pump(self, patience_s: float) -> bool:
        """Wait for replies and handle them, here and now; False when none came in time."""
        if not self._open:
            return False
        readable, _, _ = select.select([self._wire.sock], [], [], patience_s)
        if readable:
            self._read()
        return bool(readable)

    def close(self) -> None:
        """Also after the loop was closed, and in a thread other than its own if it stands still."""
        if not self._open:
            return
        self._open = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._wire.sock)
            self._loop.remove_writer(self._wire.sock)
        self._wire.close()

    def _send_rest(self) -> None:
        try:
            sent = self._wire.sock.send(self._unsent)
        except _NOT_NOW:
            return
        except OSError as error:
            self._end(f"the connection broke ({error})")
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._wire.sock)

    def _read(self) -> None:
        if not self._open:  # asked to read once more, and closed since
            return
        trouble = self._receive()
        try:
            while (reply := self._wire.reader.gets()) is not NOTHING:
                self._replied(reply)
        except ReplyError as error:
            trouble = f"the server speaks another language ({error})"
        if trouble is not None:
            self._end(trouble)

    def _receive(self) -> str | None:
        """Feed what has arrived to the reader; says what ended the connection, if anything did."""
        wire = self._wire
        for _ in range(_READS_MAX):
            try:
                received = wire.sock.recv(READ_BYTES)
            except _NOT_NOW:
                return None
            except OSError as error:
                return f"the connection broke ({error})"
            if not received:
                return "the server closed the connection"
            wire.reader.feed(received)
            if len(received) < READ_BYTES and not wire.tls:
                return None
        # What TLS has already unpacked would not wake us again.
        self._loop.call_soon(self._read)
        return None

    def _end(self, trouble: str) -> None:
        if self._open:
            self.close()
            self._lost(trouble)
