# SPDX-License-Identifier: MIT
"""Run work that asks for what it needs, in a thread or on an event loop.

Work is a generator: it yields what it asks for and is sent the answer, so that it is written once
for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

A = TypeVar("A")
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
