# SPDX-License-Identifier: MIT
"""Run SQLite plans on a connection, each in its own transaction or several in one.

SQLite has one writer at a time and pays for a commit with an fsync, so plans that wait together
share a transaction. If one of them fails, the group is run again with a savepoint around each, so
that one failure does not affect the others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from packhorse.core.clock import Clock, SystemClock
from packhorse.errors import StoreError, StoreUnavailable
from packhorse.stores.intake import read_request
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.sql.rows import RANK_PER_PRIORITY
from packhorse.stores.sql.statements import Change, Now, Rows, Send, SendMany, Together
from packhorse.stores.sqlite.connection import (
    FAILURES,
    LOCKED,
    Identity,
    OneConnection,
    SqliteSettings,
    file_at,
    translated,
)
from packhorse.stores.sqlite.intake import admit
from packhorse.stores.sqlite.statements import sql
from packhorse.stores.sqlite.submit import INTAKE_MAX, IntakeSubmit

T = TypeVar("T")
_Run = Callable[[sqlite3.Connection, Plan[Any], list[str]], Any]

#: Pauses between attempts to get the lock: a commit with an fsync takes about as long as the first.
_PAUSE_S, _PAUSE_GROWTH, _PAUSE_S_MAX = 0.0002, 1.05, 0.002
#: How often a runner checks that its file is still there.
_LOOK_AGAIN_S: Final = 0.1
#: Such as from a signal handler that interrupted a plan.
_NESTED: Final = "a plan was run inside another one of the same thread; run it after"


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What the runners of a store share."""

    settings: SqliteSettings
    clock: Clock
    send: Callable[[Sequence[str]], None]  #: wakes listeners of these topics
    send_new: Callable[[str], None]  #: wakes the workers of a queue
    connect: Callable[[], sqlite3.Connection]  #: to the file, with its schema up to date
    #: Writers of one process wait here, instead of retrying. Reentrant, since a signal handler may
    #: submit while its thread holds it.
    turn: threading.RLock = field(default_factory=threading.RLock)


