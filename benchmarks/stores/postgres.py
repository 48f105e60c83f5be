# SPDX-License-Identifier: MIT
"""PostgreSQL: a database of its own for every measurement, on a server that waits for the disk."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks import machine
from benchmarks.measures import snapshot
from benchmarks.peers.catalogue import invited
from benchmarks.stage import Stage
from benchmarks.stores.lines import Lines
from benchmarks.stores.server_bounds import postgres_bounds
from benchmarks.stores.staging import Databases, staged
from benchmarks.workloads import bare_postgres
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from tests.servers.named import named_server
from tests.servers.postgres import VARIABLE, PostgresServer

#: As the server comes: no figure depends on a setting that a user would have to know of.
_OPTIONS: Final = ("fsync=on", "synchronous_commit=on")
_SHOWN: Final = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
_SESSIONS: Final = "select count(*) from pg_stat_activity where datname = %s"
_BUFFERS: Final = "select blks_read + blks_hit from pg_stat_database where datname = %s"
_END_SECONDS_MAX: Final = 30
_LOOK_SECONDS: Final = 0.02
_METHOD: Final = """
- Every measurement has a new database on one server, which waits for the disk at every commit, for
  everybody alike; before a drain it is vacuumed and analysed.
- The bare loop is the statements alone, through psycopg, on the same event loop, claiming 500 at a
  time, as a Packhorse worker does at most, on one connection while it completes on another.
- The work of a claim is the buffers that the server looks at.
- An old snapshot is held from before the first job of the backlog until after the last.
- Submits are made in turns of a fraction of a second, so that the contestants share every mood of
  the disk; a round's rate is the median turn.
""".strip()


@dataclass(frozen=True, slots=True)
class _Databases:
    """Those of a run on one server, each named after a folder."""

    url: str

    def of(self, folder: Path) -> str:
        """Where a folder's database is."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{_name(folder)}"))

    @contextmanager
    def place(self, folder: Path) -> Iterator[None]:
        """An empty database, dropped afterwards together with connections that are left."""
        with self.connect() as connection:
            connection.execute(f'create database "{_name(folder)}"'.encode())
        try:
            yield
        finally:
            with self.connect() as connection:
                drop = f'drop database if exists "{_name(folder)}" with (force)'
                connection.execute(drop.encode())

    def vacuum(self, folder: Path) -> None:
        """What the server would do by itself sooner or later."""
        with psycopg.connect(self.of(folder), autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def counted(self, folder: Path, action: Callable[[Store], None]) -> float:
        """The buffers looked at; sessions tell of them when they end."""
        before = self._buffers(folder)
        store = open_store(self.of(folder))
        try:
            action(store)
        finally:
            store.close()
        return self._buffers(folder) - before

    def _buffers(self, folder: Path) -> float:
        deadline = time.monotonic() + _END_SECONDS_MAX
        with self.connect() as connection:
            while _number(connection, _SESSIONS, folder):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"sessions of {folder.name} do not end")
                time.sleep(_LOOK_SECONDS)
            return _number(connection, _BUFFERS, folder)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to another database than those that are measured."""
        return psycopg.connect(self.url, autocommit=True)

    def facts(self) -> dict[str, str]:
        """What the server says about itself."""
        with self.connect() as connection:
            version = connection.execute("show server_version").fetchone()
            shown = [(name, connection.execute(f"show {name}").fetchone()) for name in _SHOWN]
        told = ", ".join(f"{name} {row[0]}" for name, row in shown if row)
        return {"PostgreSQL": f"{version[0] if version else 'unknown'}; {told}"}


def _name(folder: Path) -> str:
    return f"packhorse_{folder.name}"


def _number(connection: psycopg.Connection[Any], query: str, folder: Path) -> int:
    row = connection.execute(query.encode(), (_name(folder),)).fetchone()
    return int(row[0]) if row else 0


@contextmanager
def _server(directory: Path) -> Iterator[tuple[str, str]]:
    """The URL of the server that is named, or of a private one; and whose it is."""
    named = named_server(VARIABLE)
    if named is not None:
        yield named, f"named by {VARIABLE}"
        return
    server = PostgresServer(Path(tempfile.mkdtemp(dir=directory)), *_OPTIONS, careful=True)
    try:
        yield server.url(), "the run's own"
    finally:
        server.remove()


@contextmanager
def postgres_stage(
    directory: Path, names: Sequence[str] | None, say: Callable[[str], None]
) -> Iterator[Stage]:
    """Start a server, unless one is named, and invite the peers."""
    with _server(directory) as (url, whose):
        databases = _Databases(url)
        peers = invited("postgres", names, databases.of, say)
        lines = Lines(
            url=databases.of,
            server=databases.of,
            bare_module="benchmarks.workloads.bare_postgres",
            bare_finished=bare_postgres.finished,
            peers=peers,
        )
        yield staged(
            "postgres",
            "Packhorse on PostgreSQL, measured",
            lines,
            Databases(
                databases.of, databases.place, databases.counted, "buffers", databases.vacuum
            ),
            once={"snapshot": snapshot.measure},
            bounds=postgres_bounds,
            method=_METHOD,
            facts={
                **databases.facts(),
                "server": whose,
                "driver": machine.versions_of("psycopg", "psycopg-binary"),
            },
        )
