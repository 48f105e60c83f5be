# SPDX-License-Identifier: MIT
"""Run one plan on one connection: an exchange that a thread and an event loop both drive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from psycopg import Error
from psycopg.pq.abc import PGresult

from packhorse.core.clock import Clock
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.errors import has_answered, is_passing
from packhorse.stores.postgres.pipeline import Command, Exchange, PipelinedConnection, exchange
from packhorse.stores.postgres.rendering import SERVER_NOW, Texts
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import Commit, Lock, Once, Short
from packhorse.stores.postgres.wakeups import Due
from packhorse.stores.sql.statements import Change, Now, Parameters, Rows, Send, SendMany, Together

T = TypeVar("T")

#: Whatever the default of the database is: what is read after a lock must be what it protects.
BEGIN: Final = "begin isolation level read committed"
_BEGIN_READING: Final = "begin isolation level repeatable read read only"
_COMMIT: Final = "commit"
_ROLLBACK: Final = "rollback"
_NOW: Final = f"select {SERVER_NOW}"
NOTIFY: Final = "select pg_notify(%s, %s)"
_LOCK: Final = "select pg_advisory_xact_lock({lock_key}(key)) from unnest(%s::text[]) key"
_LOCK_SHARED: Final = (
    "select pg_advisory_xact_lock_shared({lock_key}(key)) from unnest(%s::text[]) key"
)
#: Runs of a statement that commits by itself, when others are in its way.
_ONCE_MAX: Final = 10
_NOTHING_DUE: Final = Due((), ())
_NOT_ONCE: Final = "beside `Once` a plan has no other statements; ask for `Rows` instead"


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What all transactions of a store share."""

    settings: PostgresSettings
    texts: Texts
    clock: Clock | None  #: given by a test; None: the server's clock
    channel: str
    #: Tells which topics to notify with a commit, and which a little after it, by `later`.
    due: Callable[[Sequence[str]], Due]
    later: Callable[[Sequence[str]], None]
    #: Whether `server_settings` hold without being set in each transaction.
    settings_hold: Callable[[], bool]


def run_plan(connection: PipelinedConnection, plan: Plan[T], context: StoreContext) -> Exchange[T]:
    """Try the plan's cheap ways first, if it has any; then run its steps in a transaction."""
    connection.committing = connection.committed = False
    short = plan.short
    if short is not None and not short.tried and context.settings_hold():
        short.tried = True
        [found] = yield from run_shorts(connection, [short], context)
        if found is not None:
            return cast("T", found)
    if plan.look is not None:
        look = Transaction(connection, context, writes=plan.writes)
        found = yield from look.run(plan.look(), reading=True)
        if found is not None:
            return found
        connection.committed = False  # None says that nothing was written
    answer: T = yield from Transaction(connection, context, writes=plan.writes).run(plan.steps())
    return answer


def run_shorts(
    connection: PipelinedConnection, shorts: Sequence[Short[Any]], context: StoreContext
) -> Exchange[list[Any]]:
    """Run statements in one commit, notify their topics after it, and return their answers."""
    given_us = None if context.clock is None else context.clock.now_us()
    statement = context.texts.statement
    commands = [Command(statement(short.text, given_us), short.parameters) for short in shorts]
    topics = shorts[0].topics
    if len(shorts) > 1:
        topics = list(dict.fromkeys([topic for short in shorts for topic in short.topics]))
    payloads, waiting = context.due(topics) if topics else _NOTHING_DUE
    groups = [commands]
    if payloads:
        groups.append([Command(statement(NOTIFY), (context.channel, one)) for one in payloads])
    connection.committing = True
    try:
        results = yield from exchange(connection, groups)
    except Exception as error:
        if has_answered(error):
            connection.committing = False
        raise
    finally:  # if there was no answer, it may be committed
        if waiting:
            context.later(waiting)
    connection.committing = False
    return [
        short.answer(result.command_tuples or 0 if short.counts else connection.rows(result))
        for short, result in zip(shorts, results, strict=False)  # the results of NOTIFY follow
    ]


