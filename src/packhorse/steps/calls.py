# SPDX-License-Identifier: MIT
"""What takes time in a step: its function, the store, a pause.

Verbs are coroutines, each written once, and are given `Calls`: on an event loop these are awaited,
in a thread they block instead, so that a verb never waits there and ends in one go (`finished`).
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.job import RetryRule
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.retry import qualified_name, retry_delay_us, wants_retry
from packhorse.errors import StepTimeout, UsageError
from packhorse.hosts import AttemptHost

T = TypeVar("T")

_CHANCE: Final = SystemChance()  # for the jitter of a step's own retries
_Around = Callable[[str], AbstractContextManager[None]]
#: What is entered around each step of the attempt that runs here; traces are.
_AROUND: Final[ContextVar[_Around | None]] = ContextVar("packhorse_step", default=None)


Work = Coroutine[Any, Any, T]


class Invoke(NamedTuple):
    """The function of a step."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout_s: float | None


class Waiter(Protocol):
    """Who knows when a job is not wanted any more."""

    def wait_cancelled(self, timeout: float | None = None) -> bool: ...
    async def await_cancelled(self, timeout: float | None = None) -> bool: ...


class Calls(Protocol):
    """How a verb does what takes time."""

    def invoke(self, asked: Invoke) -> Awaitable[Any]:
        """Call the function of a step."""
        ...

    def read(self, host: AttemptHost) -> Awaitable[Attachments]:
        """Read what is kept with the job."""
        ...

    def write(self, host: AttemptHost, values: dict[str, bytes]) -> Awaitable[bool]:
        """Keep values with the job; says whether the attempt holds it."""
        ...

    def pause(self, waiter: Waiter, seconds: float) -> Awaitable[bool]:
        """Wait, but not longer than the job is wanted; says that it is not."""
        ...


class _LoopCalls:
    """Without blocking the event loop."""

    def invoke(self, asked: Invoke) -> Awaitable[Any]:
        return ainvoked(asked)

    def read(self, host: AttemptHost) -> Awaitable[Attachments]:
        return host.aattachments()

    def write(self, host: AttemptHost, values: dict[str, bytes]) -> Awaitable[bool]:
        return host.aattach(values)

    def pause(self, waiter: Waiter, seconds: float) -> Awaitable[bool]:
        return waiter.await_cancelled(seconds)


class _ThreadCalls:
    """In the caller's thread: a coroutine in name, which is over when it is first asked."""

    async def invoke(self, asked: Invoke) -> Any:
        return invoked(asked)

    async def read(self, host: AttemptHost) -> Attachments:
        return host.attachments()

    async def write(self, host: AttemptHost, values: dict[str, bytes]) -> bool:
        return host.attach(values)

    async def pause(self, waiter: Waiter, seconds: float) -> bool:
        return waiter.wait_cancelled(seconds)


ON_LOOP: Final[Calls] = _LoopCalls()
IN_THREAD: Final[Calls] = _ThreadCalls()


def finished(work: Work[T]) -> T:
    """Run work to its end in this thread; it was given `IN_THREAD`."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a step that runs in a thread waits for an event loop")


async def called(calls: Calls, waiter: Waiter, asked: Invoke, rule: RetryRule) -> Any:
    """Call the function, again where the step's own policy says so."""
    for retry in itertools.count(1):
        try:
            return await calls.invoke(asked)
        except Exception as error:
            if retry > rule.max_retries or not _is_retried(rule, error):
                raise
            delay_us = retry_delay_us(rule, retry, roll=_CHANCE.roll())
            if await calls.pause(waiter, delay_us / SECOND_US):
                raise
    raise AssertionError  # counting does not end


def _is_retried(rule: RetryRule, error: Exception) -> bool:
    if isinstance(error, StepTimeout) and not rule.retry_timeouts:
        return False
    return wants_retry(rule, [qualified_name(kind) for kind in type(error).__mro__])


def around_steps(enter: _Around) -> None:
    """Enter this around each step that the code called from here runs, with the step's name."""
    _AROUND.set(enter)


def invoked(asked: Invoke) -> Any:
    """Call in this thread; with a time-out in another, which is left behind if it is late."""
    enter = _AROUND.get()
    if enter is None:
        return _invoked(asked)
    with enter(asked.name):
        return _invoked(asked)


def _invoked(asked: Invoke) -> Any:
    if asked.timeout_s is None:
        return _settled(asked, asked.function(*asked.args))
    ended: list[Any] = []
    context = copy_context()

    def call() -> None:
        try:
            ended.extend((context.run(asked.function, *asked.args), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            ended.extend((None, error))

    thread = threading.Thread(target=call, name=f"packhorse-step-{asked.name}", daemon=True)
    thread.start()
    thread.join(asked.timeout_s)
    if not ended:
        raise _overdue(asked)
    value, error = ended
    if error is not None:
        raise error
    return _settled(asked, value)


def _settled(asked: Invoke, value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise UsageError(
            f"step {asked.name!r} calls a coroutine function, which only 'await ctx.astep()' in an "
            "'async def' handler can do"
        )
    return value


def ainvoked(asked: Invoke) -> Awaitable[Any]:
    """Await a coroutine function; call any other in a thread."""
    enter = _AROUND.get()
    if enter is not None:
        return _around(asked, enter)
    return _awaited(asked) if asked.timeout_s is None else _ainvoked(asked, asked.timeout_s)


async def _around(asked: Invoke, enter: _Around) -> Any:
    with enter(asked.name):
        if asked.timeout_s is None:
            return await _awaited(asked)
        return await _ainvoked(asked, asked.timeout_s)


async def _ainvoked(asked: Invoke, timeout_s: float) -> Any:
    import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

    bound = asyncio.timeout(timeout_s)
    try:
        async with bound:
            return await _awaited(asked)
    except TimeoutError as error:
        if bound.expired():
            raise _overdue(asked) from error
        raise


def _awaited(asked: Invoke) -> Awaitable[Any]:
    function = asked.function
    # The flag says the same of most functions, and sooner.
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & inspect.CO_COROUTINE or inspect.iscoroutinefunction(function):
        begun: Awaitable[Any] = function(*asked.args)
        return begun
    return _in_thread(asked)


async def _in_thread(asked: Invoke) -> Any:
    import asyncio  # noqa: PLC0415 - as above

    value = await asyncio.to_thread(asked.function, *asked.args)
    return await value if inspect.isawaitable(value) else value


def _overdue(asked: Invoke) -> StepTimeout:
    return StepTimeout(f"step {asked.name!r} took longer than its timeout of {asked.timeout_s} s")
