# SPDX-License-Identifier: MIT
"""Run work that asks for what it needs, in a thread or on an event loop.

Work is a generator: it yields what it asks for and is sent the answer, so that it is written once
for both. `blocking` and `awaited` make the two verbs of a class from a method that is work:

    @blocking
    def status(self) -> Asking[JobStatus]:
        return (yield from self._record()).status

    astatus = awaited(status)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


def drive(work: Generator[A, Any, T], answer: Callable[[A], Any]) -> T:
    """Run work to its end; an error that an answer raises is raised in the work."""
    given: Any = None
    error: BaseException | None = None
    try:
        while True:
            asked = work.send(given) if error is None else work.throw(error)
            given = error = None
            try:
                given = answer(asked)
            except BaseException as raised:  # noqa: BLE001 - thrown into the work
                error = raised
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        error = None  # it holds this frame


async def adrive(work: Generator[A, Any, T], answer: Callable[[A], Awaitable[Any]]) -> T:
    """As `drive`, without blocking the event loop."""
    given: Any = None
    error: BaseException | None = None
    try:
        while True:
            asked = work.send(given) if error is None else work.throw(error)
            given = error = None
            try:
                given = await answer(asked)
            except BaseException as raised:  # noqa: BLE001 - thrown into the work
                error = raised
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        error = None  # it holds this frame


class _Drives(Protocol):
    def _drive(self, work: Generator[Any, Any, T]) -> T: ...
    async def _adrive(self, work: Generator[Any, Any, T]) -> T: ...


D = TypeVar("D", bound=_Drives)


def blocking(
    work: Callable[Concatenate[D, P], Generator[Any, Any, T]],
) -> Callable[Concatenate[D, P], T]:
    """Turn a method that is work into a verb that runs it, in the caller's thread."""

    @wraps(work)
    def verb(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive(work(self, *args, **kwargs))

    returned = work.__annotations__["return"]  # `Asking[bool]`: users are shown a verb that answers
    work.__annotations__["return"] = returned.partition("[")[2][:-1]
    return verb


def awaited(
    verb: Callable[Concatenate[D, P], T],
) -> Callable[Concatenate[D, P], Coroutine[Any, Any, T]]:
    """Make the a-twin of a `blocking` verb, for event loops."""
    work = verb.__wrapped__  # type: ignore[attr-defined]  # by `blocking`

    @wraps(work)
    async def twin(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = await self._adrive(work(self, *args, **kwargs))
        return answer

    owner, _, name = work.__qualname__.rpartition(".")
    twin.__name__, twin.__qualname__ = f"a{name}", f"{owner}.a{name}"
    twin.__doc__ = f"As `{name}`, without blocking the event loop."
    return twin
