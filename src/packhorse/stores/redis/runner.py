# SPDX-License-Identifier: MIT
"""Runs plans: for threads and for event loops, in the same words.

What may be repeated is repeated once when its answer was lost with the connection: reads, and
verbs that change nothing the second time. A claim is never one of them: what it took is found by
the next renewal, which tells the store what the worker holds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from packhorse.clock import Clock
from packhorse.errors import StoreError
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.connection import pack
from packhorse.stores.redis.faults import Lost, ReplyError, code_of, translated
from packhorse.stores.redis.loops import LoopLine
from packhorse.stores.redis.pool import WirePool
from packhorse.stores.redis.routing import Route
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.statements import Command, Script, loaded

__all__ = ["REPEATABLE", "Runner"]

T = TypeVar("T")

#: Verbs that write, and come to the same when they are done twice.
REPEATABLE: Final = frozenset({"submit", "settle", "note_progress", "cancel", "await_finish"})
#: Replies of a server that was the primary once, or will be: a name may lead elsewhere by now.
_NOT_THE_PRIMARY: Final = frozenset({"READONLY", "MASTERDOWN", "CLUSTERDOWN"})
#: How often one request follows the namespace to another node.
_MOVES_MAX: Final = 5

#: Sends a request, and is told its reply.
_Exchange = Generator[bytes, Any, Any]


class Runner:
    """Turns steps into requests, and replies into answers."""

    def __init__(self, settings: RedisSettings, route: Route, clock: Clock | None) -> None:
        self._settings = settings
        self._route = route
        self._clock = clock

    def run(self, plan: Plan[T], pool: WirePool) -> T:
        """In the caller's thread."""
        for last in (False, True):
            exchange = self._requests(plan)
            try:
                request = next(exchange)
                while True:
                    request = exchange.send(pool.ask(request))
            except StopIteration as finished:
                answer: T = finished.value
                return answer
            except (Lost, ReplyError) as error:
                if last or not _may_repeat(plan, error):
                    raise translated(error, self._settings.label, writes=plan.writes) from error
        raise AssertionError("the second time is the last")

    async def arun(self, plan: Plan[T], line: LoopLine) -> T:
        """On an event loop."""
        for last in (False, True):
            exchange = self._requests(plan)
            try:
                request = next(exchange)
                while True:
                    request = exchange.send(await line.ask(request))
            except StopIteration as finished:
                answer: T = finished.value
                return answer
            except (Lost, ReplyError) as error:
                if last or not _may_repeat(plan, error):
                    raise translated(error, self._settings.label, writes=plan.writes) from error
        raise AssertionError("the second time is the last")

    def _requests(self, plan: Plan[T]) -> Generator[bytes, Any, T]:
        """All requests of a plan, one after the other; returns its answer."""
        steps: Steps[T] = plan.steps()
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as finished:
                answer: T = finished.value
                return answer
            reply = yield from self._exchange(step)

    def _exchange(self, step: object) -> _Exchange:
        """The requests it takes to have one step done."""
        if isinstance(step, Script):
            script = loaded(step.name)
            now = "" if self._clock is None else self._clock.now_us()
            rest = (1, self._settings.tag, now, *step.args)
            reply = yield from self._followed(pack(("EVALSHA", script.digest, *rest)))
            if isinstance(reply, ReplyError) and code_of(reply) == "NOSCRIPT":
                # The server was restarted, or told to forget; nothing was done yet.
                reply = yield from self._followed(pack(("EVAL", script.text, *rest)))
        elif isinstance(step, Command):
            reply = yield from self._followed(pack(step))
        else:
            raise TypeError(f"a Redis plan cannot ask for {step!r}")
        if isinstance(reply, Exception):
            if code_of(reply) in _NOT_THE_PRIMARY:
                self._route.mistrust()
            raise reply
        return reply

    def _followed(self, request: bytes) -> _Exchange:
        """Send a request again when another node holds the namespace."""
        reply: Any = None
        for _ in range(_MOVES_MAX):
            reply = yield request
            if not isinstance(reply, ReplyError) or code_of(reply) != "MOVED":
                return reply
            if not self._route.moved(reply):
                return reply
        raise StoreError(
            f"Redis at {self._settings.label}: the nodes send us from one to the other "
            f"({reply}); look at CLUSTER NODES"
        )


def _may_repeat(plan: Plan[Any], error: Exception) -> bool:
    """Whether to try once more: it was lost on the way, and doing it twice does no harm."""
    if not isinstance(error, Lost) or not error.sent or error.silent:
        return False
    return not plan.writes or plan.verb in REPEATABLE
