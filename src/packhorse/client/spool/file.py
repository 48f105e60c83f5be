# SPDX-License-Identifier: MIT
"""The local file that keeps submissions until the store takes them.

One small SQLite file, shared by all processes that name it. Every call opens it again: it is
written only while the store is away, and nothing open can be harmed by a fork.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from packhorse.core.job import NewJob
from packhorse.errors import StoreUnavailable

#: With so many kept, further submissions fail: a disk is not endless.
SUBMISSIONS_MAX: Final = 1_000_000
#: How long one process waits for another that writes.
_BUSY_S: Final = 10.0
_SCHEMA: Final = """
create table if not exists submissions (
    seq integer primary key autoincrement,
    jobs blob not null,
    spooled_us integer not null
);
create table if not exists refused (
    seq integer primary key,
    jobs blob not null,
    spooled_us integer not null,
    refused_us integer not null,
    reason text not null
);
"""
_JOBS: Final = msgspec.json.Decoder(tuple[NewJob, ...])


@dataclass(frozen=True, slots=True)
class SpooledSubmission:
    """One submission that waits for the store."""

    seq: int
    jobs: tuple[NewJob, ...]


class SpoolFile:
    """Submissions in the order they were made."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        #: The process that holds a lock on this file delivers; one at a time keeps the order.
        self.lock_path = self.path.with_name(f"{self.path.name}.lock")

    def append(self, jobs: Sequence[NewJob], *, now_us: int) -> None:
        """Keep one submission at the end; it is on the disk when this returns."""
        with self._opened() as database:
            first, last = database.execute("select min(seq), max(seq) from submissions").fetchone()
            if first is not None and last - first >= SUBMISSIONS_MAX:
                raise StoreUnavailable(
                    f"the store is away and its spool {self.path} holds {SUBMISSIONS_MAX} "
                    "submissions, which is as many as it may: nothing was stored"
                )
            database.execute(
                "insert into submissions (jobs, spooled_us) values (?, ?)",
                (msgspec.json.encode(tuple(jobs)), now_us),
            )

    def first(self, limit: int) -> tuple[SpooledSubmission, ...]:
        """The oldest submissions, at most `limit`."""
        if not self.path.exists():
            return ()
        with self._opened() as database:
            rows = database.execute(
                "select seq, jobs from submissions order by seq limit ?", (limit,)
            ).fetchall()
        return tuple(SpooledSubmission(seq, _JOBS.decode(jobs)) for seq, jobs in rows)

    def remove(self, seq: int) -> None:
        """The store has it."""
        with self._opened() as database:
            database.execute("delete from submissions where seq = ?", (seq,))

    def refuse(self, seq: int, reason: str, *, now_us: int) -> None:
        """Set aside what the store will never take, for an operator to look at."""
        with self._opened() as database:
            database.execute(
                "insert or replace into refused (seq, jobs, spooled_us, refused_us, reason) "
                "select seq, jobs, spooled_us, ?, ? from submissions where seq = ?",
                (now_us, reason, seq),
            )
            database.execute("delete from submissions where seq = ?", (seq,))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; what goes wrong with the file is told as trouble."""
        try:
            with contextlib.closing(
                sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            ) as database:
                database.execute("pragma synchronous = full")
                database.executescript(_SCHEMA)
                database.execute("begin immediate")
                yield database
                database.execute("commit")
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"the spool {self.path} cannot be used: {error}; check the folder and the disk"
            ) from error
