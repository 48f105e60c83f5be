# SPDX-License-Identifier: MIT
"""An app whose store is not in the user's database, and an outbox that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from packhorse import Packhorse
from tests.transactions.support import Orders, dsn


class Outboxed(Orders):
    """Orders in a database of the user's own, and jobs in another store."""

    def __init__(
        self, url: str, store_url: str, engine: Callable[[Self], Any] | None = None
    ) -> None:
        super().__init__(url)
        self.store_url = store_url
        self.outbox_table = self.table.replace("orders", "outbox")
        self.use(Packhorse(store_url), engine)

    def use(self, app: Packhorse, engine: Callable[[Self], Any] | None = None) -> None:
        """Submit through this app from now on."""
        self.app = app
        self.send = self.app.task(name="send")(self._send)
        self.given = given = self.url if engine is None else engine(self)
        self.outbox = self.app.outbox(given, table=self.outbox_table)

    @contextlib.contextmanager
    def elsewhere(self, *, outbox: bool = False) -> Iterator[Packhorse]:
        """The same app, as another process has it; without its outbox unless asked for."""
        app = Packhorse(self.store_url)
        app.task(name="send")(self._send)
        if outbox:
            app.outbox(self.url, table=self.outbox_table)
        with contextlib.closing(app):
            yield app

    def __enter__(self) -> Self:
        super().__enter__()
        self.outbox.create()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if isinstance(self.given, sa.Engine):
            self.given.dispose()
        if not self.is_sqlite:
            with self.plain() as connection:
                connection.execute(f"drop table {self.outbox_table}")
                connection.commit()

    def waiting(self) -> int:
        """Rows of the outbox, seen from aside."""
        with self.plain() as connection:
            [(number,)] = connection.execute(f"select count(*) from {self.outbox_table}").fetchall()
            return int(number)


def _engine(orders: Outboxed) -> Any:
    return sa.create_engine(orders.sqlalchemy_url("pysqlite" if orders.is_sqlite else "psycopg"))


def _async_engine(orders: Outboxed) -> Any:
    return create_async_engine(
        orders.sqlalchemy_url("aiosqlite" if orders.is_sqlite else "asyncpg")
    )


def _url(orders: Outboxed) -> Any:
    return orders.url if orders.is_sqlite else dsn(orders.url)


#: What `app.outbox` takes.
ENGINES: Final = (_url, _engine, _async_engine)
