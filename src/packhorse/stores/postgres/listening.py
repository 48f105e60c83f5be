# SPDX-License-Identifier: MIT
"""Hearing wake-ups: one thread and one connection for all listeners of a store in a process.

A channel that looks open may carry nothing: a pooler in transaction mode takes LISTEN and forgets
it. So the thread sends itself a word by the way every wake-up goes, and as long as it does not
hear that, it wakes its listeners by the clock.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from psycopg import Connection, Error

from packhorse.clock import Chance, SystemChance, SystemClock, new_id
from packhorse.stores.hearing import ANYTHING, LoopListener

__all__ = ["FLOOR_S", "Hearing", "PostgresListener"]

#: How often listeners look for themselves while the channel carries nothing.
FLOOR_S: Final = 0.25
#: How long the channel's own test word may take, and how often it is sent.
_TEST_S: Final = 2.0
_TEST_EVERY_S: Final = 60.0
#: Between two tries to connect: from, to.
_RETRY_S: Final = (0.1, 5.0)
#: What a test word begins with; no short topic does.
_TEST: Final = "?"
_STOP_S: Final = 5.0
#: How long a new listener waits for the connection that hears; if it takes longer, it is told
#: that something may have changed meanwhile.
_READY_S: Final = 0.5
#: The connection is kept so long after the last listener has gone: another may come.
_LINGER_S: Final = 10.0


class PostgresListener(LoopListener):
    """One of those that a thread tells what it hears."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, hearing: Hearing, topics: dict[str, str]
    ) -> None:
        super().__init__()
        self.loop = loop
        self.topics = topics  #: by their short names
        self._hearing = hearing

    def tell(self, names: frozenset[str]) -> None:
        """From the thread that hears: short topics, or everything."""
        if ANYTHING in names:
            topics = frozenset({ANYTHING})
        else:
            topics = frozenset(self.topics[name] for name in names & self.topics.keys())
        if topics:
            with suppress(RuntimeError):  # its loop is closed
                self.loop.call_soon_threadsafe(self.hear, topics)

    def _leave(self) -> None:
        self._hearing.leave(self)


class Hearing:
    """The thread that hears, and those it tells."""

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        channel: str,
        tell: Callable[[list[str]], None],
        noticed: Callable[[frozenset[str]], None],
        deserted: Callable[[Hearing], None],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._tell = tell  #: sends payloads by the way every wake-up goes
        self._noticed = noticed  #: the store itself listens, too
        self._deserted = deserted
        self._time = SystemClock()
        self._chance: Chance = SystemChance()
        self._lock = threading.Lock()
        self._listeners: set[PostgresListener] = set()
        self._deserted_at = 0.0
        self._bell = socket.socketpair()  #: ends a wait for the server
        self._ready = threading.Event()
        self._stopped = False
        self._word = ""  #: the test word that was sent and not heard yet
        self.works = False  #: the last test word was heard
        self.trouble = ""
        self._thread = threading.Thread(target=self._serve, name="packhorse-hearing", daemon=True)
        self._thread.start()

    @property
    def is_deserted(self) -> bool:
        return not self._listeners

    @property
    def state(self) -> str:
        if self.works:
            return "by NOTIFY"
        why = f" ({self.trouble})" if self.trouble else ""
        return f"by looking every {FLOOR_S:g} s: NOTIFY was not heard{why}"

    def join(self, listener: PostgresListener) -> None:
        """Tell this one too, from now on."""
        heard_from_now_on = self._ready.wait(_READY_S)
        with self._lock:
            self._listeners = {one for one in self._listeners if not one.loop.is_closed()}
            self._listeners.add(listener)
        if not heard_from_now_on:
            listener.tell(frozenset({ANYTHING}))

    def leave(self, listener: PostgresListener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            self._deserted_at = self._time.monotonic()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread and its connection."""
        if not self._stopped:
            self._stopped = True
            with suppress(OSError):  # the thread has seen it already
                self._bell[1].send(b"!")
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)

    # ------------------------------------------------------------------------- in its own thread

    def _serve(self) -> None:
        pause_s = _RETRY_S[0]
        try:
            while not self._stopped:
                try:
                    self._listen()
                    pause_s = _RETRY_S[0]
                except Exception as error:  # noqa: BLE001 - hearing is tried again, whatever it was
                    self.trouble = " ".join(str(error).split())
                self.works = False
                self._pause(pause_s * (0.5 + self._chance.roll()))
                pause_s = min(pause_s * 2, _RETRY_S[1])
        finally:
            for end in self._bell:
                end.close()

    def _pause(self, span_s: float) -> None:
        """Before the next try to connect; listeners look for themselves meanwhile."""
        until = self._time.monotonic() + span_s
        while not self._stopped and (left_s := until - self._time.monotonic()) > 0:
            self._rung(None, min(left_s, FLOOR_S))
            self._tell_all(frozenset({ANYTHING}))

    def _listen(self) -> None:
        connection = self._connect()
        try:
            connection.execute(f'listen "{self._channel}"'.encode())
            self._ready.set()
            self._tell_all(frozenset({ANYTHING}))  # what was told before was not heard
            self._hear(connection)
        finally:
            self._ready.clear()
            with suppress(Error):
                connection.close()

    def _hear(self, connection: Connection[Any]) -> None:
        tested_at = self._test()
        while not self._stopped:
            now = self._time.monotonic()
            quiet = self.works or now - tested_at < _TEST_S
            self._rung(connection, _TEST_S if quiet else FLOOR_S)
            self._tell_all(self._heard(connection))
            if self._word and self._time.monotonic() - tested_at >= _TEST_S:
                self.works = False
                self._tell_all(frozenset({ANYTHING}))
            if self._time.monotonic() - tested_at >= _TEST_EVERY_S:
                tested_at = self._test()
            if self.is_deserted and self._time.monotonic() - self._deserted_at > _LINGER_S:
                self._deserted(self)

    def _test(self) -> float:
        self._word = f"{_TEST}{new_id()}"
        self._tell([self._word])
        return self._time.monotonic()

    def _heard(self, connection: Connection[Any]) -> frozenset[str]:
        pgconn = connection.pgconn
        pgconn.consume_input()
        names: set[str] = set()
        while (notice := pgconn.notifies()) is not None:
            names.update(notice.extra.decode().split())
        if self._word in names:
            self._word, self.works, self.trouble = "", True, ""
        return frozenset(names)

    def _rung(self, connection: Connection[Any] | None, span_s: float) -> None:
        """Wait for the server, the bell, or the end of the span."""
        poll = select.poll()
        poll.register(self._bell[0], select.POLLIN)
        if connection is not None:
            poll.register(connection.pgconn.socket, select.POLLIN)
        poll.poll(span_s * 1000)

    def _tell_all(self, names: frozenset[str]) -> None:
        if names:
            self._noticed(names)
            with self._lock:
                listeners = tuple(self._listeners)
            for listener in listeners:
                listener.tell(names)
