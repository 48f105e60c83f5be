# SPDX-License-Identifier: MIT
"""What takes time in a step: its function, the store, a pause.

Each verb is written once, as a coroutine that is given `Calls`. On an event loop it awaits them. In
a thread they block instead, so that the coroutine never waits and ends in one go (`finished`).
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from packhorse.attempt_host import AttemptHost, Question
from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.job import RetryRule
from packhorse.core.policies.retry import qualified_name, retry_delay_us, wants_retry
from packhorse.errors import StepTimeout, UsageError

T = TypeVar("T")

_CHANCE: Final = SystemChance()  # for the jitter of a step's own retries
_Around = Callable[[str], AbstractContextManager[None]]
#: A context manager to enter around each step of the current attempt; tracing sets it.
_AROUND: Final[ContextVar[_Around | None]] = ContextVar("packhorse_step", default=None)


Work = Coroutine[Any, Any, T]


class Invoke(msgspec.Struct, frozen=True):
    """The function of a step."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout_s: float | None


class Waiter(Protocol):
    """Waits until a job is cancelled."""

    def wait_cancelled(self, timeout: float | None = None) -> bool: ...
    async def await_cancelled(self, timeout: float | None = None) -> bool: ...


class Calls(Protocol):
    """How a verb does what takes time."""

    def invoke(self, asked: Invoke) -> Awaitable[Any]:
        """Call the function of a step."""
        ...

    def ask(self, host: AttemptHost, asking: Question[T]) -> Awaitable[T]:
        """Ask the store."""
        ...

    def write(self, host: AttemptHost, values: dict[str, bytes]) -> Awaitable[bool]:
        """Attach values to the job; return whether the attempt still holds it."""
        ...

    def pause(self, waiter: Waiter, seconds: float) -> Awaitable[bool]:
        """Wait this long or until the job is cancelled; return whether it was."""
        ...


class _LoopCalls:
    """Without blocking the event loop."""

    def invoke(self, asked: Invoke) -> Awaitable[Any]:
        """Await a coroutine function; call any other in a thread."""
        enter = _AROUND.get()
        if enter is None and asked.timeout_s is None:
            return _awaited(asked)
        return _ainvoked(asked, enter or _around_nothing)

    def ask(self, host: AttemptHost, asking: Question[T]) -> Awaitable[T]:
        return host.aask(asking)

    def write(self, host: AttemptHost, values: dict[str, bytes]) -> Awaitable[bool]:
        return host.aattach(values)

    def pause(self, waiter: Waiter, seconds: float) -> Awaitable[bool]:
        return waiter.await_cancelled(seconds)


class _ThreadCalls:
    """In the caller's thread: coroutines that block, and end when they are first sent to."""

    async def invoke(self, asked: Invoke) -> Any:
        """Call in this thread; with a timeout in another one, which is abandoned if it is late."""
        with (_AROUND.get() or _around_nothing)(asked.name):
            return _invoked(asked)

    async def ask(self, host: AttemptHost, asking: Question[T]) -> T:
        return host.ask(asking)

    async def write(self, host: AttemptHost, values: dict[str, bytes]) -> bool:
        return host.attach(values)

    async def pause(self, waiter: Waiter, seconds: float) -> bool:
        return waiter.wait_cancelled(seconds)


ON_LOOP: Final[Calls] = _LoopCalls()
IN_THREAD: Final[Calls] = _ThreadCalls()


def finished(work: Work[T]) -> T:
    """Run work that was given `IN_THREAD` to its end, in this thread."""
    try:
        work.send(None)
    except StopIteration as done:
        # Not by a local name: an exception in the value holds this frame, and so itself.
        return cast("T", done.value)
    work.close()
    raise AssertionError("a step that runs in a thread waits for an event loop")


async def called(calls: Calls, waiter: Waiter, asked: Invoke, rule: RetryRule) -> Any:
    """Call the function, and retry it by the step's own policy."""
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
    """Enter `enter(name)` around each step that the current context runs."""
    _AROUND.set(enter)


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
    try:
        if error is not None:
            raise error
    finally:  # it holds this frame: a cycle that would keep it alive
        del error
        ended.clear()
    return _settled(asked, value)


def _settled(asked: Invoke, value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise UsageError(
            f"step {asked.name!r} calls a coroutine function, which only 'await ctx.astep()' in an "
            "'async def' handler can do"
        )
    return value


def _around_nothing(_name: str) -> AbstractContextManager[None]:
    return nullcontext()


async def _ainvoked(asked: Invoke, enter: _Around) -> Any:
    import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

    bound = asyncio.timeout(asked.timeout_s)
    with enter(asked.name):
        try:
            async with bound:
                return await _awaited(asked)
        except TimeoutError as error:
            if bound.expired():
                raise _overdue(asked) from error
            raise


def _awaited(asked: Invoke) -> Awaitable[Any]:
    function = asked.function
    # For most functions the flag says the same, and faster.
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
