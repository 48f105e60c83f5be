# SPDX-License-Identifier: MIT
"""Wake-ups between processes that share a SQLite file.

Every event loop that listens binds a datagram socket in a folder beside the file; whoever commits
something worth hearing sends its topic to all of them. That is an accelerator. Below it lies a
floor that cannot fail: `pragma data_version`, read every 100 ms, changes with every commit.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from packhorse.clock import Clock, SystemClock
from packhorse.stores.sqlite.connection import SqliteSettings
from packhorse.stores.sqlite.listening import TOPIC_BYTES_MAX, Ear, SqliteListener, is_trusted

__all__ = ["SqliteWakeups"]

#: Socket paths may have about 108 bytes; the rest is for the name in the folder.
_FOLDER_BYTES_MAX: Final = 80
#: A folder or socket that changed so short ago may change again without a new time stamp.
_FRESH_NS: Final = 1_000_000_000
#: Who submits one job after the other does not look for new workers each time.
_LOOK_AGAIN_S: Final = 0.002


class SqliteWakeups:
    """Sends to, and makes, the listeners of one file."""

    def __init__(self, settings: SqliteSettings) -> None:
        self._settings = settings
        self._folder = _folder(settings.path)
        self._folder_name = str(self._folder)  # asked for at every submit
        self._time: Clock = SystemClock()  # that of the file system, whatever the store judges by
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._ears: dict[asyncio.AbstractEventLoop, Ear] = {}
        self._known: tuple[int, list[str]] = (-1, [])
        self._looked_s = -_LOOK_AGAIN_S

    def listen(self, topics: frozenset[str]) -> SqliteListener:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._looked_s = -_LOOK_AGAIN_S
            if loop not in self._ears:
                self._forget_closed()
                self._ears[loop] = Ear(self._settings, self._folder, self._drop)
            return self._ears[loop].listener(topics)

    def send_new(self, queue: str) -> None:
        """Tell a queue's workers of a job; who has come in this moment may have to look himself.

        A worker looks when it has come, so it is late by the floor at most, and only then.
        """
        now_s = self._time.monotonic()
        if now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            self._listeners()
        if self._known[1]:
            self._send((f"queue:{queue}",), self._known[1])

    def send(self, topics: Sequence[str]) -> None:
        """Tell every listener, after the commit. What cannot be delivered is left to the floor."""
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
        """Let go of the socket and of every connection; who still listens goes on hearing."""
        with self._lock:
            self._forget_closed()
            ears = list(self._ears.values())
            sender, self._socket = self._socket, None
        if sender is not None:
            sender.close()
        for ear in ears:
            ear.shut()

    def hold(self) -> None:
        """Before a fork: no connection open."""
        self._lock.acquire()
        for ear in self._ears.values():
            ear.hold()

    def let_go(self) -> None:
        """After a fork, in the parent."""
        for ear in self._ears.values():
            ear.let_go()
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def forget(self) -> list[Ear]:
        """After a fork, in the child: those who listen are the parent's, and so are their names."""
        ears = list(self._ears.values())
        for ear in ears:
            ear.forget()
        if self._socket is not None:
            self._socket.close()
        self._lock, self._ears, self._socket = threading.RLock(), {}, None
        return ears

    def _drop(self, ear: Ear) -> None:
        with self._lock:
            if self._ears.get(ear.loop) is ear:
                del self._ears[ear.loop]

    def _forget_closed(self) -> None:
        """Clear up behind event loops that were closed before their listeners."""
        for ear in [ear for loop, ear in self._ears.items() if loop.is_closed()]:
            ear.close()

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
        """The sockets in the folder, read again only when the folder has changed."""
        try:
            folder = os.stat(self._folder_name)  # noqa: PTH116 - on the hot path
            changed_ns = folder.st_mtime_ns
            if changed_ns != self._known[0]:
                trusted = is_trusted(folder, self._settings.path)
                names = os.listdir(self._folder) if trusted else []  # noqa: PTH208 - as above
                self._known = (-1 if self._is_fresh(changed_ns) else changed_ns, names)
        except OSError:
            self._known = (-1, [])
        return self._known[1]

    def _is_fresh(self, changed_ns: int) -> bool:
        return self._time.now_us() * 1000 - changed_ns < _FRESH_NS

    def _deliver(self, sender: socket.socket, message: bytes, path: str) -> None:
        try:
            sender.sendto(message, path)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):  # its process has died
                self._remove_stale(path)

    def _remove_stale(self, path: str) -> None:
        """Remove a dead socket; not one just being bound, nor a file that is none of ours."""
        dead = Path(path).name
        self._known = (-1, [name for name in self._known[1] if name != dead])  # others live on
        with suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISSOCK(found.st_mode) and not self._is_fresh(found.st_mtime_ns):
                os.unlink(path)  # noqa: PTH108 - as above


def _folder(path: Path) -> Path:
    """Beside the file; where that would be too long for a socket, a short name all agree on."""
    real = Path(os.path.realpath(path))  # one file may have several names
    beside = real.with_name(f"{real.name}-wake")
    if len(os.fsencode(beside)) <= _FOLDER_BYTES_MAX:
        return beside
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"packhorse-{os.getuid()}-{digest}"
