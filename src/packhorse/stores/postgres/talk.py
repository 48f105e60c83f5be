# SPDX-License-Identifier: MIT
"""One plan on one connection, as a conversation: what a thread and an event loop both drive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from psycopg import Error
from psycopg.pq.abc import PGresult

from packhorse.clock import Clock
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.errors import has_answered, is_passing
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import (
    Change,
    ChangeMany,
    Given,
    Lock,
    Now,
    Once,
    Parameters,
    Rows,
    Send,
    Short,
    Together,
)
from packhorse.stores.postgres.texts import SERVER_NOW, Texts
from packhorse.stores.postgres.wire import Call, Conversation, Line, converse

__all__ = ["NOTIFY", "Shared", "Talk", "answers_of", "perform"]

T = TypeVar("T")

_BEGIN: Final = "begin"
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
_NOT_ONCE: Final = "beside `Once` a plan has no other statements; ask for `Rows` instead"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all conversations of a store share."""

    settings: PostgresSettings
    texts: Texts
    clock: Clock | None  #: given in, or None: the server's own judges
    channel: str
    #: Which of these topics to tell now, as payloads; the others are told a little later.
    due: Callable[[Sequence[str]], Sequence[str]]
    #: Whether the server keeps to the statement timeout without being told in each transaction.
    timeouts_hold: Callable[[], bool]


def perform(line: Line, plan: Plan[T], shared: Shared) -> Conversation[T]:
    """Ask the cheap question first, if the plan has one; then run it in a transaction."""
    line.committing = line.committed = False
    short = plan.short
    if short is not None and not short.tried and shared.timeouts_hold():
        short.tried = True
        [found] = yield from answers_of(line, [short], shared)
        if found is not None:
            return cast("T", found)
    if plan.look is not None:
        found = yield from Talk(line, shared, writes=plan.writes).run(plan.look(), reading=True)
        if found is not None:
            return found
        line.committed = False  # it says so
    answer: T = yield from Talk(line, shared, writes=plan.writes).run(plan.steps())
    return answer


def answers_of(line: Line, shorts: Sequence[Short[Any]], shared: Shared) -> Conversation[list[Any]]:
    """What statements that share a commit come to; whom they wake is told after it."""
    given_us = None if shared.clock is None else shared.clock.now_us()
    statement = shared.texts.statement
    calls = [Call(statement(short.text, given_us), short.parameters) for short in shorts]
    topics = shorts[0].topics
    if len(shorts) > 1:
        topics = list(dict.fromkeys([topic for short in shorts for topic in short.topics]))
    payloads = shared.due(topics) if topics else ()
    groups = [calls]
    if payloads:
        groups.append([Call(statement(NOTIFY), (shared.channel, one)) for one in payloads])
    line.committing = True
    try:
        results = yield from converse(line, groups)
    except Exception as error:
        if has_answered(error):
            line.committing = False
        raise
    line.committing = False
    return [
        short.answer(result.command_tuples or 0 if short.counts else line.rows(result))
        for short, result in zip(shorts, results, strict=False)  # those of the notices follow
    ]


