# SPDX-License-Identifier: MIT
"""An event loop that belongs to a worker, and ends only when the worker does.

A `sys.exit` in a background task, or `loop.stop()`, ends `asyncio.run` from within. Here the worker
is cancelled with the reason, and gets the loop back until it has settled its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MAIN: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("_MAIN", default=None)
#: How often the loop may be ended while the worker leaves.
_TRIES: Final = 10


def on_own_loop() -> bool:
    """Whether the running task is the main task of `run_to_end`."""
    main = _MAIN.get()
    return main is not None and main is asyncio.current_task()


def run_to_end(
    work: Callable[[], Coroutine[Any, Any, T]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine on its own loop; if a job ends the loop, cancel the coroutine and go on."""
    mains: list[asyncio.Task[Any]] = []

    async def main() -> T:
        _MAIN.set(asyncio.current_task())
        mains.extend(asyncio.all_tasks())  # there is no other yet
        return await work()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(main())
        except BaseException as error:
            if not mains or mains[0].done():
                raise
            mains[0].cancel(f"{type(error).__name__}: {error}")
            result: T = _finished(runner.get_loop(), mains[0], error)
            return result


def _finished(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], reason: BaseException) -> T:
    for _ in range(_TRIES):
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise reason from None
        except (SystemExit, KeyboardInterrupt, RuntimeError):
            if task.done():
                raise
    raise reason
