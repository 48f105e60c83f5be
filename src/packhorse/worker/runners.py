# SPDX-License-Identifier: MIT
"""Where handlers run: coroutines on the event loop, plain functions in threads of our own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, Self

from packhorse.outcome import Outcome
from packhorse.worker.attempt import Attempt, Ending
from packhorse.worker.executor import Executor
from packhorse.worker.failures import ended_by_worker, raised
from packhorse.worker.middleware import MiddlewareChain

__all__ = ["LoopRunner", "ThreadRunner", "WrappedRunner"]

Finish = Callable[[Attempt, Outcome], None]
Begin = Callable[[Attempt], None]

#: How long jobs may wait for a busy thread before one more is started, up to one per slot. Short
#: jobs are done sooner by few threads, which do not fight over the interpreter.
_PATIENCE_S: Final = 0.001


class LoopRunner:
    """Runs coroutine handlers on the event loop: those that never wait in one task, one by one.

    A task costs more than a short handler does. So one task serves what has a slot, each attempt in
    context variables of its own. The first that waits for something keeps the task until it ends,
    so that its handler is in one task throughout, and another task serves the rest; from then on
    attempts of its kind are given a task each.
    """

    def __init__(self, executor: Executor, begin: Begin, finish: Finish) -> None:
        self._loop = asyncio.get_running_loop()
        self._execute = executor.execute
        self._begin = begin
        self._finish = finish
        self._ready: deque[Attempt] = deque()  # at most one per slot
        self._serving = False
        self._server: asyncio.Task[None] | None = None  # kept, for the loop forgets tasks
        self._waiting_kinds: set[str] = set()  # at most one entry per task known

    def start(self, attempt: Attempt) -> None:
        """Run a coroutine handler."""
        if attempt.plan.name in self._waiting_kinds:
            attempt.task = self._loop.create_task(self._run(attempt))
            return
        self._ready.append(attempt)
        if not self._serving:
            self._serve_on()

    async def _run(self, attempt: Attempt) -> None:
        if attempt.ending is None:  # else it was told to stop before it began
            self._begin(attempt)
        self._finish(attempt, await self._execute(attempt))

    def _serve_on(self) -> None:
        """Have another task serve what is ready, if anything is."""
        self._serving = bool(self._ready)
        if self._serving:
            self._server = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        task, serving = asyncio.current_task(), True
        try:
            # One that has cancelled its own task has not meant the others.
            while self._ready and not (task is not None and task.cancelling()):
                rest = self._start_in(task, self._ready.popleft())
                if rest is not None:
                    serving = False
                    self._serve_on()
                    await rest
                    return
        finally:
            if serving:
                self._serve_on()

    def _start_in(self, task: asyncio.Task[Any] | None, attempt: Attempt) -> _Rest | None:
        """Run an attempt until it ends, or waits; then what is left of it."""
        attempt.task = task
        coroutine, context = self._run(attempt), contextvars.copy_context()
        try:
            waits_for = context.run(coroutine.send, None)
        except StopIteration:
            attempt.task = None
            return None
        self._waiting_kinds.add(attempt.plan.name)
        return _Rest(coroutine, waits_for, context)


class _Rest:
    """What is left of a coroutine that has begun to wait, to be awaited by the task it began in."""

    __slots__ = ("_begun", "_context", "_coroutine", "_waits_for")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        waits_for: object,
        context: contextvars.Context,
    ) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._context = context
        self._begun = False

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        if self._begun:
            return self._context.run(self._coroutine.send, value)
        self._begun = True  # now the task learns what is waited for
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(self, *error: Any) -> object:
        return self._context.run(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    # As a coroutine has them, so that a stack can be followed through this one.

    @property
    def cr_frame(self) -> FrameType | None:
        frame: FrameType | None = self._coroutine.cr_frame  # type: ignore[attr-defined]  # see above
        return frame

    @property
    def cr_await(self) -> object:
        return self._coroutine.cr_await  # type: ignore[attr-defined]  # as above


class WrappedRunner:
    """Runs attempts inside the app's middlewares, whatever kind their handlers are."""

    def __init__(
        self,
        executor: Executor,
        chain: MiddlewareChain,
        threads: ThreadRunner,
        begin: Begin,
        finish: Finish,
        *,
        in_process: Callable[[Attempt], Awaitable[Outcome]],
    ) -> None:
        self._in_process = in_process
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._chain = chain
        self._threads = threads
        self._begin = begin
        self._finish = finish

    def start(self, attempt: Attempt) -> None:
        """Run a handler inside its middlewares."""
        attempt.task = self._loop.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        if attempt.ending is None:
            self._begin(attempt)
        if attempt.ending is not None:  # there is nothing to run, and nothing to wrap
            self._finish(attempt, ended_by_worker(attempt, attempt.ending))
            return
        try:
            context = self._executor.context(attempt)
            outcome = await self._chain.run(attempt, context, lambda: self._handle(attempt))
        except BaseException as error:  # noqa: BLE001 - a middleware's own tasks were cancelled
            outcome = attempt.outcome or _cut_off(attempt, error)
        self._finish(attempt, outcome)

    async def _handle(self, attempt: Attempt) -> Outcome:
        if attempt.plan.threaded:
            attempt.outcome = await self._threads.run(attempt)
        elif attempt.plan.process:
            attempt.outcome = await self._in_process(attempt)
        else:
            attempt.outcome = await self._executor.execute(attempt)
        return attempt.outcome


