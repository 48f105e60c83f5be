# SPDX-License-Identifier: MIT
"""Hooks of an app: lifespan hooks, middlewares, and instruments that observe attempts."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from packhorse.context import Context, Proceed
from packhorse.core.outcome import Outcome
from packhorse.core.settlement import Settlement, Verdict
from packhorse.errors import ConfigError
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.executor import raised_in

Lifespan = Callable[..., Any]


@contextlib.asynccontextmanager
async def entered(lifespans: Sequence[Lifespan], app: object) -> AsyncIterator[Mapping[str, Any]]:
    """Enter all hooks in order, and leave them in the opposite one, whatever happened between.

    A lifespan hook takes the app, or nothing, and is an async or sync generator function, or
    returns an async or sync context manager. What it yields, if a mapping, joins `ctx.state`.
    """
    state: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        for lifespan in lifespans:
            yielded = await _enter(lifespan, app, stack)
            if isinstance(yielded, Mapping):
                state.update(yielded)
        yield MappingProxyType(state)


async def _enter(lifespan: Lifespan, app: object, stack: contextlib.AsyncExitStack) -> Any:
    made = lifespan(app) if inspect.signature(lifespan).parameters else lifespan()
    if inspect.isasyncgen(made):
        return await stack.enter_async_context(contextlib.asynccontextmanager(lambda: made)())
    if inspect.isgenerator(made):
        return stack.enter_context(contextlib.contextmanager(lambda: made)())
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    raise ConfigError(
        f"lifespan hook {getattr(lifespan, '__qualname__', lifespan)!r} is no generator function "
        "and returns no context manager; let it yield once"
    )


Middleware = Callable[[Context, Proceed], Awaitable[object]]
#: Called with each middleware or instrument that failed, the attempt, and the error.
Complaint = Callable[[Callable[..., object], Attempt, BaseException], None]


class Instrument(Protocol):
    """Observes attempts without wrapping them, so that they need no extra task.

    It changes nothing; what it raises is reported as `ObserverFailed`.
    """

    def entered(self, attempt: Attempt) -> None:
        """The handler is about to run in this task or thread, whose context variables are its."""
        ...

    def carrier(self, attempt: Attempt) -> Mapping[str, str]:
        """What the process that runs the handler goes on from, as headers carry it."""
        ...

    def resumed(self, carrier: Mapping[str, str]) -> None:
        """The handler is about to run in this process, and its attempt was entered in another."""
        ...

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """The attempt has come to this; one that was never entered too."""
        ...

    def settled(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],
    ) -> None:
        """The store has answered a batch."""
        ...


class Instruments:
    """Calls all instruments of a worker; none of them can harm an attempt."""

    def __init__(self, instruments: Sequence[Instrument], complain: Complaint) -> None:
        self._instruments = tuple(instruments)
        self._complain = complain

    def __bool__(self) -> bool:
        return bool(self._instruments)

    def entered(self, attempt: Attempt) -> None:
        """Tell that the attempt's handler is about to run here."""
        self._tell("entered", attempt, attempt)

    def handed_over(self, attempt: Attempt) -> dict[str, str] | None:
        """Tell that the handler is about to run in another process; return what that is given."""
        self.entered(attempt)
        carrier: dict[str, str] = {}
        for each in self._instruments:
            try:
                carrier.update(each.carrier(attempt))
            except Exception as error:  # noqa: BLE001 - users' samplers and processors run in it
                self._complain(each.carrier, attempt, error)
        return carrier or None

    def resumed(self, carrier: Mapping[str, str], attempt: Attempt) -> None:
        """Tell that the handler is about to run here, and the worker has entered it."""
        self._tell("resumed", attempt, carrier)

    def before(
        self, settle: Callable[[Attempt, Outcome], None]
    ) -> Callable[[Attempt, Outcome], None]:
        """Return a function that tells how an attempt ended, then settles it."""

        def end(attempt: Attempt, outcome: Outcome) -> None:
            self._tell("ended", attempt, attempt, outcome)
            settle(attempt, outcome)

        return end

    def settled(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],
    ) -> None:
        """Tell that the store has answered a batch."""
        self._tell("settled", attempts[0], settlements, attempts, verdicts)

    def _tell(self, verb: str, attempt: Attempt, *arguments: object) -> None:
        """Call a method of every instrument; what it raises is reported and does no harm."""
        for each in self._instruments:
            method = getattr(each, verb)
            try:
                method(*arguments)
            except Exception as error:  # noqa: BLE001 - as above
                self._complain(method, attempt, error)


class MiddlewareChain:
    """The middlewares of one worker, outermost first: `async def middleware(ctx, proceed)`.

    `await proceed()` runs the rest and returns the attempt's `Outcome`; it raises nothing of what
    the handler did. A middleware decides nothing: whatever it raises, skips or returns, the handler
    runs exactly once and its outcome stands. The handler has a task of its own, so that a time
    limit around `proceed()` ends the wait for it and nothing else.
    """

    def __init__(self, middlewares: Sequence[Middleware], complain: Complaint) -> None:
        self._middlewares = tuple(middlewares)
        self._complain = complain

    def __bool__(self) -> bool:
        return bool(self._middlewares)

    async def run(
        self,
        attempt: Attempt,
        context: Context,
        handler: Callable[[], Coroutine[Any, Any, Outcome]],
    ) -> Outcome:
        """Run the handler once, inside all middlewares."""
        handling = _Handling(attempt, handler)
        proceed: Proceed = handling.wait
        for middleware in reversed(self._middlewares):
            proceed = self._wrapped(middleware, attempt, context, proceed, handling)
        with contextlib.suppress(asyncio.CancelledError):
            await proceed()
        return await handling.outcome()

    def _wrapped(
        self,
        middleware: Middleware,
        attempt: Attempt,
        context: Context,
        inner: Proceed,
        handling: _Handling,
    ) -> Proceed:
        begun = False

        async def proceed() -> Outcome:
            nonlocal begun
            if not begun:
                begun = True
                try:
                    await middleware(context, inner)
                except BaseException as error:  # it never touches the job
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise  # an outer middleware does not wait any longer, or the worker
                    self._complain(middleware, attempt, error)
            return await handling.wait()

        return proceed


class _Handling:
    """The handler of one attempt: started once, however often and by whatever task it is asked."""

    def __init__(
        self, attempt: Attempt, handler: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> None:
        self._attempt = attempt
        self._handler = handler
        self._loop = asyncio.get_running_loop()

    async def wait(self) -> Outcome:
        """Start it, unless that was done, and wait; cancelling the wait does not cancel it."""
        attempt = self._attempt
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("proceed() was called on another event loop; await it on its own")
        if attempt.handling is None:
            attempt.handling = self._loop.create_task(self._handle())
        await asyncio.wait({attempt.handling})
        return attempt.outcome or raised_in(attempt, asyncio.CancelledError())

    async def outcome(self) -> Outcome:
        """Wait to the end, whatever cancels the waiting; an attempt that is given up is over."""
        while True:
            try:
                return await self.wait()
            except asyncio.CancelledError as error:
                if self._attempt.stage is Stage.ABANDONED:
                    return raised_in(self._attempt, error)

    async def _handle(self) -> None:
        self._attempt.outcome = await self._handler()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
