# SPDX-License-Identifier: MIT
"""Connections for threads: taken for one exchange, given back, never more than a bound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from packhorse.stores.redis.connection import Wire
from packhorse.stores.redis.faults import Lost

__all__ = ["WirePool"]

#: How long closing waits for a thread that is in the middle of an exchange.
_CLOSE_PATIENCE_S: Final = 10.0


class WirePool:
    """Lends connections to threads, the one used last first, so that idle ones age and go."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        outdated: Callable[[Wire], bool],
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
        self._idle: list[Wire] = []
        self._closing = threading.Lock()

    def ask(self, request: bytes) -> Any:
        """One exchange on a connection of its own; what interrupts it costs that connection."""
        try:
            self._room.get(timeout=self._patience_s)
        except Empty:
            raise Lost(
                f"all {self._limit} connections of this process are in use; raise connections=",
                sent=False,
            ) from None
        try:
            wire = self._fresh()
            try:
                reply = wire.ask(request)
            except BaseException:  # an answer may still come, and would be taken for the next one
                wire.close()
                raise
            self._idle.append(wire)
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

    def _fresh(self) -> Wire:
        """An idle connection that the server has not given up meanwhile, or a new one."""
        for _ in range(self._limit):
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            if not self._outdated(wire) and not wire.is_stale():
                return wire
            wire.close()
        return self._connect()
