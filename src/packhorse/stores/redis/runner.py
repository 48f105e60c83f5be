# SPDX-License-Identifier: MIT
"""Run plans in threads and on event loops.

When a connection is lost before the answer came, the runner repeats reads, and verbs that change
nothing the second time, once. It never repeats a claim: the next renewal releases jobs that were
claimed in vain, since it lists the jobs that the worker holds.

A plan's look is its first try where it has one, and always has an answer. What it relies on may no
longer hold when it is repeated: ids are new only once. So a repeat runs the plan's steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from packhorse.core.clock import Clock
from packhorse.core.generators import adrive, drive
from packhorse.errors import StoreError
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.connection import Route, pack, pack_large
from packhorse.stores.redis.faults import Lost, ReplyError, code_of, translated
from packhorse.stores.redis.pipeline import SharedConnection
from packhorse.stores.redis.pool import ConnectionPool
from packhorse.stores.redis.scripts import RedisCommand, Script, loaded
from packhorse.stores.redis.settings import RedisSettings

T = TypeVar("T")

#: Verbs that write, and change nothing when they are repeated.
REPEATABLE: Final = frozenset({"submit", "settle", "note_progress", "cancel", "await_finish"})
#: Replies of a server that is not the primary now: its name may lead to another server.
_NOT_THE_PRIMARY: Final = frozenset({"READONLY", "MASTERDOWN", "CLUSTERDOWN"})
#: How often one request is sent again, such as when it follows the namespace to another node.
_REPAIRS_MAX: Final = 8


class Runner:
    """Sends the steps of plans as requests, and returns their answers."""

    def __init__(self, settings: RedisSettings, route: Route, clock: Clock | None) -> None:
        self._settings = settings
        self._tag = settings.tag
        self._route = route
        self._clock = clock

    def run(self, plan: Plan[T], pool: ConnectionPool) -> T:
        """Run a plan in the caller's thread."""
        return drive(self._requests(plan), pool.ask)

    async def arun(self, plan: Plan[T], line: SharedConnection) -> T:
        """Run a plan on an event loop."""
        return await adrive(self._requests(plan), line.ask)

    def _requests(self, plan: Plan[T]) -> Generator[bytes, Any, T]:
        """The requests of a plan, each sent its reply."""
        for last in (False, True):
            steps, reply = _steps(plan, again=last), None
            try:
                while True:
                    reply = yield from self._asked(steps.send(reply))
            except StopIteration as finished:
                answer: T = finished.value
                return answer
            except (Lost, ReplyError, UnicodeError) as error:
                if last or not _may_repeat(plan, error):
                    raise translated(error, self._settings.label, writes=plan.writes) from error
        raise AssertionError("the second time is the last")

    def _asked(self, step: object) -> Generator[bytes, Any, Any]:
        reply, repairs = (yield self._request(step)), 0
        while isinstance(reply, ReplyError):
            repairs += 1
            reply = yield self._repaired(step, reply, repairs)
        return reply

    def _request(self, step: object) -> bytes:
        """The request for a step."""
        if isinstance(step, Script):
            return self._script(step, "EVALSHA", loaded(step.name, fast=step.fast).digest)
        if isinstance(step, RedisCommand):
            return pack(step)
        raise TypeError(f"a Redis plan cannot ask for {step!r}")

    def _script(self, step: Script, command: str, script: str) -> bytes:
        command_of = pack_large if step.large else pack
        return command_of((command, script, 1, self._tag, self._now(), *step.args))

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock.now_us()

    def _repaired(self, step: object, error: ReplyError, repairs: int) -> bytes:
        """The request to send after this error reply; raise the error if there is none."""
        code = code_of(error)
        if code == "NOSCRIPT" and isinstance(step, Script) and repairs < _REPAIRS_MAX:
            # The server does not have the script yet, or forgot it; nothing was done.
            return self._script(step, "EVAL", loaded(step.name, fast=step.fast).text)
        if code == "MOVED" and self._route.moved(error):
            if repairs < _REPAIRS_MAX:
                return self._request(step)
            raise StoreError(
                f"Redis at {self._settings.label}: the nodes send us from one to the other "
                f"({error}); look at CLUSTER NODES"
            )
        if code in _NOT_THE_PRIMARY:
            self._route.mistrust()
        raise error


def _steps(plan: Plan[Any], *, again: bool) -> Steps[Any]:
    """The steps of the first try of a plan, or those of its repeat."""
    return plan.steps() if again or plan.look is None else plan.look()


def _may_repeat(plan: Plan[Any], error: Exception) -> bool:
    """Whether to try once more: the answer was lost, and repeating does no harm."""
    if not isinstance(error, Lost) or not error.sent or error.silent:
        return False
    return not plan.writes or plan.verb in REPEATABLE
