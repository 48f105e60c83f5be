# SPDX-License-Identifier: MIT
"""The user's database that an outbox lies in: an SQLAlchemy engine, or a URL."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

from packhorse.client.user_connections import UserConnection, recognised
from packhorse.client.waiting import WaitLoop
from packhorse.core.interpreter import at_fork
from packhorse.errors import ConfigError
from packhorse.stores.urls import absolute_url

T = TypeVar("T")
Work = Callable[[UserConnection], T]

#: How long SQLite waits for another writer.
_BUSY_S: Final = 5.0
_ACCEPTED: Final = (
    "an SQLAlchemy Engine or AsyncEngine of PostgreSQL or SQLite, or a URL such as "
    "postgresql://host/shop or sqlite:///shop.db"
)


class Database(Protocol):
    """Where an outbox lies."""

    family: str  #: `postgresql` or `sqlite`
    label: str  #: where it is, without secrets

    def work(self, do: Work[T]) -> T:
        """Do something in one transaction of its own; it is committed, unless that raises."""
        ...

    def close(self) -> None:
        """Let go of what was opened here; a later use opens it again."""
        ...


def database_of(given: object, folder: str) -> Database:
    """The database that is named by an engine or a URL; nothing is opened yet."""
    if isinstance(given, str):
        return _by_url(given, folder)
    asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
    if asynchronous is not None and isinstance(given, asynchronous.AsyncEngine):
        return _AsyncEngine(given, asynchronous)
    module = sys.modules.get("sqlalchemy")
    if module is not None and isinstance(given, module.Engine):
        return _Engine(given)
    raise ConfigError(f"outbox() takes {_ACCEPTED}; {given!r} is none of these")


def _by_url(url: str, folder: str) -> Database:
    scheme, _, rest = url.partition("://")
    family = scheme.partition("+")[0]  # as SQLAlchemy writes it
    if family in ("postgresql", "postgres"):
        return _PostgresServer(f"postgresql://{rest}")
    path = unquote(absolute_url(f"sqlite://{rest}", folder)[len("sqlite:///") :].partition("?")[0])
    if family == "sqlite" and rest.startswith("/") and path not in ("", ":memory:"):
        return _SqliteFile(path)
    raise ConfigError(f"outbox() takes {_ACCEPTED}; its scheme is {scheme!r}")


def _fit_family(name: str) -> str:
    if name not in ("postgresql", "sqlite"):
        raise ConfigError(f"outbox() takes {_ACCEPTED}; this engine is one of {name}")
    return name


class _Engine:
    """A sync engine of SQLAlchemy; its pool is used as it is."""

    def __init__(self, engine: Any) -> None:
        self.family = _fit_family(engine.dialect.name)
        self.label = engine.url.render_as_string(hide_password=True)
        self._engine = engine

    def work(self, do: Work[T]) -> T:
        with self._engine.begin() as connection:
            return do(recognised(connection))

    def close(self) -> None:
        """It is the user's own."""


class _AsyncEngine:
    """An async engine. Its pool belongs to an event loop, so that this has one of each.

    What is done on the connection is sync code, which SQLAlchemy runs for it.
    """

    def __init__(self, engine: Any, module: Any) -> None:
        self.family = _fit_family(engine.dialect.name)
        self.label = engine.url.render_as_string(hide_password=True)
        self._given = engine
        self._module = module
        self._loop = WaitLoop()
        self._own: Any = None
        at_fork(self._forget)

    def work(self, do: Work[T]) -> T:
        return self._loop.run(lambda: self._work(do))

    async def _work(self, do: Work[T]) -> T:
        if self._own is None:
            known = self._given.sync_engine
            self._own = self._module.AsyncEngine(
                type(known)(known.pool.recreate(), known.dialect, known.url)
            )
        async with self._own.begin() as connection:
            answer: T = await connection.run_sync(lambda one: do(recognised(one)))
            return answer

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            self._loop.run(own.dispose)
        self._loop.close()

    def _forget(self) -> None:
        self._own = None


class _SqliteFile:
    """A file; each piece of work opens it."""

    family = "sqlite"

    def __init__(self, path: str) -> None:
        self.label = f"sqlite:///{path}"
        self._path = path

    def work(self, do: Work[T]) -> T:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S)
        with contextlib.closing(connection), connection:
            return do(recognised(connection))

    def close(self) -> None:
        """Nothing is left open."""


class _PostgresServer:
    """A server, by a connection of psycopg that is kept."""

    family = "postgresql"

    def __init__(self, url: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(
                "an outbox on PostgreSQL by its URL needs psycopg: install packhorse[postgres], or "
                "give an engine of SQLAlchemy"
            ) from None
        from packhorse.stores.postgres.settings import PostgresSettings  # noqa: PLC0415 - as above

        settings = PostgresSettings.from_url(url)
        self.label = settings.label
        self._connect: Callable[[], Any] = lambda: psycopg.connect(settings.conninfo)
        self._set_up()
        at_fork(self._set_up)

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._kept: Any = None
        self._process = os.getpid()

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Any]:
        with self._lock:
            connection, self._kept = self._kept, None
        if connection is None or connection.closed:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            connection, self._kept = self._kept, connection
        if connection is not None:  # another thread had one too
            connection.close()

    def work(self, do: Work[T]) -> T:
        with self._borrowed() as connection, connection.transaction():
            return do(recognised(connection))

    def close(self) -> None:
        with self._lock:
            connection, self._kept = self._kept, None
        if connection is not None:
            connection.close()
