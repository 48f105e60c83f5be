# SPDX-License-Identifier: MIT
"""Transactions of handlers on SQLite: a connection to the same file, and the write lock.

The lock is held as long as the block is open, and no process can write to the file meanwhile, not
even to renew a lease. So one that is open for too long is rolled back by a timer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Literal

from packhorse.core.clock import SystemClock
from packhorse.errors import StoreUnavailable, UsageError
from packhorse.stores.plan import Steps
from packhorse.stores.sqlite.connection import LOCKED, translated
from packhorse.stores.sqlite.runner import PlanRunner, RunnerParts

#: How long a block may be open: a share of the lease, since workers renew every third of it, and
#: less than others wait for the lock.
_LEASE_SHARE: Final = 1 / 6
_OPEN_S_MAX: Final = 5.0
#: Between two tries to begin, without blocking the event loop.
_PAUSE_S: Final = 0.002
#: What SQLite says of a statement that the authorizer denies.
_REFUSED: Final = "not authorized"
_NOT_BY_HAND: Final = (
    "ctx.transaction() commits when its block ends, and rolls back when it raises; for a part of "
    "it use connection.execute('savepoint part')"
)
_TRANSACTION: Final = 22  # SQLITE_TRANSACTION, which `sqlite3` does not name


class _Cursor(sqlite3.Cursor):
    """A cursor that does nothing any more once its transaction has been rolled back."""

    connection: _Connection

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        with self.connection.guard:
            self.connection.require_open()
            try:
                super().execute(sql, parameters)
            except sqlite3.DatabaseError as error:
                if str(error) == _REFUSED:
                    raise UsageError(_NOT_BY_HAND) from error
                raise
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> _Cursor:
        with self.connection.guard:
            self.connection.require_open()
            super().executemany(sql, self._while_open(parameters))
        return self

    def _while_open(self, parameters: Iterable[Any]) -> Iterator[Any]:
        for each in parameters:  # the timer cannot roll back while this call holds the guard
            self.connection.require_open()
            yield each


class _Connection(sqlite3.Connection):
    """The connection of a user's block: it can neither commit nor roll back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.guard = threading.RLock()  #: held during each statement, so that the timer waits
        self.expired = ""  #: why it will be rolled back after the running statement
        self.why_over = ""  #: why it was rolled back
        self.ends = True  #: it may end its transaction
        self.set_authorizer(self._authorized)

    def _authorized(self, action: int, *_: object) -> int:
        refused = action == _TRANSACTION and not self.ends
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def commit(self) -> None:
        self._require_end()
        super().commit()

    def rollback(self) -> None:
        self._require_end()
        super().rollback()

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        self._require_end()  # it would commit first
        return super().executescript(sql_script)

    def __exit__(self, *error: object) -> Literal[False]:
        self._require_end()
        return super().__exit__(*error)  # type: ignore[arg-type]  # what `with` gives

    def _require_end(self) -> None:
        if not self.ends:
            raise UsageError(_NOT_BY_HAND)

    def require_open(self) -> None:
        if why := self.why_over or self.expired:
            raise sqlite3.OperationalError(why)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, parameters)
        return cursor


class _Open:
    """See `OpenTransaction`."""

    def __init__(
        self, runner: PlanRunner, connection: _Connection, owner: SqliteTransactions, bound_s: float
    ) -> None:
        self._runner = runner
        self.connection = connection
        self._owner = owner
        self._bound_s = bound_s
        self._timer = threading.Timer(bound_s, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def finish(self, steps: Callable[[], Steps[bool]]) -> bool:
        connection, wakes = self.connection, list[str]()
        try:
            with connection.guard:
                connection.require_open()
                connection.row_factory, connection.text_factory = None, str
                connection.ends = True
                applied = self._runner.run_steps(connection, steps, wakes)
                connection.execute("commit" if applied else "rollback")
        except sqlite3.IntegrityError:
            raise  # deferred constraints of the user's rows are checked at the commit
        except sqlite3.Error as error:
            raise translated(error, self._owner.parts.settings.path) from error
        finally:
            self.roll_back()
        if applied:
            self._owner.parts.send(wakes)
        return applied

    async def afinish(self, steps: Callable[[], Steps[bool]]) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._owner.committer, self.finish, steps)

    def roll_back(self) -> None:
        self._timer.cancel()
        self._end("the block of ctx.transaction() is over")
        self._owner.open.discard(self)
        with suppress(sqlite3.Error):
            self.connection.close()

    async def aroll_back(self) -> None:
        self.roll_back()

    def _expire(self) -> None:
        self.connection.expired = (
            f"the block of ctx.transaction() was open for more than {self._bound_s:g} s and was "
            "rolled back, since SQLite lets no other write meanwhile: do slow things before it, "
            "and submit in it with using(tx=tx.connection)"
        )
        self.connection.interrupt()
        self._end(self.connection.expired)

    def _end(self, why: str) -> None:
        connection = self.connection
        with connection.guard:
            if connection.why_over:
                return
            connection.why_over, connection.ends = why, True
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.rollback()


class SqliteTransactions:
    """See `TransactionStore`."""

    exclusive = True

    def __init__(
        self, parts: RunnerParts, connect: Callable[[type[sqlite3.Connection]], sqlite3.Connection]
    ) -> None:
        self.parts = dataclasses.replace(parts, connect=lambda: connect(_Connection))
        self.open: set[_Open] = set()  #: at most one that has the lock
        self._time = SystemClock()
        #: Commits wait for the disk, which an event loop must not.
        self.committer = ThreadPoolExecutor(1, "packhorse-sqlite-transaction")

    def begin(self, lease_s: float) -> _Open:
        runner = PlanRunner(self.parts)
        try:
            return self._begun(runner, lease_s, patient=True)
        except BaseException:
            runner.disconnect()
            raise

    async def abegin(self, lease_s: float) -> _Open:
        until_s = self._time.monotonic() + self.parts.settings.busy_timeout_s
        runner = PlanRunner(self.parts)
        try:
            # SQLite cannot notify when its lock is free.
            while (begun := self._begun_at_once(runner, lease_s, until_s)) is None:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)
        except BaseException:
            runner.disconnect()
            raise
        return begun

    def _begun_at_once(self, runner: PlanRunner, lease_s: float, until_s: float) -> _Open | None:
        """None while another has the lock."""
        try:
            return self._begun(runner, lease_s, patient=False)
        except StoreUnavailable as error:
            if LOCKED not in str(error) or self._time.monotonic() >= until_s:
                raise
        return None

    def close(self) -> None:
        """Let the thread end; what is open is ended by its handler."""
        self.committer.shutdown(wait=False)

    def _begun(self, runner: PlanRunner, lease_s: float, *, patient: bool) -> _Open:
        try:
            connection: Any = runner.begin(patient=patient)
        except sqlite3.Error as error:
            raise translated(error, self.parts.settings.path) from error
        connection.ends = False
        bound_s = min(_OPEN_S_MAX, lease_s * _LEASE_SHARE)
        transaction = _Open(runner, connection, self, bound_s)
        self.open.add(transaction)
        return transaction
