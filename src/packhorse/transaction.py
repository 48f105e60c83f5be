# SPDX-License-Identifier: MIT
"""`ctx.transaction()`: rows of a handler's own and the end of its job, committed together.

    async with ctx.transaction() as tx:              # `with` in plain functions
        await tx.connection.execute("insert into ...")
        tx.complete(result)

Both are there or neither is, whenever the process dies. See `stores.transactions` for what a store
does, and `runtime.worker.transactions` for what a worker makes of it.
"""

from __future__ import annotations

import inspect
import os
from types import TracebackType
from typing import Any, Self

from packhorse.core.process import in_event_loop
from packhorse.errors import UsageError
from packhorse.hosts import AttemptHost, HostTransaction

__all__ = ["JobTransaction"]


class JobTransaction:
    """A block whose rows commit with the job's completion.

    It completes the job with `complete(result)`, or is rolled back; so it is when it raises, when
    the job was cancelled, and when another worker holds it by now (`TransactionRefused`).
    """

    __slots__ = ("_completion", "_host", "_pid", "_sqlalchemy", "open", "over")

    def __init__(self, host: HostTransaction) -> None:
        self.open = False  #: its block has begun, and not ended
        self.over = False  #: its block has ended, and was not rolled back
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
        """Another one, if the one before was rolled back."""
        if before is not None and (before.open or before.over):
            raise UsageError(
                "ctx.transaction() was asked for a second time; it completes the job, so that an "
                "attempt has one"
            )
        return cls(host.transaction())

    def let_steps(self) -> None:
        """Raise if no step can be kept now."""
        if self.open and self._host.exclusive:
            raise UsageError(
                "SQLite keeps no steps while ctx.transaction() holds its write lock: do them "
                "before the block"
            )

    def complete(self, result: Any = None) -> None:
        """Complete the job with this result when the block ends, in the same commit.

        The result is checked now, as one that is returned would be; one that is not what the task
        declares is raised, and ends the attempt as its contract says. What the handler returns
        later counts no more.
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
        if self._sqlalchemy is None:
            if inspect.iscoroutinefunction(self.connection.execute):
                raise UsageError(
                    "tx.sqlalchemy() is there in plain functions; coroutines use tx.connection"
                )
            self._sqlalchemy = _on_top(self.connection)
        return self._sqlalchemy

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
            # It would roll back first.
            self._sqlalchemy.dialect.do_rollback = _nothing
            self._sqlalchemy.close()

    def _is_copy(self) -> bool:
        """Whether a handler has forked inside its block: what is open belongs to the original."""
        return os.getpid() != self._pid


def _on_top(connection: Any) -> Any:
    from sqlalchemy import create_engine  # noqa: PLC0415 - an extra
    from sqlalchemy.pool import StaticPool  # noqa: PLC0415 - an extra

    in_file = type(connection).__module__.startswith("packhorse.stores.sqlite")
    engine = create_engine(
        "sqlite://" if in_file else "postgresql+psycopg://",
        creator=lambda: connection,
        poolclass=StaticPool,
        pool_reset_on_return=None,
    )
    ends: Any = engine.dialect
    # It ends the transaction in which it looks at a new connection, which is the user's here.
    ends.do_rollback = ends.do_commit = _nothing
    opened = engine.connect()
    opened.begin()
    ends.do_rollback = ends.do_commit = _refused
    return opened


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
