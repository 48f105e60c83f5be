# SPDX-License-Identifier: MIT
"""A bounded pool of connections for threads; each is borrowed for one exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from packhorse.stores.redis.connection import RedisConnection
from packhorse.stores.redis.faults import Lost

#: How long closing waits for a thread that is in the middle of an exchange.
_CLOSE_PATIENCE_S: Final = 10.0


class ConnectionPool:
    """Lends connections to threads, the one used last first, so that idle ones age and go."""

    def __init__(
        self,
        connect: Callable[[], RedisConnection],
        outdated: Callable[[RedisConnection], bool],
        *,
        limit: int,
        patience_s: float,
    ) -> None:
        self._connect = connect
        self._outdated = outdated
        self._limit = limit
        self._patience_s = patience_s
        self._room: SimpleQueue[None] = SimpleQueue()  # a semaphore that costs a tenth of one
        for _ in range(limit):
            self._room.put(None)
        self._idle: list[RedisConnection] = []
        self._closing = threading.Lock()

    def ask(self, request: bytes) -> Any:
        """Send a request on an idle connection; close the connection if that is interrupted."""
        try:
            self._room.get(timeout=self._patience_s)
        except Empty:
            raise Lost(
                f"all {self._limit} connections of this process are in use; raise connections=",
                sent=False,
            ) from None
        try:
            connection = self._fresh()
            try:
                reply = connection.ask(request)
            except BaseException:  # an answer may still come, and would be taken for the next one
                connection.close()
                raise
            self._idle.append(connection)
            return reply
        finally:
            self._room.put(None)

    def close(self) -> None:
        """Close every connection, after the exchange it is used for."""
        with self._closing:
            taken = 0
            with suppress(Empty):
                while taken < self._limit:
                    self._room.get(timeout=_CLOSE_PATIENCE_S)
                    taken += 1
            with suppress(IndexError):
                for _ in range(self._limit):
                    self._idle.pop().close()
            for _ in range(taken):
                self._room.put(None)

    def _fresh(self) -> RedisConnection:
        """An idle connection that the server has not closed, or a new one."""
        for _ in range(self._limit):
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not self._outdated(connection) and not connection.is_stale():
                return connection
            connection.close()
        return self._connect()
