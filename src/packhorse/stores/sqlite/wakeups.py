# SPDX-License-Identifier: MIT
"""Wake-ups between processes that share a SQLite file.

Every event loop that listens binds one datagram socket in a folder beside the file; a writer sends
the topics of its commit to all of them. That only speeds things up. Listeners also poll
`pragma data_version` every 100 ms, which changes with every commit and cannot fail.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from packhorse.core.clock import Clock, SystemClock, new_id
from packhorse.errors import StoreError
from packhorse.stores.listener import ANYTHING, TopicListener
from packhorse.stores.sqlite.connection import (
    Identity,
    OneConnection,
    SqliteSettings,
    connect,
    file_at,
)

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


class ListenerSocket(OneConnection):
    """The socket and poll that listeners of one event loop share; closed with the last one."""

    def __init__(
        self, settings: SqliteSettings, folder: Path, gone: Callable[[ListenerSocket], None]
    ) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._gone = gone
        self._closed = False
        self._listeners: set[TopicListener] = set()
        self._by_topic: dict[str, set[TopicListener]] = {}
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._connection = connect(settings)
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

    def after_fork_in_child(self) -> None:
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


#: Socket paths may have about 108 bytes; the rest is for the name in the folder.
_FOLDER_BYTES_MAX: Final = 80
#: A socket of this age is being bound.
_FRESH_NS: Final = 1_000_000_000
#: How often a thread that submits one job after the other looks for new workers.
_LOOK_AGAIN_S: Final = 0.002


class SqliteWakeups:
    """Sends to, and makes, the listeners of one file."""

    def __init__(self, settings: SqliteSettings) -> None:
        self._settings = settings
        self._folder = _folder(settings.path)
        self._folder_name = str(self._folder)  # asked for at every submit
        self._time: Clock = SystemClock()  # of the file system, even if the store has another
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._sockets: dict[asyncio.AbstractEventLoop, ListenerSocket] = {}
        self._known: list[str] = []  # the sockets that were there when it looked last
        self._looked_s = -_LOOK_AGAIN_S

    def listen(self, topics: frozenset[str]) -> TopicListener:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._looked_s = -_LOOK_AGAIN_S
            if loop not in self._sockets:
                self._forget_closed()
                self._sockets[loop] = ListenerSocket(self._settings, self._folder, self._drop)
            return self._sockets[loop].listener(topics)

    def send_new(self, queue: str) -> None:
        """Wake a queue's workers for a new job.

        A worker that began to listen just now may be missed: it finds the job by polling.
        """
        now_s = self._time.monotonic()
        if now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            self._listeners()
        if self._known:
            self._send((f"queue:{queue}",), self._known)

    def send(self, topics: Sequence[str]) -> None:
        """Wake every listener, after the commit. What cannot be delivered is found by polling."""
        if topics:
            self._send(topics, self._listeners())

    def _send(self, topics: Sequence[str], names: Sequence[str]) -> None:
        sender = self._sender() if names else None
        if sender is None:
            return
        for topic in topics:
            message = topic.encode()
            if len(message) <= TOPIC_BYTES_MAX:
                for name in names:
                    self._deliver(sender, message, f"{self._folder}/{name}")

    def close(self) -> None:
        """Close the socket and every connection; listeners go on hearing."""
        with self._lock:
            self._forget_closed()
            sockets = list(self._sockets.values())
            sender, self._socket = self._socket, None
        if sender is not None:
            sender.close()
        for one in sockets:
            one.disconnect()

    def before_fork(self) -> None:
        """Before a fork: no connection open."""
        self._lock.acquire()
        for one in self._sockets.values():
            one.before_fork()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent."""
        for one in self._sockets.values():
            one.after_fork_in_parent()
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def after_fork_in_child(self) -> list[ListenerSocket]:
        """After a fork, in the child: the listeners and their addresses are the parent's."""
        sockets = list(self._sockets.values())
        for one in sockets:
            one.after_fork_in_child()
        if self._socket is not None:
            self._socket.close()
        self._lock, self._sockets, self._socket = threading.RLock(), {}, None
        return sockets

    def _drop(self, one: ListenerSocket) -> None:
        with self._lock:
            if self._sockets.get(one.loop) is one:
                del self._sockets[one.loop]

    def _forget_closed(self) -> None:
        """Close the sockets of event loops that were closed before their listeners."""
        for one in [one for loop, one in self._sockets.items() if loop.is_closed()]:
            one.close()

    def _sender(self) -> socket.socket | None:
        """Any thread may send; None where there are no such sockets, or no more of them."""
        if self._socket is not None:
            return self._socket
        with self._lock:
            if self._socket is None:
                try:
                    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                except (OSError, AttributeError):
                    return None
                sender.setblocking(False)
                self._socket = sender
            return self._socket

    def _listeners(self) -> list[str]:
        """The sockets in the folder now."""
        try:
            folder = os.stat(self._folder_name)  # noqa: PTH116 - on the hot path
            trusted = is_trusted(folder, self._settings.path)
            self._known = os.listdir(self._folder_name) if trusted else []  # noqa: PTH208 - as above
        except OSError:
            self._known = []
        return self._known

    def _deliver(self, sender: socket.socket, message: bytes, path: str) -> None:
        try:
            sender.sendto(message, path)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):  # its process has died
                self._remove_stale(path)

    def _remove_stale(self, path: str) -> None:
        """Remove a dead socket; not one that is just being bound, nor another kind of file."""
        dead = Path(path).name
        self._known = [name for name in self._known if name != dead]  # the others are alive
        with suppress(OSError):
            found = os.lstat(path)
            old_ns = self._time.now_us() * 1000 - found.st_mtime_ns
            if stat.S_ISSOCK(found.st_mode) and old_ns >= _FRESH_NS:
                os.unlink(path)  # noqa: PTH108 - as above


def _folder(path: Path) -> Path:
    """Beside the file; where that would be too long for a socket, a short name all agree on."""
    real = Path(os.path.realpath(path))  # one file may have several names
    beside = real.with_name(f"{real.name}-wake")
    if len(os.fsencode(beside)) <= _FOLDER_BYTES_MAX:
        return beside
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"packhorse-{os.getuid()}-{digest}"