class Transaction:
    """Answers the steps of one plan."""

    def __init__(
        self, connection: PipelinedConnection, context: StoreContext, *, writes: bool
    ) -> None:
        self._connection = connection
        self._context = context
        self._writes = writes
        self._queue: list[Command] = []
        self._begun = False
        self._once = False
        self._reading = False
        self._given: int | None = None
        self._now_us: int | None = None
        self._wakes: list[str] = []
        self._waiting: Sequence[str] = ()

    def run(self, steps: Steps[T], *, reading: bool = False) -> Exchange[T]:
        """Run all steps; `reading`: all but `Once` only reads, and takes no lock."""
        self._reading = reading or not self._writes
        try:
            result = yield from self._follow(steps)
            yield from self._commit()
        except Exception as error:
            yield from self._undo(error)
            raise
        return result

    def _follow(self, steps: Steps[T]) -> Exchange[T]:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as finished:
                result: T = finished.value
                return result
            answer = yield from self._answer(step)

    # ----------------------------------------------------------------------------------- answers

    def _answer(self, step: Any) -> Exchange[Any]:
        kind = type(step)
        if kind is Rows:
            [result] = yield from self._ask([self._command(step.text, step.parameters)])
            return self._connection.rows(result)
        if kind is Once:
            return (yield from self._answer_once(step))
        if kind is Change:
            [result] = yield from self._ask([self._command(step.text, step.parameters)])
            return result.command_tuples or 0
        if kind is Now:
            return (yield from self._answer_now())
        if kind is Together:
            commands = [self._command(one.text, one.parameters) for one in step.asked]
            return [self._connection.rows(one) for one in (yield from self._ask(commands))]
        if kind is Commit:
            return (yield from self._answer_commit())
        return self._take_note(step)

    def _take_note(self, step: Any) -> None:
        """Note a step that needs no answer of the server."""
        match step:
            case Wake():
                if step.topic not in self._wakes:
                    self._wakes.append(step.topic)
            case Send():
                self._queue.append(self._command(step.text, step.parameters))
            case SendMany():
                self._queue += [self._command(step.text, each) for each in step.parameters]
            case Lock():
                self._lock(step)
            case _:
                raise TypeError(f"a PostgreSQL plan cannot ask for {step!r}")

    def _answer_now(self) -> Exchange[int]:
        if self._now_us is None:
            self._now_us = self._given_us()
        if self._now_us is None:
            now = self._command(_NOW)
            if not self._begun and not self._queue:  # what comes next may be a `Once`
                [result] = yield from exchange(self._connection, [[now]])
                [(self._now_us,)] = self._connection.rows(result)
            elif self._begun or self._reading:
                [result] = yield from self._ask([now])
                [(self._now_us,)] = self._connection.rows(result)
            else:  # `_ask` reads it when it begins
                yield from self._ask([])
        assert self._now_us is not None  # noqa: S101 - it has been asked for
        return self._now_us

    def _answer_once(self, step: Once) -> Exchange[list[tuple[Any, ...]]]:
        if self._begun or self._queue:
            raise TypeError(_NOT_ONCE)
        self._once = True
        commands = [self._command(step.text, step.parameters)]
        if not self._context.settings_hold():
            commands = [*self._opening(), *commands, self._command(_COMMIT)]
        groups = [commands, *self._notices()]
        try:
            results = yield from self._repeated(groups)
        finally:
            self._notify_later()
        return self._connection.rows(results[0 if len(commands) == 1 else len(commands) - 2])

    def _answer_commit(self) -> Exchange[None]:
        yield from self._commit()
        self._queue, self._now_us = [], None
        self._connection.committed = True

    def _repeated(self, groups: Sequence[Sequence[Command]]) -> Exchange[list[PGresult]]:
        """Run statements that commit by themselves, again when others were in the way."""
        for remaining in reversed(range(_ONCE_MAX)):
            try:
                results = yield from self._exchange(groups, commits=self._writes)
            except Error as error:
                if not remaining or not is_passing(error):
                    raise
                yield from self._undo(error)
            else:
                self._connection.committed = self._connection.committed or self._writes
                return results
        raise AssertionError("unreachable")  # the last round returns or raises

    # ------------------------------------------------------------------------------ transactions

    def _ask(self, commands: Sequence[Command]) -> Exchange[list[PGresult]]:
        """Send what was queued and these commands; return the results of these."""
        if self._once:
            raise TypeError(_NOT_ONCE)
        queued, self._queue = self._queue, []
        asks_time = False
        if not self._begun:
            # Most plans that write ask for the time next, once they have their locks.
            asks_time = not self._reading and self._now_us is None and self._context.clock is None
            queued = [*self._opening(), *queued, *([self._command(_NOW)] if asks_time else ())]
            self._begun = True
        results = yield from exchange(self._connection, [[*queued, *commands]])
        if asks_time:
            [(self._now_us,)] = self._connection.rows(results[len(queued) - 1])
        return results[len(queued) :]

    def _opening(self) -> list[Command]:
        opening = [self._command(_BEGIN_READING if self._reading and not self._once else BEGIN)]
        if not self._context.settings_hold():
            ours = self._context.settings.server_settings.items()
            opening += [self._command(f"set local {name} = {value}") for name, value in ours]
        return opening

    def _commit(self) -> Exchange[None]:
        """Commit and notify in one round trip."""
        groups: list[list[Command]] = []
        if self._begun:
            groups.append([*self._queue, self._command(_COMMIT)])
        elif self._queue:
            groups.append([*self._opening(), *self._queue, self._command(_COMMIT)])
        commits = bool(groups) and not self._reading
        groups += self._notices()
        try:
            if groups:
                yield from self._exchange(groups, commits=commits)
        finally:
            self._notify_later()
        self._begun = False

    def _exchange(
        self, groups: Sequence[Sequence[Command]], *, commits: bool
    ) -> Exchange[list[PGresult]]:
        self._connection.committing = commits
        results = yield from exchange(self._connection, groups)
        self._connection.committing = False
        return results

    def _undo(self, error: Exception) -> Exchange[None]:
        # A server that answers with an error has not committed. A lost one may have.
        if has_answered(error):
            self._connection.committing = False
        if self._connection.in_transaction:
            yield from exchange(self._connection, [[self._command(_ROLLBACK)]])

    def _notices(self) -> list[list[Command]]:
        """Commands for after the commit: a transaction that notifies blocks other commits."""
        wakes, self._wakes = self._wakes, []
        payloads, self._waiting = self._context.due(wakes) if wakes else _NOTHING_DUE
        channel = self._context.channel
        notices = [self._command(NOTIFY, (channel, payload)) for payload in payloads]
        return [notices] if notices else []

    def _notify_later(self) -> None:
        """Once the commit is answered, or once there is no answer: it may have happened."""
        waiting, self._waiting = self._waiting, ()
        if waiting:
            self._context.later(waiting)

    # --------------------------------------------------------------------------------- statements

    def _command(self, text: str, parameters: Parameters = ()) -> Command:
        return Command(self._context.texts.statement(text, self._given_us()), parameters)

    def _given_us(self) -> int | None:
        if self._given is None and self._context.clock is not None:
            self._given = self._context.clock.now_us()
        return self._given

    def _lock(self, step: Lock) -> None:
        if step.keys:
            text = _LOCK_SHARED if step.shared else _LOCK
            self._queue.append(self._command(text, (sorted(set(step.keys)),)))
