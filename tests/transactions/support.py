# SPDX-License-Identifier: MIT
"""An app with a table of the user's own beside it, and transactions of every library on both."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from packhorse import Packhorse
from packhorse.stores.postgres.settings import PostgresSettings


@dataclass(frozen=True)
class Transaction:
    """A transaction that is open: what `tx=` takes, and how to work beside that."""

    tx: Any
    execute: Callable[[str], Any]
    savepoint: Callable[[], AbstractContextManager[Any]]


class Orders:
    """An app on one store, and the table `orders` in the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Packhorse(url)
        self.ran: list[str] = []
        self.is_sqlite = url.startswith("sqlite:")
        self.path = url.removeprefix("sqlite:///")
        self.conninfo = "" if self.is_sqlite else PostgresSettings.from_url(url).conninfo
        self.table = "orders" if self.is_sqlite else f"orders_{url.rpartition('_')[2]}"
        self.send = self.app.task(name="send")(self._send)

    def _send(self, order: str) -> str:
        self.ran.append(order)
        return order.upper()

    def __enter__(self) -> Self:
        self.app.store.migrate()
        with self.plain() as connection:
            connection.execute(f"create table {self.table} (name text)")
            connection.commit()
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()
        if not self.is_sqlite:
            with self.plain() as connection:
                connection.execute(f"drop table {self.table}")
                connection.commit()

    @contextlib.contextmanager
    def plain(self) -> Iterator[Any]:
        """A connection of the driver itself."""
        connect = sqlite3.connect if self.is_sqlite else psycopg.connect
        where: Any = self.path if self.is_sqlite else self.conninfo
        with contextlib.closing(connect(where)) as connection:
            yield connection

    def insert(self, name: str) -> str:
        """The statement that adds an order."""
        return f"insert into {self.table} values ('{name}')"

    def names(self) -> list[str]:
        """The orders that are there, seen from aside."""
        with self.plain() as connection:
            rows = connection.execute(f"select name from {self.table} order by name").fetchall()
            return [name for (name,) in rows]

    def run(self) -> list[str]:
        """Run all that can be run; what ran, in order."""
        self.app.run(burst=True, concurrency=1)
        return self.ran

    def sqlalchemy_url(self, driver: str) -> str:
        if self.is_sqlite:
            return f"sqlite+{driver}:///{self.path}"
        rest = self.url.partition("://")[2].partition("?")[0]
        return f"postgresql+{driver}://{rest}"

    # ------------------------------------------------------------------------------- transactions

    @contextlib.contextmanager
    def driver(self) -> Iterator[Transaction]:
        """`sqlite3` or psycopg."""
        with self.plain() as connection:
            if self.is_sqlite:
                connection.isolation_level = None
            connection.execute("begin")

            @contextlib.contextmanager
            def savepoint() -> Iterator[None]:
                connection.execute("savepoint here")
                try:
                    yield
                except BaseException:
                    connection.execute("rollback to here")
                    raise
                connection.execute("release here")

            yield Transaction(connection, connection.execute, savepoint)
            connection.commit()

    @contextlib.contextmanager
    def sqlalchemy_connection(self) -> Iterator[Transaction]:
        with self._engine() as engine, engine.begin() as connection:
            execute = _as_text(connection.execute)
            yield Transaction(connection, execute, connection.begin_nested)

    @contextlib.contextmanager
    def sqlalchemy_session(self) -> Iterator[Transaction]:
        with self._engine() as engine, Session(engine) as session, session.begin():
            yield Transaction(session, _as_text(session.execute), session.begin_nested)

    @contextlib.contextmanager
    def _engine(self) -> Iterator[sa.Engine]:
        engine = sa.create_engine(self.sqlalchemy_url("pysqlite" if self.is_sqlite else "psycopg"))
        if self.is_sqlite:
            begin_by_hand(engine)
        try:
            yield engine
        finally:
            engine.dispose()

    @contextlib.contextmanager
    def django(self) -> Iterator[Transaction]:
        from django.db import connections, transaction

        use_django(self)
        with contextlib.closing(connections["orders"]), transaction.atomic("orders"):

            def execute(text: str) -> None:
                with connections["orders"].cursor() as cursor:
                    cursor.execute(text)

            yield Transaction("orders", execute, lambda: transaction.atomic("orders"))

    @contextlib.asynccontextmanager
    async def driver_async(self) -> AsyncIterator[Transaction]:
        """Of psycopg."""
        connection = await psycopg.AsyncConnection.connect(self.conninfo)
        async with connection, connection.transaction():
            yield Transaction(connection, connection.execute, contextlib.nullcontext)

    @contextlib.asynccontextmanager
    async def asyncpg(self) -> AsyncIterator[Transaction]:
        async with (
            asyncpg.create_pool(dsn(self.url), min_size=1) as pool,
            pool.acquire() as connection,
            connection.transaction(),
        ):
            yield Transaction(connection, connection.execute, contextlib.nullcontext)

    @contextlib.asynccontextmanager
    async def sqlalchemy_connection_async(
        self, driver: str = "asyncpg"
    ) -> AsyncIterator[Transaction]:
        async with self._async_engine(driver) as engine, engine.begin() as connection:
            yield Transaction(connection, _as_text(connection.execute), contextlib.nullcontext)

    @contextlib.asynccontextmanager
    async def sqlalchemy_session_async(self, driver: str = "psycopg") -> AsyncIterator[Transaction]:
        async with (
            self._async_engine(driver) as engine,
            AsyncSession(engine) as session,
            session.begin(),
        ):
            yield Transaction(session, _as_text(session.execute), contextlib.nullcontext)

    @contextlib.asynccontextmanager
    async def _async_engine(self, driver: str) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.sqlalchemy_url("aiosqlite" if self.is_sqlite else driver))
        try:
            yield engine
        finally:
            await engine.dispose()


#: Every library that is used without `await`, and those with.
SYNC: Final = (
    Orders.driver,
    Orders.sqlalchemy_connection,
    Orders.sqlalchemy_session,
    Orders.django,
)
ASYNC: Final = (
    Orders.sqlalchemy_connection_async,
    Orders.sqlalchemy_session_async,
    Orders.driver_async,
    Orders.asyncpg,
)


def _as_text(execute: Callable[[Any], Any]) -> Callable[[str], Any]:
    return lambda text: execute(sa.text(text))


def begin_by_hand(engine: sa.Engine) -> None:
    """As SQLAlchemy's documentation advises for savepoints on SQLite."""

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("begin")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)


def dsn(url: str) -> str:
    """Without what only a store reads."""
    return url.partition("?")[0]


@cache
def configured_django() -> None:
    """Set Django up, once in a process, for every test that needs it."""
    import django
    from django.conf import settings

    site = {"ROOT_URLCONF": "tests.web.test_mounted", "ALLOWED_HOSTS": ["*"]}
    settings.configure(DATABASES={}, USE_TZ=True, SECRET_KEY="of tests", **site)
    django.setup()


def use_django(orders: Orders) -> None:
    """Let the alias `orders` of Django name the database of these orders."""
    from django.db import connections

    configured_django()
    where: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": orders.path}
    if not orders.is_sqlite:
        parts = urlsplit(orders.url)
        where = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.removeprefix("/"),
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": str(parts.port or ""),
        }
    with contextlib.suppress(AttributeError):
        del connections["orders"]
    connections.settings = connections.configure_settings({"default": {}, "orders": where})
