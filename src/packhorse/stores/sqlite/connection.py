# SPDX-License-Identifier: MIT
"""Open a SQLite file with the right settings, and translate its errors."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from packhorse.core.durations import microseconds
from packhorse.errors import ConfigError, StoreError, StoreRefused, StoreUnavailable

#: Device and inode of a file, whatever its name.
Identity = tuple[int, int]

#: The message of SQLite when another connection holds the lock beyond the busy timeout.
LOCKED: Final = "database is locked"

#: Errors for a value that SQLite or its driver can never store.
_REFUSED: Final = (sqlite3.DataError, OverflowError, UnicodeError)
#: Errors of a statement that fails.
FAILURES: Final = (sqlite3.Error, *_REFUSED)

#: RETURNING and UPDATE FROM.
_VERSION_MIN: Final = (3, 35, 0)
_SYNCHRONOUS: Final = ("FULL", "NORMAL", "OFF", "EXTRA")
#: The byte of the file beside the log that a writer locks.
_WRITE_LOCK: Final = "120"
#: Between two tries to turn the write-ahead log on.
_LOG_RETRY_S: Final = 0.02
#: Enough for all statements, and for some per task.
_STATEMENTS_CACHED: Final = 2048
#: Page cache of each connection: the hot pages are few, and more would look like a leak.
_CACHE_KIBIBYTES: Final = 4000
#: A commit that was written and then could not be made safe may still be found after a crash.
_IN_DOUBT: Final = "SQLITE_IOERR_FSYNC"
#: SQLite keeps milliseconds in 32 bits, and does not wait at all if they overflow.
_BUSY_TIMEOUT_S_MAX: Final = 1_000_000.0


_CANNOT_OPEN: Final = "unable to open database file"
_FOLDER: Final = "it is a folder; name a file in it, such as {path}/jobs.db"
#: Messages of SQLite for problems that may pass, and the advice for each.
_UNAVAILABLE: Final[Mapping[str, str]] = MappingProxyType(
    {
        LOCKED: "{holder}, or raise busy_timeout",
        "database or disk is full": "free some space; nothing of this write was kept",
        _CANNOT_OPEN: "check that the folder exists and may be written",
        "attempt to write a readonly database": "the file may not be written by this user",
        "disk I/O error": "the disk or its file system has a problem",
        "locking protocol": "too many processes are opening it at once; try again",
    }
)
_RESCUE: Final = (
    "it is damaged: stop all that use it, and bring back a backup, or save what can be read with "
    "'sqlite3 {path} .recover'"
)
#: The same for problems that do not pass.
_DAMAGED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "file is not a database": "something else has written it: check the path in the URL, and "
        "name a file of its own",
        "disk image is malformed": _RESCUE,
        "malformed database schema": _RESCUE,
    }
)


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """Where the file is and how it is opened."""

    path: Path
    #: FULL survives a power cut; NORMAL may lose the last commits in one, never in a crash.
    synchronous: str = "FULL"
    #: How long to wait for another process's write before giving up.
    busy_timeout_s: float = 10.0

    @classmethod
    def from_url(cls, url: str) -> SqliteSettings:
        """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=NORMAL`."""
        before, _, rest = url.partition("sqlite:///")
        named, _, query = rest.partition("?")
        shown = "the URL" if "@" in url else repr(url)  # it may be another store's, with a password
        path = os.fsdecode(unquote_to_bytes(os.fsencode(named)))
        if before or path in ("", ":memory:") or "\0" in path or "#" in rest:
            raise ConfigError(
                f"{shown} names no SQLite file; write sqlite:///jobs.db (relative to the working "
                "directory) or sqlite:////var/lib/jobs.db, with # as %23 and ? as %3F; "
                "for memory use memory://"
            )
        options = dict(parse_qsl(query, keep_blank_values=True))
        synchronous = options.pop("synchronous", "FULL").upper()
        busy_us = microseconds(options.pop("busy_timeout", "10s"), setting="busy_timeout")
        if synchronous not in _SYNCHRONOUS or options:
            wrong = ", ".join(options) or f"synchronous={synchronous}"
            raise ConfigError(
                f"{shown}: {wrong} is not an option of a SQLite URL; there are "
                f"synchronous ({', '.join(_SYNCHRONOUS)}) and busy_timeout (such as 10s)"
            )
        busy_timeout_s = min(busy_us / 1_000_000, _BUSY_TIMEOUT_S_MAX)
        return cls(Path(path).absolute(), synchronous, busy_timeout_s)


class OneConnection:
    """Has a connection of its own, opened when needed, which is closed while the process forks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held while the connection is in use
        self._connection: sqlite3.Connection | None = None

    def disconnect(self) -> None:
        """Close the connection once what runs now is finished; later use opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """Before a fork: close the connection, and open none before it is over."""
        self._lock.acquire()
        self.disconnect()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent."""
        with suppress(RuntimeError):  # it was not held: something interrupted `before_fork`
            self._lock.release()


def connect(
    settings: SqliteSettings,
    *,
    patient: bool = True,
    kind: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun explicitly.

    Unless `patient`, a statement fails at once when another connection has the lock.
    """
    if sqlite3.sqlite_version_info < _VERSION_MIN:
        raise ConfigError(
            f"SQLite {sqlite3.sqlite_version} is too old; Packhorse needs 3.35 or newer: "
            "use a Python built with a newer SQLite"
        )
    try:
        connection = sqlite3.connect(
            settings.path,
            timeout=settings.busy_timeout_s if patient else 0.0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_CACHED,
            factory=kind,
        )
    except sqlite3.Error as error:
        raise translated(error, settings.path) from error
    try:
        _use_write_ahead_log(connection, settings)
        connection.execute(f"pragma synchronous = {settings.synchronous}")
        connection.execute(f"pragma cache_size = -{_CACHE_KIBIBYTES}")
        connection.execute("pragma temp_store = memory")
    except sqlite3.Error as error:
        connection.close()
        raise translated(error, settings.path) from error
    return connection


def file_at(path: Path) -> Identity | None:
    """Return which file is there now; None: there is none, or it may not be read."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked again and again, and this costs half as much
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _use_write_ahead_log(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    """Turn the log on. Processes that do so at once make SQLite say "locked" without waiting."""
    tries = max(1, int(settings.busy_timeout_s / _LOG_RETRY_S))
    for remaining in reversed(range(tries)):
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if LOCKED not in str(error) or remaining == 0:
                raise
            threading.Event().wait(_LOG_RETRY_S)
        else:
            return


def translated(error: Exception, path: Path) -> StoreError:
    """Return an error of Packhorse that says what happened and what to do."""
    text = str(error)
    if isinstance(error, _REFUSED):
        return StoreRefused(
            f"SQLite file {path}: {text}; it can never hold this value: give another one"
        )
    for known, what_to_do in _DAMAGED.items():
        if known in text:
            return StoreError(f"SQLite file {path}: {text}; {what_to_do.format(path=path)}")
    for known, what_to_do in _UNAVAILABLE.items():
        if known in text:
            maybe_stored = getattr(error, "sqlite_errorname", None) == _IN_DOUBT
            advice = _FOLDER if known == _CANNOT_OPEN and path.is_dir() else what_to_do
            holder = _holder(path) if known == LOCKED else ""
            message = f"SQLite file {path}: {text}; {advice.format(path=path, holder=holder)}"
            return StoreUnavailable(message, maybe_stored=maybe_stored)
    return StoreError(f"SQLite file {path}: {text}")


def _holder(path: Path) -> str:
    """Return who keeps others from writing, as far as the system tells, and what to do."""
    pid = 0
    with suppress(OSError, ValueError):
        inode = os.stat(f"{path}-shm").st_ino  # noqa: PTH116 - as above
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, _, _, mode, owner, file, first, *_ = line.split()
            if (mode, first) == ("WRITE", _WRITE_LOCK) and file.endswith(f":{inode}"):
                pid = int(owner)
    if pid == os.getpid():
        return (
            "this process has had a transaction of its own open on the file for too long: commit "
            "it before you submit, or submit in it with using(tx=connection)"
        )
    who = f"process {pid}" if pid > 0 else "another process, or a transaction of this one,"
    return f"{who} has held its write lock for too long; see whether it is stuck"
