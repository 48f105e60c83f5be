# SPDX-License-Identifier: MIT
"""Run handlers inside middlewares, or in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NoReturn

from packhorse.context import RUNNING
from packhorse.core.outcome import Failed, Outcome, Succeeded
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.executor import Executor, raised_in
from packhorse.runtime.worker.hooks import MiddlewareChain
from packhorse.runtime.worker.outcomes import ended_by_worker

if TYPE_CHECKING:
    from packhorse.runtime.worker.worker_runtime import WorkerRuntime

_LOG: Final = logging.getLogger("packhorse.worker")

#: How long jobs may wait for a busy thread before one more is started, up to one per slot. Short
#: jobs are done sooner by few threads, which do not fight over the interpreter.
_PATIENCE_S: Final = 0.001
#: When to ask the system again for a thread that it refused.
_NO_THREAD_S: Final = 1.0


class WrappedRunner:
    """Runs attempts inside the app's middlewares, whatever kind their handlers are."""

    def __init__(
        self, runtime: WorkerRuntime, executor: Executor, middlewares: MiddlewareChain
    ) -> None:
        self._runtime = runtime
        self._pid = os.getpid()
        self._executor = executor
        self._middlewares = middlewares

    def start(self, attempt: Attempt) -> None:
        """Run a handler inside its middlewares."""
        attempt.task = self._runtime.loop.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        slots = self._runtime.slots
        if attempt.ending is None:
            self._runtime.begin(attempt)
        if attempt.ending is not None:  # there is nothing to run, and nothing to wrap
            slots.finish(attempt, ended_by_worker(attempt, attempt.ending))
            return
        attempt.start_by = None  # it begins here: middlewares may take their time
        RUNNING.set(attempt.running)
        try:
            if self._executor.enter is not None:
                self._executor.enter(attempt)
            context = self._executor.context(attempt)
            outcome = await self._middlewares.run(attempt, context, lambda: self._handle(attempt))
        except BaseException as error:  # noqa: BLE001 - a middleware's own tasks were cancelled
            outcome = attempt.outcome or raised_in(attempt, error)
        slots.finish(attempt, outcome)
        del outcome  # the exception in it may hold this frame: a cycle that would keep it alive

    async def _handle(self, attempt: Attempt) -> Outcome:
        if attempt.ending is not None:  # told to stop while a middleware prepared it
            return ended_by_worker(attempt, attempt.ending)
        if attempt.handler.threaded:
            return await self._runtime.threads.run(attempt)
        if attempt.handler.process and self._runtime.processes is not None:
            return await self._runtime.processes.run(attempt)
        outcome = await self._executor.execute(attempt)
        try:
            if os.getpid() != self._pid:  # before a middleware takes it for the handler's
                leave_copy(outcome)
            return outcome
        finally:
            del outcome  # as above


#: An attempt, the context variables it runs under, and the future of a task that waits for it.
_Item = tuple[Attempt, contextvars.Context, "asyncio.Future[Outcome] | None"]


