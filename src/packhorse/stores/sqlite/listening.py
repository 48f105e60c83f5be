# SPDX-License-Identifier: MIT
"""Hearing wake-ups: one socket and one look at the file for all listeners of an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from packhorse.clock import new_id
from packhorse.errors import StoreError
from packhorse.stores.hearing import ANYTHING, LoopListener
from packhorse.stores.sqlite.connection import Identity, SqliteSettings, connect, file_at

__all__ = ["FLOOR_S", "TOPIC_BYTES_MAX", "Ear", "SqliteListener", "is_trusted"]

#: How often the floor is looked at while somebody waits.
FLOOR_S: Final = 0.1
#: Topics longer than this are not sent; the floor covers them.
TOPIC_BYTES_MAX: Final = 1024
#: Datagrams read in one go, so that a flood cannot starve the loop.
_READ_MAX: Final = 256
#: Characters of a socket's name: enough to be unique, few enough for a socket's path.
_NAME_LENGTH: Final = 12
#: How often a folder that is removed by others is made again for a socket: each time, somebody
#: else must have come and gone in between.
_TRIES: Final = 100


class SqliteListener(LoopListener):
    """One of those that share an ear, which sees to the floor while they wait."""

    def __init__(self, ear: Ear, topics: frozenset[str]) -> None:
        super().__init__()
        self.topics = topics
        self._ear = ear

    async def _wait_for(self, heard: asyncio.Future[None], timeout_s: float | None) -> None:
        await self._ear.wait(super()._wait_for(heard, timeout_s))

    def _leave(self) -> None:
        self._ear.leave(self)


class Ear:
    """What the listeners of one event loop share; it goes when the last of them does."""

    def __init__(self, settings: SqliteSettings, folder: Path, gone: Callable[[Ear], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._gone = gone
        self._closed = False
        self._listeners: set[SqliteListener] = set()
        self._by_topic: dict[bytes, set[SqliteListener]] = {}
        self._waiting = 0
        self._floor: asyncio.TimerHandle | None = None
        self._lock = threading.RLock()  # whoever forks closes the connection
        self._connection: sqlite3.Connection | None = connect(settings)
        self._file: Identity | None = file_at(settings.path)  # the one it is open on
        self._version = 0
        self._has_changed()
        self._address = folder / new_id()[-_NAME_LENGTH:]
        self._socket = _bind(self._address, settings.path)
        if self._socket is not None:
            self.loop.add_reader(self._socket, self._read)

    def listener(self, topics: frozenset[str]) -> SqliteListener:
        listener = SqliteListener(self, topics)
        self._listeners.add(listener)
        for topic in topics:
            self._by_topic.setdefault(topic.encode(), set()).add(listener)
        return listener

    def leave(self, listener: SqliteListener) -> None:
        self._listeners.discard(listener)
        for topic in map(str.encode, listener.topics):
            self._by_topic[topic].discard(listener)
            if not self._by_topic[topic]:
                del self._by_topic[topic]
        if not self._listeners:
            self.close()

    async def wait(self, waiting: Coroutine[Any, Any, None]) -> None:
        """See to the floor while somebody waits."""
        self._waiting += 1
        try:
            if self._floor is None:
                self._look_at_floor()
            await waiting
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """In the event loop's own thread, or when it does not run."""
        if self._closed:
            return
        self._closed = True
        self.shut()
        if self._floor is not None:
            self._floor.cancel()
        if self._socket is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(self._socket)
            self._socket.close()
            with suppress(OSError):
                self._address.unlink()
                self._address.parent.rmdir()  # only the last one can: it must be empty
        for listener in tuple(self._listeners):
            listener.close()
        self._gone(self)

    def shut(self) -> None:
        """Close the connection; who still waits opens another with the next look."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def hold(self) -> None:
        """Before a fork: close the connection, and let nobody open one before `let_go`."""
        self._lock.acquire()
        self.shut()

    def let_go(self) -> None:
        """After a fork, in the parent."""
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def forget(self) -> None:
        """After a fork, in the child: the address and the loop's watch are the parent's."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101 - registered only with a socket
        heard = set()
        for _ in range(_READ_MAX):
            try:
                heard.add(self._socket.recv(TOPIC_BYTES_MAX + 1))
            except OSError:
                break
        for topic in heard & self._by_topic.keys():
            for listener in self._by_topic[topic]:
                listener.hear((topic.decode(),))

    def _look_at_floor(self) -> None:
        """Has anybody committed? At most once in `FLOOR_S`, however often somebody waits."""
        self._floor = None
        if self._closed or not self._waiting:
            return
        self._floor = self.loop.call_later(FLOOR_S, self._look_at_floor)
        if self._has_changed():
            for listener in self._listeners:
                listener.hear((ANYTHING,))

    def _has_changed(self) -> bool:
        """Whether another connection has committed since the last time, as far as can be told."""
        with self._lock, suppress(sqlite3.Error, StoreError):
            file = file_at(self._settings.path)
            if file is None:
                return True  # who looks now finds out
            if file != self._file:
                self.shut()
            anew = self._connection is None
            if self._connection is None:
                self._connection, self._file = connect(self._settings), file
            before = self._version
            self._version = self._connection.execute("pragma data_version").fetchone()[0]
            return anew or self._version != before  # a new connection counts anew
        return False


def is_trusted(folder: os.stat_result, path: Path) -> bool:
    """Whether a folder of sockets is ours or the file's owner's: anybody may name one like it."""
    return folder.st_uid == os.getuid() or folder.st_uid == path.stat().st_uid


def _bind(address: Path, path: Path) -> socket.socket | None:
    """A socket at the address, or None where there can be none: the floor is left."""
    try:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except (OSError, AttributeError):
        return None
    bound.setblocking(False)
    for _ in range(_TRIES):
        try:
            with suppress(FileExistsError):  # `exist_ok` would look again, and find it gone
                address.parent.mkdir(mode=0o700)
            if not is_trusted(address.parent.stat(), path):
                break
            bound.bind(str(address))
        except FileNotFoundError:
            continue  # whoever left last removed the folder in between
        except OSError:
            break
        return bound
    bound.close()
    return None