class PlanRunner(OneConnection):
    """Runs one plan or group at a time on its own connection, which it opens when needed."""

    def __init__(self, parts: RunnerParts) -> None:
        super().__init__()
        self._parts = parts
        self._cursor: sqlite3.Cursor | None = None  # of that connection, for fast submits
        self._file: Identity | None = None  # that the connection has open
        self._time: Clock = SystemClock()  # of the machine, even if the store has another
        self._looked_s = 0.0

    def __del__(self) -> None:
        """Close what a thread that has ended left open; in a forked child the lock may be held."""
        if self._connection is not None:
            self._connection.close()

    def run(self, plan: Plan[T]) -> T:
        """Run one plan in its own transaction."""
        with self._lock:
            try:
                self._connected()
                return self._run_alone(plan)
            except FAILURES as error:
                raise translated(error, self._parts.settings.path) from error

    def run_group(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans in one shared transaction; return an answer or an exception for each."""
        with self._lock:
            self._connected()  # once for all plans, in case the file cannot be opened
            if len(plans) == 1:
                return [self._answer(self._run_alone, plans[0])]
            # If one of them has to write, the reads that look first would be wasted.
            if any(plan.writes and plan.look is None for plan in plans):
                return self._run_all(plans)
            answers = [self._answer(self._look, plan) for plan in plans]
            pairs = zip(plans, answers, strict=True)
            rest = iter(self._run_all([plan for plan, answer in pairs if answer is None]))
            return [next(rest) if answer is None else answer for answer in answers]

    def begin(self, *, patient: bool) -> sqlite3.Connection:
        """Begin a transaction that the caller ends; unless `patient`, fail if the lock is taken."""
        connection = self._connected()
        if patient:
            self._retry_while_locked(lambda: connection.execute("begin immediate"))
        else:
            connection.execute("begin immediate")
        return connection

    def disconnect(self) -> None:
        with self._lock:
            self._cursor = None
            super().disconnect()

    def _connected(self) -> sqlite3.Connection:
        """Return the connection, opened when needed; raise once if its file is gone.

        The file is checked now and then: no other process would see writes to a removed file.
        """
        now_s, path = self._time.monotonic(), self._parts.settings.path
        if self._connection is None:
            self._connection = self._parts.connect()
            self._cursor = self._connection.cursor()
            self._file, self._looked_s = file_at(path), now_s
        elif now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            if self._file not in (None, file_at(path)):
                self.disconnect()
                raise StoreUnavailable(
                    f"SQLite file {path} was removed or replaced while it was open; what was in it "
                    "went with it. The next call opens the file that is there then, or a new one: "
                    "stop all who use a file before you move it"
                )
        return self._connection

    def _answer(self, run: Callable[[Plan[Any]], Any], plan: Plan[Any]) -> Any:
        """Return what `run` returns, or the translated exception it raised."""
        try:
            return run(plan)
        except FAILURES as error:
            return translated(error, self._parts.settings.path)
        except Exception as error:  # noqa: BLE001 - belongs to the caller who waits for it
            return error

    def _look(self, plan: Plan[T]) -> T | None:
        """Run the plan's `look`, if it has one; None: the plan must be run.

        A plan that writes must be run if the intake has jobs.
        """
        look, one = plan.look, self._connection or self._connected()
        return self._retry_while_locked(
            lambda: (
                None
                if look is None or (plan.writes and is_loaded(one))
                else self._answered(one, look(), [])
            )
        )

    def _run_all(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans together; with savepoints if that fails; each alone if that fails too."""
        if len(plans) > 1:
            for run in (self._run_inside, self._run_in_savepoint):
                answers = self._run_together(run, plans)
                if answers is not None:
                    return answers
        return [self._answer(self._run_alone, plan) for plan in plans]

    def _run_alone(self, plan: Plan[T]) -> T:
        """Run a plan in its own transaction, unless its look or fast path answers."""
        answer: T | None = None if plan.look is None else self._look(plan)
        if answer is None and plan.short is not None:
            answer = self._submit_fast(plan.short)
        if answer is not None:
            return answer
        wakes: list[str] = []
        answer = self._transact(
            lambda connection: self.run_steps(connection, plan.steps, wakes), writes=plan.writes
        )
        if wakes:
            self._parts.send(wakes)
        return answer

    def _run_together(self, run: _Run, plans: Sequence[Plan[Any]]) -> list[Any] | None:
        """Run all in one transaction; None if it was rolled back."""
        wakes: list[str] = []
        try:
            answers = self._transact(
                lambda connection: [run(connection, plan, wakes) for plan in plans],
                writes=any(plan.writes for plan in plans),
            )
        except Exception as error:  # noqa: BLE001 - raised again for the plan it belongs to
            if not (isinstance(error, sqlite3.Error) and LOCKED in str(error)):
                return None
            # Running each alone would wait for the same lock again.
            return [translated(error, self._parts.settings.path) for _ in plans]
        self._parts.send(wakes)
        return answers

    def _submit_fast(self, short: IntakeSubmit) -> Any:
        """Try the fast path, one statement that is its own transaction; None: it does not apply."""
        parts = self._parts
        cursor = self._cursor or self._connected().cursor()
        connection = cursor.connection
        if connection.in_transaction:
            raise StoreError(_NESTED)
        self._cursor = None  # a signal handler that submits takes another one
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
                self._retry_while_locked(lambda: cursor.execute(short.text, parameters))
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
            # The job is stored even if this fails; then the next plan unloads.
            with suppress(sqlite3.Error):
                wakes: list[str] = []
                self._transact(lambda one: self._unload(one, wakes), writes=True)
                parts.send(wakes)
        return answer

    def _run_inside(self, connection: sqlite3.Connection, plan: Plan[Any], wakes: list[str]) -> Any:
        """Run a plan inside a transaction."""
        short = plan.short
        if short is not None:
            parameters, answer = short.at(self._parts.clock.now_us())
            cursor = connection.execute(short.text, parameters)
            if cursor.rowcount == 1:
                topic = f"queue:{short.job.queue}"
                if topic not in wakes:
                    wakes.append(topic)
                if (cursor.lastrowid or 0) >= INTAKE_MAX:
                    self._unload(connection, wakes)
                return answer
        return self.run_steps(connection, plan.steps, wakes)

    def run_steps(
        self, connection: sqlite3.Connection, steps: Callable[[], Steps[T]], wakes: list[str]
    ) -> T:
        """Run steps in a transaction, after unloading the intake; note topics to wake after it."""
        if is_loaded(connection):
            self._unload(connection, wakes)
        return self._answered(connection, steps(), wakes)

    def _unload(self, connection: sqlite3.Connection, wakes: list[str]) -> None:
        """Give the jobs of the intake numbers and places, then admit requests of users."""
        (last,) = connection.execute(sql("intake_last")).fetchone()
        connection.execute(sql("intake_unload"), (last, RANK_PER_PRIORITY, last))
        connection.execute(sql("intake_empty"))
        if rows := connection.execute(sql("intake_waiting")).fetchall():
            requests = [read_request(text, at_us) for at_us, text in rows]
            admit(connection, self._answered, wakes, requests)
            connection.execute(sql("intake_admitted"))

    def _answered(self, connection: sqlite3.Connection, steps: Steps[T], wakes: list[str]) -> T:
        """Run each step and send it the answer; an error ends the steps."""
        answer: Any = None
        now_us = 0
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            kind = type(step)
            if kind is Now:
                answer = now_us = now_us or self._parts.clock.now_us()
            elif kind is Wake:
                answer = None
                if step.topic not in wakes:
                    wakes.append(step.topic)
            else:
                answer = _asked(connection, step)

    def _run_in_savepoint(
        self, connection: sqlite3.Connection, plan: Plan[Any], wakes: list[str]
    ) -> Any:
        """Run a plan inside a transaction with a savepoint; a failure undoes this plan only."""
        own = list(wakes)
        connection.execute("savepoint plan")
        answer = self._answer(lambda plan: self._run_inside(connection, plan, own), plan)
        if isinstance(answer, Exception):
            # This fails if SQLite has rolled back the whole transaction.
            connection.execute("rollback to plan")
        else:
            wakes[:] = own
        connection.execute("release plan")
        return answer

    def _transact(self, body: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """Run `body` in a transaction; a read writes too if the intake has to be unloaded."""
        turn = self._parts.turn
        if not writes:
            read = self._retry_while_locked(
                lambda: self._transaction(
                    "begin", lambda one: None if is_loaded(one) else (body(one),)
                )
            )
            if read is not None:
                return read[0]
        try:  # around the acquire, since a signal may come right after it
            if not turn.acquire(timeout=self._parts.settings.busy_timeout_s):
                raise sqlite3.OperationalError(LOCKED)
            return self._retry_while_locked(lambda: self._transaction("begin immediate", body))
        finally:
            with suppress(RuntimeError):  # not acquired: a signal interrupted the wait
                turn.release()

    def _retry_while_locked(self, act: Callable[[], T]) -> T:
        """Retry while another process has the lock.

        SQLite itself would sleep longer and longer between two attempts, up to a tenth of a second,
        and would starve beside processes that write one job after the other.
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

    def _transaction(self, begin: str, body: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection or self._connected()
        if connection.in_transaction:
            raise StoreError(_NESTED)
        try:
            connection.execute(begin)
            answer = body(connection)
            connection.execute("commit")
        except BaseException:  # also a signal that comes once the transaction has begun
            try:
                if connection.in_transaction:
                    connection.execute("rollback")
            except sqlite3.Error:
                self.disconnect()  # a connection that cannot roll back must not keep its lock
            raise
        return answer


def is_loaded(connection: sqlite3.Connection) -> bool:
    """Whether jobs wait in the intake, or requests of users' transactions."""
    return connection.execute(sql("intake_any")).fetchone() is not None


def _asked(connection: sqlite3.Connection, step: Any) -> Any:
    """Run the statements of a step, and return its answer."""
    kind = type(step)
    answer: Any = None
    if kind is Rows:
        answer = connection.execute(step.text, step.parameters).fetchall()
    elif kind is Change:
        answer = connection.execute(step.text, step.parameters).rowcount
    elif kind is Send:
        connection.execute(step.text, step.parameters)
    elif kind is SendMany:
        connection.executemany(step.text, step.parameters)
    elif kind is Together:
        answer = [_asked(connection, one) for one in step.asked]
    else:
        raise TypeError(f"a SQLite plan cannot ask for {step!r}")
    return answer