class ThreadRunner:
    """Runs plain functions in threads, at most one per slot; collects their outcomes in batches."""

    def __init__(self, runtime: WorkerRuntime, executor: Executor) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._pid = os.getpid()
        self._execute = executor.execute_here
        self._size = runtime.options.concurrency
        self._context = contextvars.copy_context()
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()  # at most one item per slot
        self._ended: deque[tuple[_Item, Outcome]] = deque()
        self._called = False
        self._threads: set[_Thread] = set()
        self._lost: set[_Thread] = set()
        self._growing = False

    def start(self, attempt: Attempt) -> None:
        """Run a plain handler."""
        self._runtime.begin(attempt)
        self._put((attempt, self._context.copy(), None))

    async def run(self, attempt: Attempt) -> Outcome:
        """Run a plain handler for a task that waits, under the caller's context variables."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._put((attempt, contextvars.copy_context(), answer))
        while True:
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError as error:
                # A thread cannot be cancelled: wait for its outcome until it is abandoned.
                if attempt.stage is Stage.ABANDONED:
                    return raised_in(attempt, error)

    def abandon(self, attempt: Attempt) -> None:
        """Give up on the thread that runs this; another one takes its place."""
        thread = next((thread for thread in self._threads if thread.attempt is attempt), None)
        if thread is not None:  # else it had not begun, and will not
            thread.dismissed = attempt
            self._threads.remove(thread)
            self._lost.add(thread)

    @property
    def stuck(self) -> int:
        """The number of abandoned threads that still run."""
        self._lost = {thread for thread in self._lost if thread.stuck}
        return len(self._lost)

    def threads(self) -> list[tuple[Attempt, int | None]]:
        """Return running attempts and their threads; callable from any thread."""
        running = [(thread.attempt, thread.ident) for thread in list(self._threads) if thread.begun]
        return [(attempt, ident) for attempt, ident in running if attempt is not None]

    def stuck_threads(self) -> list[tuple[Attempt, int | None]]:
        """Return abandoned attempts that still run, and their threads; callable from any thread."""
        lost = list(self._lost)
        return [
            (thread.dismissed, thread.ident) for thread in lost if thread.dismissed and thread.stuck
        ]

    def close(self) -> None:
        """Let idle threads end; those that run a handler end after it."""
        self._size = 0
        for _ in self._threads:
            self._queue.put(None)
        self._threads.clear()

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        if not self._growing and len(self._threads) < self._size:
            self._growing = True
            self._loop.call_later(_PATIENCE_S if self._threads else 0, self._grow)

    def _grow(self) -> None:
        """Start threads for what still waits for one."""
        self._growing = False
        room = self._size - len(self._threads)
        for _ in range(min(room, self._queue.qsize())):
            thread = _Thread()
            started = threading.Thread(
                target=self._work, args=(thread,), name="packhorse-handler", daemon=True
            )
            try:
                started.start()
            except RuntimeError:  # the system has no more of them for now
                self._growing = True
                self._loop.call_later(_NO_THREAD_S, self._grow)
                return
            self._threads.add(thread)

    def _work(self, thread: _Thread) -> None:
        """Run one attempt after another in a thread, until it is dismissed."""
        thread.ident = threading.get_ident()
        try:
            # An exception that others set into this thread is raised when a call returns. So the
            # item goes from the queue to the thread without a call between, and is never lost.
            for thread.item in iter(self._queue.get, None):
                self._run_item(thread, thread.item)
                if thread.dismissed is not None:
                    return
        except BaseException as error:  # noqa: BLE001 - not a handler's, whose errors are values
            self._call(self._replace, thread, error)

    def _run_item(self, thread: _Thread, item: _Item) -> None:
        attempt, context = item[:2]
        thread.begun = True
        runtime = self._runtime
        if attempt.ending is None and runtime.too_late(attempt, runtime.monotonic()):
            attempt.ending = Ending.TOO_LATE  # it waited for this thread
        outcome = context.run(self._execute, attempt)
        if os.getpid() != self._pid:  # as above
            leave_copy(outcome)
        self._ended.append((item, outcome))
        # The exception in it holds this frame: a cycle that would keep it alive, by the future too.
        del outcome, item
        thread.item, thread.begun = None, False
        if not self._called:
            self._called = True
            self._call(self._collect)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the event loop's thread do something."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: this thread was abandoned, and ended too late
            self._ended.clear()

    def _collect(self) -> None:
        """Take over what ended, in the event loop's thread."""
        self._called = False  # before looking, so that what ends from here on calls again
        while self._ended:
            self._end(*self._ended.popleft())

    def _end(self, item: _Item, outcome: Outcome) -> None:
        attempt, _, answer = item
        if answer is None:
            if attempt.stage <= Stage.RUNNING:  # else it has ended, and its thread died of it
                self._runtime.slots.finish(attempt, outcome)
        elif not answer.done():
            answer.set_result(outcome)

    def _replace(self, thread: _Thread, error: BaseException) -> None:
        """Replace a thread that was ended from outside, and keep its attempt."""
        _LOG.warning(
            "a thread that runs handlers was ended from outside by %s; another takes its place",
            type(error).__name__,
        )
        self._collect()  # also for others: this one may have died between noting and calling
        self._threads.discard(thread)
        item, thread.item = thread.item, None
        if item is not None and thread.begun:
            self._end(item, raised_in(item[0], error))
        elif item is not None:
            self._put(item)
        self._grow()


class _Thread:
    """One thread: what it runs, and whether it was abandoned."""

    __slots__ = ("begun", "dismissed", "ident", "item")

    def __init__(self) -> None:
        self.ident: int | None = None
        self.item: _Item | None = None
        self.begun = False  #: the item's handler may have been called
        self.dismissed: Attempt | None = None

    @property
    def attempt(self) -> Attempt | None:
        item = self.item
        return None if item is None else item[0]

    @property
    def stuck(self) -> bool:
        return self.dismissed is not None and self.attempt is self.dismissed


def leave_copy(outcome: Outcome | None) -> NoReturn:
    """End a forked copy of this process as a script would end, without settling its job."""
    code = 0 if isinstance(outcome, Succeeded) else 1
    with contextlib.suppress(Exception):
        if isinstance(outcome, Failed) and outcome.error.type == "SystemExit":
            text = outcome.error.message
            code = int(text) if text.isdecimal() else int(text not in ("", "None"))
        elif isinstance(outcome, Failed):
            sys.stderr.write(f"in process {os.getpid()}, forked by a job:\n{outcome.error.stack}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
