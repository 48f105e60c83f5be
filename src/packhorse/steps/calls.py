# SPDX-License-Identifier: MIT
"""Call the function of a step: with a time-out, and again where the step's own policy says so.

What steps ask for is a value each, which a thread or an event loop answers.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from typing import Any, Final, NamedTuple, TypeVar

from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.job import RetryRule
from packhorse.core.policies.retry import qualified_name, retry_delay_us, wants_retry
from packhorse.errors import StepTimeout, UsageError

T = TypeVar("T")

_CHANCE: Final = SystemChance()  # for the jitter of a step's own retries
_Around = Callable[[str], AbstractContextManager[None]]
#: What is entered around each step of the attempt that runs here; traces are.
_AROUND: Final[ContextVar[_Around | None]] = ContextVar("packhorse_step", default=None)


class Read(NamedTuple):
    """Read what is kept with the job."""


class Write(NamedTuple):
    """Keep values with the job."""

    values: dict[str, bytes]


class Invoke(NamedTuple):
    """Call the function of a step."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout_s: float | None


class Pause(NamedTuple):
    """Wait, but not longer than the job is wanted; the answer says that it is not."""

    seconds: float


Work = Generator[Read | Write | Invoke | Pause, Any, T]


def called(asked: Invoke, rule: RetryRule) -> Work[Any]:
    """Call the function, again where the step's own policy says so."""
    for retry in itertools.count(1):
        try:
            return (yield asked)
        except Exception as error:
            if retry > rule.max_retries or not _is_retried(rule, error):
                raise
            delay_us = retry_delay_us(rule, retry, roll=_CHANCE.roll())
            if (yield Pause(delay_us / SECOND_US)):
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
