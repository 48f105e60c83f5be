# SPDX-License-Identifier: MIT
"""Receive wake-ups: one socket and one poll of the file for all listeners of an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from packhorse.core.clock import new_id
from packhorse.errors import StoreError
from packhorse.stores.listener import ANYTHING, TopicListener
from packhorse.stores.sqlite.connection import Identity, SqliteSettings, connect, file_at

#: How often the file is polled for commits while a listener waits.
POLL_S: Final = 0.1
#: Longer topics are not sent: polling finds them.
TOPIC_BYTES_MAX: Final = 1024
#: Datagrams read in one go, so that a flood cannot starve the loop.
_READ_MAX: Final = 256
#: Characters of a socket's name: enough to be unique, few enough for a socket's path.
_NAME_LENGTH: Final = 12
#: How often a folder that others remove is made again for a socket.
_TRIES: Final = 100


class ListenerSocket:
    """The socket and poll that listeners of one event loop share; closed with the last one."""

    def __init__(
        self, settings: SqliteSettings, folder: Path, gone: Callable[[ListenerSocket], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._gone = gone
        self._closed = False
        self._listeners: set[TopicListener] = set()
        self._by_topic: dict[str, set[TopicListener]] = {}
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.RLock()  # a fork closes the connection
        self._connection: sqlite3.Connection | None = connect(settings)
        self._file: Identity | None = file_at(
            settings.path
        )  # the file that the connection has open
        self._version = 0
        self._has_changed()
        self._address = folder / new_id()[-_NAME_LENGTH:]
        self._socket = _bind(self._address, settings.path)
        if self._socket is not None:
            self.loop.add_reader(self._socket, self._read)

    def listener(self, topics: frozenset[str]) -> TopicListener:
        listener = TopicListener(topics, self._leave, self._polling)
        self._listeners.add(listener)
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(listener)
        return listener

    def close(self) -> None:
        """Close all in the event loop's own thread, or when it does not run."""
        if self._closed:
            return
        self._closed = True
        self.disconnect()
        if self._timer is not None:
            self._timer.cancel()
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

    def disconnect(self) -> None:
        """Close the connection; a listener that still waits opens another with the next poll."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def hold(self) -> None:
        """Before a fork: close the connection, and open none before `let_go`."""
        self._lock.acquire()
        self.disconnect()

    def let_go(self) -> None:
        """After a fork, in the parent."""
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def forget(self) -> None:
        """After a fork, in the child: the address and the loop's watch are the parent's."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def _leave(self, listener: TopicListener) -> None:
        self._listeners.discard(listener)
        for topic in listener.topics:
            others = self._by_topic.get(topic, set())
            others.discard(listener)
            if not others:
                self._by_topic.pop(topic, None)
        if not self._listeners:
            self.close()

    @contextmanager
    def _polling(self) -> Iterator[None]:
        """Poll the file while a listener waits."""
        self._waiting += 1
        try:
            if self._timer is None:
                self._poll()
            yield
        finally:
            self._waiting -= 1

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101 - registered only with a socket
        heard = set()
        for _ in range(_READ_MAX):
            try:
                heard.add(self._socket.recv(TOPIC_BYTES_MAX + 1))
            except OSError:
                break
        for topic in (message.decode("utf-8", "replace") for message in heard):
            for listener in self._by_topic.get(topic, ()):
                listener.hear((topic,))

    def _poll(self) -> None:
        """Look for commits, at most once in `POLL_S`, however many listeners wait."""
        self._timer = None
        if self._closed or not self._waiting:
            return
        self._timer = self.loop.call_later(POLL_S, self._poll)
        if self._has_changed():
            for listener in self._listeners:
                listener.hear((ANYTHING,))  # each finds out for itself what has changed

    def _has_changed(self) -> bool:
        """Whether another connection may have committed since the last call."""
        with self._lock, suppress(sqlite3.Error, StoreError):
            file = file_at(self._settings.path)
            if file is None:
                return True  # the next plan reports that it is gone
            if file != self._file:
                self.disconnect()
            opened = self._connection is None
            if self._connection is None:
                self._connection, self._file = connect(self._settings), file
            before = self._version
            self._version = self._connection.execute("pragma data_version").fetchone()[0]
            return (
                opened or self._version != before
            )  # the number is one of the connection, not of the file
        return False


def is_trusted(folder: os.stat_result, path: Path) -> bool:
    """Whether this user or the file's owner made the folder of sockets: any user could."""
    return folder.st_uid == os.getuid() or folder.st_uid == path.stat().st_uid


def _bind(address: Path, path: Path) -> socket.socket | None:
    """Bind a socket to the address; None if that fails: then polling must do."""
    try:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except (OSError, AttributeError):
        return None
    bound.setblocking(False)
    for _ in range(_TRIES):
        try:
            with suppress(FileExistsError):  # `exist_ok` would check it again, when it may be gone
                address.parent.mkdir(mode=0o700)
            if not is_trusted(address.parent.stat(), path):
                break
            bound.bind(str(address))
        except FileNotFoundError:
            continue  # the last listener to leave removed the folder in between
        except OSError:
            break
        return bound
    bound.close()
    return None
