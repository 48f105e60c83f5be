# SPDX-License-Identifier: MIT
"""Transactions of handlers on PostgreSQL, on psycopg connections from a pool of their own.

A handler uses its connection as psycopg's own. For the last steps the store takes the connection
back into pipeline mode and runs the plan that settles the job; its answer decides on COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from psycopg import AsyncConnection, Connection, Error
from psycopg.rows import tuple_row

from packhorse.errors import StoreUnavailable, UsageError
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.errors import has_answered, is_lost, translated
from packhorse.stores.postgres.pipeline import Command, Exchange, PipelinedConnection, exchange
from packhorse.stores.postgres.plan_transaction import BEGIN, StoreContext, Transaction
from packhorse.stores.postgres.pool import LoopPools, SyncPool
from packhorse.stores.postgres.statements import Again, Once
from packhorse.stores.sql.statements import Rows

#: How many connections are taken that may have died while they were idle.
_DEAD_MAX: Final = 3
#: How often the last steps are begun again, with more locks.
_TRIES_MAX: Final = 20
#: The longest a block may wait between two statements, however long the lease is.
_STILL_S_MAX: Final = 3600.0
_ROLLBACK: Final = "rollback"
_SAVEPOINT: Final = "savepoint packhorse_last_steps"
_BACK: Final = "rollback to savepoint packhorse_last_steps"
#: Before a connection is used again: what its last user has set, prepared or locked.
_CLEAN: Final = "discard all"
_NOT_BY_HAND: Final = (
    "ctx.transaction() commits when its block ends, and rolls back when it raises; for a part of "
    "it use connection.transaction()"
)


class LentToThread(Connection[Any]):
    """What plain functions get: it can neither commit nor roll back by itself."""

    def commit(self) -> NoReturn:
        raise UsageError(_NOT_BY_HAND)

    def rollback(self) -> NoReturn:
        raise UsageError(_NOT_BY_HAND)


class LentToLoop(AsyncConnection[Any]):
    """What coroutines get."""

    async def commit(self) -> NoReturn:
        raise UsageError(_NOT_BY_HAND)

    async def rollback(self) -> NoReturn:
        raise UsageError(_NOT_BY_HAND)


class PostgresTransactions:
    """See `TransactionStore`."""

    exclusive = False

    def __init__(self, threads: SyncPool, loops: LoopPools, context: StoreContext) -> None:
        self._threads = threads
        self._loops = loops
        self._context = context

    def begin(self, lease_s: float) -> _OpenTransaction:
        for remaining in reversed(range(_DEAD_MAX)):
            connection = self._threads.take()
            try:
                connection.drive(exchange(connection, self._opening(lease_s)))
                return _OpenTransaction(connection, self._threads, self._context)
            except BaseException as error:
                self._threads.give(connection)
                if not (remaining and _had_died(error)):
                    raise _told(error, self._context) from error
        raise AssertionError("unreachable")  # the last round returns or raises

    async def abegin(self, lease_s: float) -> _OpenTransaction:
        pool = self._loops.here()
        for remaining in reversed(range(_DEAD_MAX)):
            connection = await pool.take()
            try:
                await connection.drive(exchange(connection, self._opening(lease_s)), _nothing)
                return _OpenTransaction(connection, pool, self._context)
            except BaseException as error:
                pool.give(connection)
                if not (remaining and _had_died(error)):
                    raise _told(error, self._context) from error
        raise AssertionError("unreachable")

    def _opening(self, lease_s: float) -> Sequence[Sequence[Command]]:
        # A handler that stops inside its block, with its whole process, holds the locks of its
        # rows, which the next attempt may want.
        still_ms = min(lease_s, _STILL_S_MAX) * 1000
        stands_still = f"set local idle_in_transaction_session_timeout = {still_ms:.0f}"
        begin = [_command(self._context, text) for text in (BEGIN, stands_still)]
        return [[_command(self._context, _CLEAN)], begin]


class _OpenTransaction:
    """See `OpenTransaction`. The connection and its pool are those of threads or of a loop."""

    def __init__(self, connection: Any, pool: Any, context: StoreContext) -> None:
        self._pipelined = connection
        self._pool = pool
        self._context = context
        self.connection = connection.lend()
        self.connection.row_factory = tuple_row

    def finish(self, steps: Callable[[], Steps[bool]]) -> bool:
        try:
            with self._taken_back() as connection:
                return bool(connection.drive(_finished(connection, steps, self._context)))
        except Exception as error:
            raise self._translated(error) from error

    async def afinish(self, steps: Callable[[], Steps[bool]]) -> bool:
        try:
            with self._taken_back() as connection:
                finishing = _finished(connection, steps, self._context)
                return bool(await connection.drive(finishing, _nothing))
        except Exception as error:
            raise self._translated(error) from error

    def roll_back(self) -> None:
        # The server rolls back what is cut off.
        with suppress(Exception), self._taken_back() as connection:
            connection.drive(_undone(connection, self._context))

    async def aroll_back(self) -> None:
        with suppress(Exception), self._taken_back() as connection:
            await connection.drive(_undone(connection, self._context), _nothing)

    @contextmanager
    def _taken_back(self) -> Iterator[Any]:
        """Use the connection in pipeline mode, then return it to its pool; close it on failure."""
        connection = self._pipelined
        try:
            connection.take_back()
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._pool.give(connection)

    def _translated(self, error: Exception) -> BaseException:
        return _told(error, self._context, committing=self._pipelined.committing)


class _LastSteps(Transaction):
    """Runs the steps of plans in a transaction that has begun, as if it were their own."""

    def finish(self, steps: Callable[[], Steps[bool]]) -> Exchange[bool]:
        """Commit if the steps say so, else roll back."""
        if not self._connection.in_transaction:
            raise UsageError(f"the transaction was ended by a statement of yours; {_NOT_BY_HAND}")
        applied = yield from self._applied(steps)
        if applied:
            yield from self._commit()
        else:
            yield from _undone(self._connection, self._context)
        return applied

    def _applied(self, steps: Callable[[], Steps[bool]]) -> Exchange[bool]:
        ours = self._context.settings.server_settings.items()
        settings = [self._command(f"set local {name} = {value}") for name, value in ours]
        for _ in range(_TRIES_MAX):
            self._begun, self._queue, self._wakes, self._now_us = True, [], [], None
            yield from exchange(self._connection, [[self._command(_SAVEPOINT), *settings]])
            try:
                return (yield from self._follow(steps()))
            except Again:  # its locks go with the savepoint
                yield from exchange(self._connection, [[self._command(_BACK)]])
        raise StoreUnavailable("others were in the way of the job's completion again and again")

    def _answer_once(self, step: Once) -> Exchange[list[tuple[Any, ...]]]:
        """It does not commit by itself here."""
        rows: list[tuple[Any, ...]] = yield from self._answer(Rows(step.text, step.parameters))
        return rows


def _finished(
    connection: PipelinedConnection, steps: Callable[[], Steps[bool]], context: StoreContext
) -> Exchange[bool]:
    connection.committing = connection.committed = False
    return _LastSteps(connection, context, writes=True).finish(steps)


def _undone(connection: PipelinedConnection, context: StoreContext) -> Exchange[None]:
    yield from exchange(connection, [[_command(context, _ROLLBACK)]])


def _command(context: StoreContext, text: str) -> Command:
    return Command(context.texts.statement(text))


def _had_died(error: BaseException) -> bool:
    """Whether a connection had died while it was idle; the next one may live."""
    return isinstance(error, Exception) and is_lost(error)


def _told(
    error: BaseException, context: StoreContext, *, committing: bool = False
) -> BaseException:
    """What is raised: the server's word on the user's rows as it is, else in Packhorse's words."""
    if not isinstance(error, Error) or has_answered(error):
        return error
    return translated(error, context.settings, maybe_stored=committing)


def _nothing() -> None:
    pass
