# SPDX-License-Identifier: MIT
"""Connections of users, as `tx=` takes them: recognised, checked, and written to.

None of the libraries is imported here: a connection of one can only be given where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final, Protocol

from packhorse.errors import UsageError
from packhorse.stores.intake import UserStatement

_ACCEPTED: Final = (
    "a sqlite3.Connection, a psycopg Connection or AsyncConnection, an asyncpg Connection, "
    "a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or the alias of a database "
    "that Django is configured with"
)
_BEGIN: Final = "no transaction is open on it: begin one first, since the job is to commit with it"
_CLOSED: Final = "it is closed: give one that is open"
#: As libpq has them.
_IN_TRANSACTION, _IN_ERROR = 2, 3
_FAILED: Final = "its transaction has failed: roll it back, and begin another"

Action = Callable[["UserConnection"], Any]


class UserConnection(Protocol):
    """One way to a database; `rows` and `change` answer with awaitables where it is async."""

    waits: bool  #: it is used with `await`

    @property
    def family(self) -> str:
        """The kind of database."""
        ...

    def refuse(self) -> None:
        """Raise if it cannot serve, as far as that is known without asking the server."""
        ...

    def key(self) -> object:
        """The connection itself, below what wraps it."""
        ...

    def rows(self, statement: UserStatement) -> Any: ...

    def change(self, statement: UserStatement) -> Any:
        """Run a statement; the answer is how many rows it changed."""
        ...

    def perform(self, action: Action) -> Awaitable[Any]:
        """The answer of an action on this connection, without blocking the event loop."""
        ...

    def watch(self) -> object | None:
        """What `after_commit` listens to; None: its commits are not told of."""
        ...

    def after_commit(self, told: Callable[[], None]) -> None:
        """Call `told` after each commit of what `watch` names; a rollback may be told as well."""
        ...


def recognised(tx: object) -> UserConnection:
    """The way to use this connection; `TypeError` if there is none."""
    for find in _FINDERS:
        if (found := find(tx)) is not None:
            return found
    raise TypeError(f"tx= takes {_ACCEPTED}; {tx!r} is none of these; nothing was stored")


def user_connection(value: object, _setting: str) -> object:
    """A connection as the option `tx` takes it."""
    recognised(value)
    return value


def _refused(tx: object, problem: str) -> UsageError:
    return UsageError(f"tx={tx!r} cannot be used: {problem}; nothing was sent")


class _Direct:
    """What most ways share: an action is done at once, and commits are not told of."""

    waits = False

    def __init__(self, given: Any, module: Any) -> None:
        self._given = given
        self._module = module

    def key(self) -> object:
        key: object = self._given
        return key

    async def perform(self, action: Action) -> Any:
        return action(self)  # type: ignore[arg-type]  # a subclass is one

    def watch(self) -> object | None:
        return None

    def after_commit(self, told: Callable[[], None]) -> None:
        raise NotImplementedError


class _Awaited(_Direct):
    """As `_Direct`, where the driver answers with awaitables."""

    waits = True

    async def perform(self, action: Action) -> Any:
        answer = action(self)  # type: ignore[arg-type]  # as above
        return await answer if isinstance(answer, Awaitable) else answer


def _sqlite3(tx: object) -> UserConnection | None:
    module = sys.modules.get("sqlite3")
    if module is None or not isinstance(tx, module.Connection):
        return None
    return _Sqlite3(tx, module)


class _Sqlite3(_Direct):
    family = "sqlite"

    def refuse(self) -> None:
        try:
            begun = self._given.in_transaction
        except self._module.ProgrammingError:
            raise _refused(self._given, _CLOSED) from None
        if not begun:
            raise _refused(self._given, _BEGIN)

    def rows(self, statement: UserStatement) -> list[Any]:
        cursor = self._given.cursor()
        cursor.row_factory = None
        return cursor.execute(*statement).fetchall()  # type: ignore[no-any-return]

    def change(self, statement: UserStatement) -> int:
        changed: int = self._given.cursor().execute(*statement).rowcount
        return changed


def _psycopg(tx: object) -> UserConnection | None:
    module = sys.modules.get("psycopg")
    if module is None:
        return None
    if isinstance(tx, module.Connection):
        return _Psycopg(tx, module)
    return _AsyncPsycopg(tx, module) if isinstance(tx, module.AsyncConnection) else None


class _Psycopg(_Direct):
    family = "postgresql"

    def refuse(self) -> None:
        status = self._given.pgconn.transaction_status
        if status == _IN_TRANSACTION:
            return
        if self._given.closed:
            raise _refused(self._given, _CLOSED)
        raise _refused(self._given, _FAILED if status == _IN_ERROR else _BEGIN)

    def rows(self, statement: UserStatement) -> Any:
        return self._execute(self._module.Cursor, statement).fetchall()

    def change(self, statement: UserStatement) -> Any:
        return self._execute(self._module.Cursor, statement).rowcount

    def _execute(self, kind: Any, statement: UserStatement) -> Any:
        cursor = kind(self._given, row_factory=self._module.rows.tuple_row)
        return cursor.execute(_with_percent(statement.text), statement.parameters or None)


class _AsyncPsycopg(_Awaited, _Psycopg):
    async def rows(self, statement: UserStatement) -> Any:
        cursor = await self._execute(self._module.AsyncCursor, statement)
        return await cursor.fetchall()

    async def change(self, statement: UserStatement) -> Any:
        return (await self._execute(self._module.AsyncCursor, statement)).rowcount


@lru_cache(maxsize=64)
def _with_percent(text: str) -> str:
    return text.replace("?", "%s")


def _asyncpg(tx: object) -> UserConnection | None:
    module = sys.modules.get("asyncpg")
    if module is None or not isinstance(tx, module.Connection | module.pool.PoolConnectionProxy):
        return None
    return _Asyncpg(tx, module)


class _Asyncpg(_Awaited):
    family = "postgresql"

    def refuse(self) -> None:
        if self._given.is_closed():
            raise _refused(self._given, _CLOSED)
        if not self._given.is_in_transaction():
            raise _refused(self._given, _BEGIN)

    def key(self) -> object:
        return getattr(self._given, "_con", self._given)

    async def rows(self, statement: UserStatement) -> Any:
        return await self._given.fetch(_numbered(statement.text), *statement.parameters)

    async def change(self, statement: UserStatement) -> int:
        told = await self._given.execute(_numbered(statement.text), *statement.parameters)
        return int(told.rpartition(" ")[2])


def _numbered(text: str) -> str:
    first, *rest = text.split("?")
    return first + "".join([f"${number}{part}" for number, part in enumerate(rest, 1)])


def _sqlalchemy(tx: object) -> UserConnection | None:
    module = sys.modules.get("sqlalchemy")
    if module is None:
        return None
    asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
    if asynchronous is not None:
        if isinstance(tx, asynchronous.AsyncSession):
            return _AsyncSqlAlchemy(tx, _Session(tx.sync_session, module))
        if isinstance(tx, asynchronous.AsyncConnection):
            return _AsyncSqlAlchemy(tx, _SqlAlchemy(tx.sync_connection, module))
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(tx, orm.scoped_session):
        tx = tx()
    if orm is not None and isinstance(tx, orm.Session):
        return _Session(tx, module)
    return _SqlAlchemy(tx, module) if isinstance(tx, module.Connection) else None


class _SqlAlchemy(_Direct):
    """A connection; it begins a transaction by itself, which the driver hears of later."""

    @property
    def family(self) -> str:
        return str(self._connection().dialect.name)

    def _connection(self) -> Any:
        return self._given

    def refuse(self) -> None:
        if self._given is None or self._given.closed or not self._given.in_transaction():
            raise _refused(self._given, f"{_BEGIN}: connection.begin()")

    def key(self) -> object:
        pooled = self._connection().connection
        raw = pooled.driver_connection
        status = getattr(getattr(raw, "info", None), "transaction_status", None)
        if status is not None and status.name == "INERROR":
            raise _refused(self._given, _FAILED)
        level = getattr(pooled.dbapi_connection, "isolation_level", "")
        by_itself = level == "autocommit" or (
            level is None and not getattr(raw, "in_transaction", True)
        )
        if by_itself or getattr(raw, "autocommit", False) is True:
            raise _refused(self._given, "it commits each statement: use another isolation level")
        return raw

    def rows(self, statement: UserStatement) -> Any:
        return self._execute(statement).fetchall()

    def change(self, statement: UserStatement) -> Any:
        return self._execute(statement).rowcount

    def _execute(self, statement: UserStatement) -> Any:
        first, *rest = statement.text.split("?")
        text = first + "".join([f":p{number}{part}" for number, part in enumerate(rest)])
        given = {f"p{number}": value for number, value in enumerate(statement.parameters)}
        return self._connection().execute(self._module.text(text), given)

    def watch(self) -> object | None:
        watched: object = self._given
        return watched

    def after_commit(self, told: Callable[[], None]) -> None:
        """It is told just before; a wake-up travels longer than that takes."""
        self._module.event.listen(self._given, "commit", lambda _connection: told())


class _Session(_SqlAlchemy):
    """A session; what it has not flushed yet stays so."""

    def _connection(self) -> Any:
        return self._given.connection()

    @property
    def family(self) -> str:
        return str(self._given.get_bind().dialect.name)

    def refuse(self) -> None:
        if not self._given.in_transaction():  # as one that was not used yet
            raise _refused(self._given, f"{_BEGIN}: session.begin()")
        if not self._given.is_active:
            raise _refused(self._given, _FAILED)

    def after_commit(self, told: Callable[[], None]) -> None:
        def ended(_session: object, transaction: Any) -> None:
            if transaction.parent is None:
                told()

        self._module.event.listen(self._given, "after_transaction_end", ended)


class _AsyncSqlAlchemy:
    """The same, with `await`: SQLAlchemy runs sync code for it."""

    waits = True

    def __init__(self, given: Any, way: _SqlAlchemy) -> None:
        self._given = given
        self._way = way
        self.refuse = way.refuse
        self.key = way.key
        self.rows = way.rows
        self.change = way.change
        self.watch = way.watch
        self.after_commit = way.after_commit

    @property
    def family(self) -> str:
        return self._way.family

    async def perform(self, action: Action) -> Any:
        return await self._given.run_sync(lambda _: action(self))


def _django(tx: object) -> UserConnection | None:
    module = sys.modules.get("django.db")
    if (
        module is None
        or not isinstance(tx, str)
        or not sys.modules["django.conf"].settings.configured
    ):
        return None
    if tx not in (known := module.connections):
        raise _refused(tx, f"Django has no database of this alias; it has: {', '.join(known)}")
    return _Django(tx, module)


class _Django(_Direct):
    @property
    def _connection(self) -> Any:
        return self._module.connections[self._given]

    @property
    def family(self) -> str:
        return str(self._connection.vendor)

    def refuse(self) -> None:
        if not self._connection.in_atomic_block:
            raise _refused(self._given, f"{_BEGIN}: with transaction.atomic({self._given!r})")
        if self._connection.needs_rollback:
            raise _refused(self._given, _FAILED)

    def key(self) -> object:
        return self._connection.connection

    def rows(self, statement: UserStatement) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(_with_percent(statement.text), statement.parameters or None)
            return cursor.fetchall()

    def change(self, statement: UserStatement) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(_with_percent(statement.text), statement.parameters or None)
            return cursor.rowcount

    def watch(self) -> object | None:
        return self  # each transaction is told of once

    def after_commit(self, told: Callable[[], None]) -> None:
        self._module.transaction.on_commit(told, using=self._given)


_FINDERS: Final = (_sqlite3, _psycopg, _asyncpg, _sqlalchemy, _django)
