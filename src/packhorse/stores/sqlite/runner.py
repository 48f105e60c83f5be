# SPDX-License-Identifier: MIT
"""Runs SQLite plans on a connection: one in a transaction of its own, or several in one.

SQLite has one writer at a time and pays for a commit with an fsync, so plans that wait together
share a transaction. If one of them fails, the group is run again with a savepoint around each, so
that no connection suffers from another.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from packhorse.core.clock import Clock, SystemClock
from packhorse.errors import StoreError, StoreUnavailable
from packhorse.stores.intake import IntakeRequest
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.records import RefusedJob
from packhorse.stores.sql.intake import admit_requests
from packhorse.stores.sql.records import reject
from packhorse.stores.sqlite.connection import (
    FAILURES,
    LOCKED,
    Identity,
    SqliteSettings,
    file_at,
    translated,
)
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE
from packhorse.stores.sqlite.statements import answered, sql
from packhorse.stores.sqlite.submit import INTAKE_MAX, IntakeSubmit, unload

T = TypeVar("T")

Send = Callable[[Sequence[str]], None]
#: Runs a plan inside a transaction, and notes what to send after it.
_Run = Callable[[sqlite3.Connection, Plan[Any], list[str]], Any]

#: Between two tries to get the lock: a commit takes about as long as the first, with an fsync.
_PAUSE_S, _PAUSE_GROWTH, _PAUSE_S_MAX = 0.0002, 1.05, 0.002
#: How often it is looked whether the file is still there.
_LOOK_AGAIN_S: Final = 0.1
#: A signal handler, say, that came in the middle of a plan.
_NESTED: Final = "a plan was run inside another one of the same thread; run it after"


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What all runners of a store share."""

    settings: SqliteSettings
    clock: Clock
    send: Send
    send_new: Callable[[str], None]  #: as `send`, to the workers of a queue
    connect: Callable[[], sqlite3.Connection]  #: to the file, with its schema up to date
    #: Writers of one process queue here, rather than try again and again. A signal handler that
    #: submits may come while its own thread has the turn.
    turn: threading.RLock = field(default_factory=threading.RLock)


