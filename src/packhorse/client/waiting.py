# SPDX-License-Identifier: MIT
"""Waiting for a job to finish: on wake-ups, from async code and from plain threads.

A plain thread waits through an event loop of its own making, on a daemon thread that serves waits
only and never runs a handler. `asyncio` is imported late: code that only submits does not pay
for it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from packhorse.core.clock import Clock, pass_idle
from packhorse.core.interpreter import at_fork
from packhorse.core.job import TERMINAL, JobRecord
from packhorse.errors import JobNotFound, ResultTimeout, UsageError
from packhorse.stores.plan import Listener
from packhorse.stores.protocol import Store

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: A wake-up may be lost; a waiter looks for itself at least this often.
WAIT_FLOOR_S: Final = 1.0


async def wait_for_end(
    store: Store, job_id: str, *, timeout_s: float | None, clock: Clock
) -> JobRecord:
    """The job's record once it has finished.

    The listener is there before the interest is written, and the interest before the job is read:
    whatever happens in between is heard.
    """
    begun = clock.monotonic()
    with contextlib.closing(store.wakeups.listen(frozenset({f"job:{job_id}"}))) as listener:
        record = await store.arun(store.jobs.await_finish(job_id))
        while record is not None and record.status not in TERMINAL:
            if not await next_look(listener, clock, left_s(begun, timeout_s, clock)):
                raise ResultTimeout(job_id, waited_s=timeout_s or 0)
            record = await store.arun(store.inspection.job(job_id))
    if record is None:
        raise JobNotFound(job_id)
    return record


def left_s(begun: float, timeout_s: float | None, clock: Clock) -> float:
    """Return what is left of a wait that may last so long; without a timeout, one more look."""
    return WAIT_FLOOR_S if timeout_s is None else timeout_s - (clock.monotonic() - begun)


async def next_look(listener: Listener, clock: Clock, rest_s: float = inf) -> bool:
    """Wait for a wake-up, or until it is time to look without one; False if no time is left."""
    floor_s = min(rest_s, WAIT_FLOOR_S)
    if floor_s > 0 and not await listener.wait(floor_s):
        pass_idle(clock, floor_s)
    return floor_s > 0


class WaitLoop:
    """An event loop on a thread of its own, begun when the first plain thread has to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: weakref.finalize[..., WaitLoop] | None = None
        at_fork(self._forget)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `work` makes, while this thread waits for it."""
        import asyncio  # noqa: PLC0415 - see above

        future = asyncio.run_coroutine_threadsafe(work(), self._running())
        try:
            return future.result()
        except BaseException as error:
            if future.cancelled():
                raise UsageError("the app was closed while a result was waited for") from error
            future.cancel()  # a waiter who was interrupted leaves nothing behind
            raise
        finally:  # its exception holds this frame: a cycle that would keep it alive
            del future

    def close(self) -> None:
        """End the loop; a later wait begins a new one."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            _stop(loop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio  # noqa: PLC0415 - see above

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="packhorse-waits", daemon=True
                )
                self._thread.start()
                self._ending = weakref.finalize(self, _stop, self._loop)
                self._ending.atexit = False  # a daemon thread ends with the process
            return self._loop

    def _forget(self) -> None:
        """In a forked child: the thread did not come along, and the lock may be held for ever."""
        self._lock = threading.Lock()
        self._loop = self._thread = None
        if self._ending is not None:
            self._ending.detach()  # the loop is the parent's


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancel_waits())
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended already
        loop.call_soon_threadsafe(loop.stop)


async def _cancel_waits() -> None:
    import asyncio  # noqa: PLC0415 - see above

    waits = asyncio.all_tasks() - {asyncio.current_task()}
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