class Talk:
    """The steps of one plan, answered."""

    def __init__(self, line: Line, shared: Shared, *, writes: bool) -> None:
        self._line = line
        self._shared = shared
        self._writes = writes
        self._queue: list[Call] = []
        self._begun = False
        self._once = False
        self._reading = False
        self._given: int | None = None
        self._now_us: int | None = None
        self._wakes: list[str] = []

    def run(self, steps: Steps[T], *, reading: bool = False) -> Conversation[T]:
        """All steps; `reading`: what is not a `Once` only reads, and takes no lock."""
        self._reading = reading or not self._writes
        try:
            result = yield from self._follow(steps)
            yield from self._commit()
        except Exception as error:
            yield from self._undo(error)
            raise
        return result

    def _follow(self, steps: Steps[T]) -> Conversation[T]:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as finished:
                result: T = finished.value
                return result
            answer = yield from self._answer(step)

    # ----------------------------------------------------------------------------------- answers

    def _answer(self, step: Any) -> Conversation[Any]:
        kind = type(step)
        if kind is Rows:
            [result] = yield from self._ask([self._call(step.text, step.parameters)])
            return self._line.rows(result)
        if kind is Once:
            return (yield from self._answer_once(step))
        if kind is Change:
            [result] = yield from self._ask([self._call(step.text, step.parameters)])
            return result.command_tuples or 0
        if kind is Now:
            return (yield from self._answer_now())
        if kind is Together or kind is ChangeMany:
            return (yield from self._answer_many(step))
        return self._take_note(step)

    def _take_note(self, step: Any) -> int | None:
        """What needs no answer of the server."""
        match step:
            case Wake():
                if step.topic not in self._wakes:
                    self._wakes.append(step.topic)
            case Send():
                self._queue.append(self._call(step.text, step.parameters))
            case Lock():
                self._lock(step)
            case Given():
                return self._given_us()
            case _:
                raise TypeError(f"a PostgreSQL plan cannot ask for {step!r}")
        return None

    def _answer_many(self, step: Together | ChangeMany) -> Conversation[Any]:
        if isinstance(step, ChangeMany):
            calls = [self._call(step.text, parameters) for parameters in step.parameters]
            results = (yield from self._ask(calls)) if calls else []
            return sum(result.command_tuples or 0 for result in results)
        calls = [self._call(one.text, one.parameters) for one in step.steps]
        results = yield from self._ask(calls)
        return tuple(
            self._line.rows(result) if type(one) is Rows else result.command_tuples or 0
            for one, result in zip(step.steps, results, strict=True)
        )

    def _answer_now(self) -> Conversation[int]:
        if self._now_us is None:
            self._now_us = self._given_us()
        if self._now_us is None:
            now = self._call(_NOW)
            if not self._begun and not self._queue:  # what comes next may be a `Once`
                [result] = yield from converse(self._line, [[now]])
                [(self._now_us,)] = self._line.rows(result)
            elif self._begun or self._reading:
                [result] = yield from self._ask([now])
                [(self._now_us,)] = self._line.rows(result)
            else:  # it comes with the beginning
                yield from self._ask([])
        assert self._now_us is not None  # noqa: S101 - it has been asked for
        return self._now_us

    def _answer_once(self, step: Once) -> Conversation[list[tuple[Any, ...]]]:
        if self._begun or self._queue:
            raise TypeError(_NOT_ONCE)
        self._once = True
        calls = [self._call(step.text, step.parameters)]
        if not self._shared.timeouts_hold():
            calls = [*self._opening(), *calls, self._call(_COMMIT)]
        groups = [calls, *self._notices()]
        results = yield from self._repeated(groups)
        return self._line.rows(results[0 if len(calls) == 1 else len(calls) - 2])

    def _repeated(self, groups: Sequence[Sequence[Call]]) -> Conversation[list[PGresult]]:
        """Commit by itself, again if others were in the way: what came before stays."""
        for remaining in reversed(range(_ONCE_MAX)):
            try:
                results = yield from self._converse(groups, commits=self._writes)
            except Error as error:
                if not remaining or not is_passing(error):
                    raise
                yield from self._undo(error)
            else:
                self._line.committed = self._line.committed or self._writes
                return results
        raise AssertionError("unreachable")  # the last round returns or raises

    # ------------------------------------------------------------------------------ transactions

    def _ask(self, calls: Sequence[Call]) -> Conversation[list[PGresult]]:
        """Send what was queued and these calls; the results of these."""
        if self._once:
            raise TypeError(_NOT_ONCE)
        queued, self._queue = self._queue, []
        asks_time = False
        if not self._begun:
            # Most that write want to know the time, once they have their locks.
            asks_time = not self._reading and self._now_us is None and self._shared.clock is None
            queued = [*self._opening(), *queued, *([self._call(_NOW)] if asks_time else ())]
            self._begun = True
        results = yield from converse(self._line, [[*queued, *calls]])
        if asks_time:
            [(self._now_us,)] = self._line.rows(results[len(queued) - 1])
        return results[len(queued) :]

    def _opening(self) -> list[Call]:
        opening = [self._call(_BEGIN_READING if self._reading and not self._once else _BEGIN)]
        if not self._shared.timeouts_hold():
            limits = self._shared.settings.server_timeouts.items()
            opening += [self._call(f"set local {name} = {value}") for name, value in limits]
        return opening

    def _commit(self) -> Conversation[None]:
        """End the transaction and tell whoever waits for it, in one round trip."""
        groups: list[list[Call]] = []
        if self._begun:
            groups.append([*self._queue, self._call(_COMMIT)])
        elif self._queue:
            groups.append([*self._opening(), *self._queue, self._call(_COMMIT)])
        commits = bool(groups) and not self._reading
        groups += self._notices()
        if groups:
            yield from self._converse(groups, commits=commits)
        self._begun = False

    def _converse(
        self, groups: Sequence[Sequence[Call]], *, commits: bool
    ) -> Conversation[list[PGresult]]:
        self._line.committing = commits
        results = yield from converse(self._line, groups)
        self._line.committing = False
        return results

    def _undo(self, error: Exception) -> Conversation[None]:
        # A server that refuses has not committed; one that was lost may have, and so may one
        # that is going down.
        if has_answered(error):
            self._line.committing = False
        if self._line.in_transaction:
            yield from converse(self._line, [[self._call(_ROLLBACK)]])

    def _notices(self) -> list[list[Call]]:
        """After the commit, and apart from it: a commit that notifies holds up all others."""
        wakes, self._wakes = self._wakes, []
        payloads = self._shared.due(wakes) if wakes else ()
        channel = self._shared.channel
        return [[self._call(NOTIFY, (channel, payload)) for payload in payloads]] * bool(payloads)

    # --------------------------------------------------------------------------------- statements

    def _call(self, text: str, parameters: Parameters = ()) -> Call:
        return Call(self._shared.texts.statement(text, self._given_us()), parameters)

    def _given_us(self) -> int | None:
        if self._given is None and self._shared.clock is not None:
            self._given = self._shared.clock.now_us()
        return self._given

    def _lock(self, step: Lock) -> None:
        if step.keys:
            text = _LOCK_SHARED if step.shared else _LOCK
            self._queue.append(self._call(text, (sorted(set(step.keys)),)))