class PlanRunner:
    """Runs plans on a connection of its own, opened when needed; one plan or group at a time."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None  # of that connection, for the short ways
        self._file: Identity | None = None  # the one it is open on
        self._time: Clock = SystemClock()  # the machine's, whatever the store judges by
        self._looked_s = 0.0

    def run(self, plan: Plan[T]) -> T:
        """Run one plan in a transaction of its own."""
        with self._lock:
            try:
                self._connected()
                return self._one(plan)
            except FAILURES as error:
                raise self._translated(error) from error

    def run_group(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans in one shared transaction; an answer or an exception for each."""
        with self._lock:
            self._connected()  # what cannot be opened is tried once, not by each
            if len(plans) == 1:
                return [self._answer(self._one, plans[0])]
            # Where one of them has to write anyway, the others need not find out whether they do.
            if any(plan.writes and plan.look is None for plan in plans):
                return self._written(plans)
            answers = [self._answer(self._look, plan) for plan in plans]
            rest = [index for index, answer in enumerate(answers) if answer is None]
            written = self._written([plans[index] for index in rest])
            for index, answer in zip(rest, written, strict=True):
                answers[index] = answer
            return answers

    def begin(self, *, patient: bool) -> sqlite3.Connection:
        """Begin a transaction that the caller ends, once the lock lets us; or at once, or not."""
        connection = self._connected()
        if patient:
            self._patiently(lambda: connection.execute("begin immediate"))
        else:
            connection.execute("begin immediate")
        return connection

    def inside(
        self, connection: sqlite3.Connection, steps: Callable[[], Steps[T]]
    ) -> tuple[T, list[str]]:
        """Take steps in a transaction that `begin` began; also what to send once it is over."""
        wakes: list[str] = []
        return self._take(connection, steps, wakes), wakes

    def close(self) -> None:
        """Close the connection once the plan that runs now is finished; later use reopens it."""
        with self._lock:
            connection, self._connection, self._cursor = self._connection, None, None
            if connection is not None:
                connection.close()

    def hold(self) -> None:
        """Close the connection, and open none before `let_go`."""
        self._lock.acquire()
        self.close()

    def let_go(self) -> None:
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def _connected(self) -> sqlite3.Connection:
        """The connection, opened when needed; an error, once, when its file is gone.

        That is checked now and then: no other process would see what is written there.
        """
        now_s, path = self._time.monotonic(), self._parts.settings.path
        if self._connection is None:
            self._connection = self._parts.connect()
            self._cursor = self._connection.cursor()
            self._file, self._looked_s = file_at(path), now_s
        elif now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            if self._file not in (None, file_at(path)):
                self.close()
                raise StoreUnavailable(
                    f"SQLite file {path} was removed or replaced while it was open; what was in it "
                    "went with it. The next call opens the file that is there then, or a new one: "
                    "stop all who use a file before you move it"
                )
        return self._connection

    def _translated(self, error: Exception) -> StoreError:
        return translated(error, self._parts.settings.path)

    def _answer(self, run: Callable[[Plan[Any]], Any], plan: Plan[Any]) -> Any:
        """What `run` returns, or the exception it raised in Packhorse's words."""
        try:
            return run(plan)
        except FAILURES as error:
            return self._translated(error)
        except Exception as error:  # noqa: BLE001 - belongs to the caller who waits for it
            return error

    def _look(self, plan: Plan[T]) -> T | None:
        """Ask the cheap question first, if the plan has one; None when it must be run.

        To a plan that would write, a loaded intake is something to do.
        """
        look, connection = plan.look, self._connection or self._connected()
        if look is None:
            return None
        return self._patiently(
            lambda: (
                None
                if plan.writes and is_loaded(connection)
                else answered(connection, look(), self._parts.clock, [])
            )
        )

    def _written(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Together; with savepoints if one of them failed; each alone if all of it failed."""
        if len(plans) > 1:
            for run in (self._steps, self._guarded):
                answers = self._together(run, plans)
                if answers is not None:
                    return answers
        return [self._answer(self._one, plan) for plan in plans]

    def _one(self, plan: Plan[T]) -> T:
        """In a transaction of its own, unless a look or the short way will do."""
        answer: T | None = None if plan.look is None else self._look(plan)
        if answer is None and plan.short is not None:
            answer = self._shortly(plan.short)
        if answer is not None:
            return answer
        wakes: list[str] = []
        answer = self._transact(
            lambda connection: self._take(connection, plan.steps, wakes), writes=plan.writes
        )
        if wakes:
            self._parts.send(wakes)
        return answer

    def _together(self, run: _Run, plans: Sequence[Plan[Any]]) -> list[Any] | None:
        """All in one transaction, or None when it was rolled back."""
        wakes: list[str] = []
        try:
            answers = self._transact(
                lambda connection: [run(connection, plan, wakes) for plan in plans],
                writes=any(plan.writes for plan in plans),
            )
        except sqlite3.Error as error:
            # Each alone would wait for the same lock again, one after the other.
            locked = LOCKED in str(error)
            return [self._translated(error) for _ in plans] if locked else None
        except Exception:  # noqa: BLE001 - found again, and then told to the one it belongs to
            return None
        self._parts.send(wakes)
        return answers

    def _shortly(self, short: IntakeSubmit) -> Any:
        """The common case, in the transaction that one statement is; None when it is not that."""
        parts = self._parts
        cursor = self._cursor or self._connected().cursor()
        connection = cursor.connection
        if connection.in_transaction:
            raise StoreError(_NESTED)
        self._cursor = None  # a signal handler that submits as well takes one of its own
        turn = parts.turn
        try:
            if not (turn.acquire(False) or turn.acquire(timeout=parts.settings.busy_timeout_s)):
                raise sqlite3.OperationalError(LOCKED)
            parameters, answer = short.at(parts.clock.now_us())
            try:
                cursor.execute(short.text, parameters)
            except sqlite3.OperationalError as error:
                if LOCKED not in str(error):
                    raise
                self._patiently(lambda: cursor.execute(short.text, parameters))
            changed, number = cursor.rowcount, cursor.lastrowid or 0
        finally:
            try:  # noqa: SIM105 - at every submit, and `suppress` costs twice as much as the rest
                turn.release()
            except RuntimeError:
                pass  # as in `_transact`
        if connection is self._connection:
            self._cursor = cursor
        if changed != 1:
            return None
        parts.send_new(short.job.queue)
        if number >= INTAKE_MAX:
            # The job is stored whatever becomes of this; the next plan tries it again.
            with suppress(sqlite3.Error):
                wakes: list[str] = []
                self._transact(
                    lambda one: unload(one, partial(self._admit, one, wakes)), writes=True
                )
                parts.send(wakes)
        return answer

    def _steps(self, connection: sqlite3.Connection, plan: Plan[T], wakes: list[str]) -> T:
        """All of a plan, inside a transaction."""
        short = plan.short
        if short is not None:
            parameters, answer = short.at(self._parts.clock.now_us())
            cursor = connection.execute(short.text, parameters)
            if cursor.rowcount == 1:
                topic = f"queue:{short.job.queue}"
                if topic not in wakes:
                    wakes.append(topic)
                if (cursor.lastrowid or 0) >= INTAKE_MAX:
                    unload(connection, partial(self._admit, connection, wakes))
                stored: T = answer
                return stored
        return self._take(connection, plan.steps, wakes)

    def _take(
        self, connection: sqlite3.Connection, steps: Callable[[], Steps[T]], wakes: list[str]
    ) -> T:
        """Take steps once all jobs that came before have their places."""
        if is_loaded(connection):
            unload(connection, partial(self._admit, connection, wakes))
        return answered(connection, steps(), self._parts.clock, wakes)

    def _admit(
        self, connection: sqlite3.Connection, wakes: list[str], requests: Sequence[IntakeRequest]
    ) -> None:
        """Do what users' transactions asked for; what cannot be done must not stop all plans."""
        own = list(wakes)
        connection.execute("savepoint admission")
        admitting = admit_requests(SQLITE, requests, ONE_WRITER)
        try:
            answered(connection, admitting, self._parts.clock, own)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - found again, and then kept with the job
            connection.execute("rollback to admission")
            if len(requests) > 1:
                for one in requests:
                    self._admit(connection, wakes, [one])
            elif requests[0].job is not None:
                refused = RefusedJob(requests[0].job.id, "STORE_ERROR", repr(error))
                rejecting = reject(SQLITE, requests[0].job, refused, ONE_WRITER)
                answered(connection, rejecting, self._parts.clock, wakes)
        else:
            wakes[:] = own
        connection.execute("release admission")

    def _guarded(self, connection: sqlite3.Connection, plan: Plan[Any], wakes: list[str]) -> Any:
        """Run a plan inside a transaction; if it fails, only its own part is undone."""
        own = list(wakes)
        connection.execute("savepoint plan")
        answer = self._answer(lambda plan: self._steps(connection, plan, own), plan)
        if isinstance(answer, Exception):
            connection.execute("rollback to plan")  # fails if SQLite has given up all of it
        else:
            wakes[:] = own
        connection.execute("release plan")
        return answer

    def _transact(self, body: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """Who reads, and finds that jobs stand in the intake, writes as well."""
        turn = self._parts.turn
        if not writes:
            read = self._patiently(
                lambda: self._within("begin", lambda one: None if is_loaded(one) else (body(one),))
            )
            if read is not None:
                return read[0]
        try:  # inside, since what interrupts us may come as soon as the turn is ours
            if not turn.acquire(timeout=self._parts.settings.busy_timeout_s):
                raise sqlite3.OperationalError(LOCKED)
            return self._patiently(lambda: self._within("begin immediate", body))
        finally:
            with suppress(RuntimeError):  # not ours: something interrupted us while we waited
                turn.release()

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do it once the lock of another process lets us.

        SQLite would sleep longer and longer between two tries, up to a tenth of a second, and never
        come in between processes that write one job after the other.
        """
        settings, until_s, pause_s = self._parts.settings, None, _PAUSE_S
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                now_s = self._time.monotonic()
                until_s = until_s or now_s + settings.busy_timeout_s
                if LOCKED not in str(error) or now_s >= until_s:
                    raise
            threading.Event().wait(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_S_MAX)

    def _within(self, begin: str, body: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection or self._connected()
        if connection.in_transaction:
            raise StoreError(_NESTED)
        try:
            connection.execute(begin)
            answer = body(connection)
            connection.execute("commit")
        except BaseException:  # also what interrupts the wait for the lock, once it is there
            self._undo(connection)
            raise
        return answer

    def _undo(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            self.close()  # a connection that cannot even do that must not keep its lock


def is_loaded(connection: sqlite3.Connection) -> bool:
    """Whether jobs wait in the intake, or requests of users' transactions."""
    return connection.execute(sql("intake_any")).fetchone() is not None