def _cut_off(attempt: Attempt, error: BaseException) -> Outcome:
    return raised(error) if attempt.ending is None else ended_by_worker(attempt, attempt.ending)


#: An attempt, the context variables it runs under, and who waits for it if not the slots.
_Item = tuple[Attempt, contextvars.Context, "asyncio.Future[Outcome] | None"]


class ThreadRunner:
    """Runs plain functions in threads, one per slot at most; hands their ends over in batches."""

    def __init__(
        self,
        executor: Executor,
        begin: Begin,
        finish: Finish,
        *,
        too_late: Callable[[Attempt], bool],
        size: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._execute = executor.execute_here
        self._begin = begin
        self._finish = finish
        self._too_late = too_late
        self._size = size
        self._context = contextvars.copy_context()
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()  # at most one item per slot
        self._ended: deque[tuple[_Item, Outcome]] = deque()
        self._called = False
        self._seats: set[_Seat] = set()
        self._lost: set[_Seat] = set()
        self._growing = False

    def start(self, attempt: Attempt) -> None:
        """Run a plain handler."""
        self._begin(attempt)
        self._put((attempt, self._context.copy(), None))

    async def run(self, attempt: Attempt) -> Outcome:
        """Run a plain handler for somebody who waits, under the caller's context variables."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._put((attempt, contextvars.copy_context(), answer))
        try:
            return await answer
        except asyncio.CancelledError as error:
            return _cut_off(attempt, error)

    def abandon(self, attempt: Attempt) -> None:
        """Give up on the thread that runs this; another one takes its place."""
        seat = next((seat for seat in self._seats if seat.attempt is attempt), None)
        if seat is not None:  # else it had not begun, and will not
            seat.dismissed = attempt
            self._seats.remove(seat)
            self._lost.add(seat)

    @property
    def stuck(self) -> int:
        """How many abandoned threads still run what they were abandoned for."""
        self._lost = {seat for seat in self._lost if seat.stuck}
        return len(self._lost)

    def stuck_threads(self) -> list[tuple[Attempt, int | None]]:
        """The attempts they were abandoned for, and the threads; callable from any thread."""
        lost = list(self._lost)
        return [(seat.dismissed, seat.thread) for seat in lost if seat.dismissed and seat.stuck]

    def close(self) -> None:
        """Let idle threads end; those that run a handler end after it."""
        for _ in self._seats:
            self._queue.put(None)
        self._seats.clear()

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        if not self._growing and len(self._seats) < self._size:
            self._growing = True
            self._loop.call_later(_PATIENCE_S if self._seats else 0, self._grow)

    def _grow(self) -> None:
        """Start threads for what still waits for one."""
        self._growing = False
        room = self._size - len(self._seats)
        for _ in range(min(room, self._queue.qsize())):
            seat = _Seat()
            self._seats.add(seat)
            threading.Thread(
                target=self._work, args=(seat,), name="packhorse-handler", daemon=True
            ).start()

    def _work(self, seat: _Seat) -> None:
        """What a thread does: one attempt after another, until it is dismissed."""
        seat.thread = threading.get_ident()
        while seat.dismissed is None and (item := self._queue.get()) is not None:
            attempt, context, _ = item
            seat.attempt = attempt
            if attempt.ending is None and self._too_late(attempt):  # it waited for this thread
                attempt.ending = Ending.TOO_LATE
            outcome = context.run(self._execute, attempt)
            seat.attempt = None
            self._ended.append((item, outcome))
            if not self._called:
                self._called = True
                self._call_back()

    def _call_back(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:  # the loop is closed: this thread was abandoned, and ended too late
            self._ended.clear()

    def _collect(self) -> None:
        """Take over what ended, in the event loop's thread."""
        self._called = False  # before looking, so that what ends from here on calls again
        while self._ended:
            (attempt, _, answer), outcome = self._ended.popleft()
            if answer is None:
                self._finish(attempt, outcome)
            elif not answer.done():
                answer.set_result(outcome)


class _Seat:
    """One thread: what it runs, and whether it was given up."""

    __slots__ = ("attempt", "dismissed", "thread")

    def __init__(self) -> None:
        self.thread: int | None = None
        self.attempt: Attempt | None = None
        self.dismissed: Attempt | None = None

    @property
    def stuck(self) -> bool:
        return self.dismissed is not None and self.attempt is self.dismissed
