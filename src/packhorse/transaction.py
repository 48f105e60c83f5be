# SPDX-License-Identifier: MIT
"""`ctx.transaction()`: rows of a handler's own and the end of its job, committed together.

    async with ctx.transaction() as tx:              # `with` in plain functions
        await tx.connection.execute("insert into ...")
        tx.complete(result)

Both are stored or neither is, whenever the process dies. `stores.transactions` is the store's part,
and `runtime.worker.transactions` the worker's.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from packhorse.attempt_host import AttemptHost, HostTransaction
from packhorse.core.interpreter import in_event_loop
from packhorse.errors import UsageError


class JobTransaction:
    """A block whose rows commit with the job's completion.

    It completes the job with `complete(result)`, else it is rolled back; also when the block
    raises, the job was cancelled, or another worker holds the job by now (`TransactionRefused`).
    """

    __slots__ = ("_completion", "_host", "_pid", "_sqlalchemy", "open", "over")

    def __init__(self, host: HostTransaction) -> None:
        self.open = False  #: inside the block
        self.over = False  #: the block has ended, and was committed
        self._host = host
        self._completion: Any = None
        self._pid = os.getpid()
        self._sqlalchemy: Any = None

    @property
    def connection(self) -> Any:
        """The driver's connection: psycopg's `Connection` or `AsyncConnection`, or `sqlite3`'s."""
        if not self.open:
            raise UsageError("tx.connection is there inside the block of ctx.transaction() only")
        return self._host.connection

    @classmethod
    def following(cls, before: Self | None, host: AttemptHost) -> Self:
        """Make another one, if the one before was rolled back."""
        if before is not None and (before.open or before.over):
            raise UsageError(
                "ctx.transaction() was asked for a second time; it completes the job, so that an "
                "attempt has one"
            )
        return cls(host.transaction())

    def let_steps(self) -> None:
        """Raise if no step can be stored now."""
        if self.open and self._host.exclusive:
            raise UsageError(
                "SQLite keeps no steps while ctx.transaction() holds its write lock: do them "
                "before the block"
            )

    def complete(self, result: Any = None) -> None:
        """Complete the job with this result when the block ends, in the same commit.

        The result is checked now, as a returned one would be; if the task does not declare such a
        result, this raises, and the attempt ends as its contract says. What the handler returns
        later is ignored.
        """
        if not self.open:
            raise UsageError("tx.complete() is called inside the block of ctx.transaction()")
        if self._completion is not None:
            raise UsageError("tx.complete() was called twice; a job is completed once")
        self._completion = self._host.check(result)

    def sqlalchemy(self) -> Any:
        """SQLAlchemy's `Connection` on top of `tx.connection`; the block ends it.

        Sessions on it commit by savepoints, with `join_transaction_mode="create_savepoint"`.
        """
        if self._is_awaited():
            raise UsageError("tx.connection is awaited here: so is SQLAlchemy, tx.asqlalchemy()")
        if self._sqlalchemy is None:
            self._sqlalchemy = _on_top(self.connection)
        return self._sqlalchemy

    async def asqlalchemy(self) -> Any:
        """SQLAlchemy's `AsyncConnection` on top, in coroutines on PostgreSQL; the block ends it.

        An `AsyncSession` on it commits by savepoints, as sessions on `sqlalchemy()` do.
        """
        if not self._is_awaited():
            raise UsageError("tx.connection is not awaited here: use tx.sqlalchemy()")
        if self._sqlalchemy is None:
            self._sqlalchemy = await _on_top_of_awaited(self.connection)
        return self._sqlalchemy

    def _is_awaited(self) -> bool:
        return inspect.iscoroutinefunction(self.connection.execute)

    def __enter__(self) -> Self:
        if in_event_loop():
            raise UsageError(
                "'with ctx.transaction()' would block the running event loop: use 'async with'"
            )
        self._begin()
        self._host.begin()
        self.open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_copy():
            return
        self._end()
        if self._sqlalchemy is not None:
            self._sqlalchemy.close()
        if error is None and self._completion is not None:
            try:
                self._host.commit(self._completion)
            finally:
                self.over = self._host.committed
            return
        self._host.roll_back()
        if error is None:
            raise _incomplete()

    async def __aenter__(self) -> Self:
        self._begin()
        await self._host.abegin()
        self.open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_copy():
            return
        self._end()
        if self._sqlalchemy is not None:
            closing = self._sqlalchemy.close()  # None on SQLite, where it is not awaited
            if closing is not None:
                await closing
        if error is None and self._completion is not None:
            try:
                await self._host.acommit(self._completion)
            finally:
                self.over = self._host.committed
            return
        await self._host.aroll_back()
        if error is None:
            raise _incomplete()

    def _begin(self) -> None:
        if self.open or self.over or self._completion is not None:
            raise UsageError("a block of ctx.transaction() is entered once; ask for another one")

    def _end(self) -> None:
        self.open = False
        if self._sqlalchemy is not None:
            # SQLAlchemy would roll back when it is closed.
            self._sqlalchemy.dialect.do_rollback = _nothing

    def _is_copy(self) -> bool:
        """Return whether the handler forked inside its block: the parent owns what is open."""
        return os.getpid() != self._pid


def _on_top(connection: Any) -> Any:
    from sqlalchemy import create_engine  # noqa: PLC0415 - an extra

    in_file = type(connection).__module__.startswith("packhorse.stores.sqlite")
    driver = "sqlite" if in_file else "postgresql+psycopg"
    engine = create_engine(f"{driver}://", creator=lambda: connection, **_one_connection())
    with _kept_open(engine.dialect):
        opened = engine.connect()
        opened.begin()
    return opened


async def _on_top_of_awaited(connection: Any) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - an extra

    async def lend() -> Any:
        return connection

    engine = create_async_engine("postgresql+psycopg://", async_creator=lend, **_one_connection())
    with _kept_open(engine.dialect):
        opened = await engine.connect()
        await opened.begin()
    return opened


def _one_connection() -> dict[str, Any]:
    from sqlalchemy.pool import StaticPool  # noqa: PLC0415 - an extra

    return {"poolclass": StaticPool, "pool_reset_on_return": None}


@contextmanager
def _kept_open(dialect: Any) -> Iterator[None]:
    """Let SQLAlchemy inspect a connection without ending its open transaction.

    Afterwards a commit or rollback through SQLAlchemy raises.
    """
    dialect.do_rollback = dialect.do_commit = _nothing
    yield
    dialect.do_rollback = dialect.do_commit = _refused


def _nothing(_: object) -> None:
    pass


def _refused(_: object) -> None:
    raise UsageError(
        "ctx.transaction() commits when its block ends, and rolls back when it raises; sessions "
        "commit by savepoints with join_transaction_mode='create_savepoint'"
    )


def _incomplete() -> UsageError:
    return UsageError(
        "the block of ctx.transaction() ended without tx.complete(result), so that it was rolled "
        "back: complete the job in it, or write rows on a connection of your own"
    )
