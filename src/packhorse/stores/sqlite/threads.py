# SPDX-License-Identifier: MIT
"""Runners per thread for sync callers, and an owner thread that runs plans of event loops.

No SQLite connection may be open while a process forks: the child would inherit SQLite's record of
the locks its parent holds, and write to files that it has not locked. So all connections are closed
before a fork, and opened again on both sides when needed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from packhorse.errors import PackhorseError, StoreUnavailable
from packhorse.stores.plan import Plan
from packhorse.stores.sqlite.runner import PlanRunner

T = TypeVar("T")

#: Plans that may share one commit.
_GROUP_MAX: Final = 512


class _Own(threading.local):
    """The runner of each thread: made when the thread first needs it, and gone when it ends."""

    def __init__(self, make: Callable[[], PlanRunner]) -> None:
        self.runner = make()


class LocalRunner:
    """A runner for each thread that runs plans itself: `own.runner` is that of the caller."""

    def __init__(self, make: Callable[[], PlanRunner]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._known = weakref.WeakSet[PlanRunner]()  # a runner closes when its thread ends
        self.own = _Own(self._new_runner)

    def close(self) -> None:
        """Close every thread's connection, after the plan it runs now."""
        with self._lock:
            runners = list(self._known)
        for runner in runners:
            runner.disconnect()

    def before_fork(self) -> None:
        """Before a fork: finish what runs, and close every connection."""
        self._lock.acquire()
        for runner in self._known:
            runner.before_fork()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent."""
        for runner in self._known:
            runner.after_fork_in_parent()
        with suppress(RuntimeError):  # it was not held: something interrupted `hold`
            self._lock.release()

    def _new_runner(self) -> PlanRunner:
        runner = self._make()
        with self._lock:
            self._known.add(runner)
        return runner


#: A plan that waits for the owner thread, and the future of its answer.
_Ticket = tuple[Plan[Any], asyncio.Future[Any]]
_Tickets = SimpleQueue[_Ticket | None]


class OwnerThread:
    """One thread that runs what event loops ask of it, in groups."""

    def __init__(self, name: str, runner: PlanRunner) -> None:
        self._name = name
        self._runner = runner
        self._lock = threading.RLock()
        self._tickets: _Tickets = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, plan: Plan[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:  # no ticket may follow the one that ends the thread
            if self._thread is None:
                self._thread = self._start()
            self._tickets.put((plan, future))
        return await future

    def close(self) -> None:
        """Run the waiting plans, then end the thread and close its connection."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._tickets.put(None)
        if thread is not None:
            thread.join()

    def before_fork(self) -> None:
        """Before a fork: finish what runs, and close every connection."""
        self._runner.before_fork()  # may take long, and event loops may go on putting tickets
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent."""
        with suppress(RuntimeError):  # as above
            self._lock.release()
        self._runner.after_fork_in_parent()

    def _start(self) -> threading.Thread:
        self._tickets = SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(self._runner, self._tickets), name=self._name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            raise StoreUnavailable(
                f"the SQLite store has no thread to write with: {error}"
            ) from error
        return thread

    @staticmethod
    def _serve(runner: PlanRunner, tickets: _Tickets) -> None:
        """Run what waits, group by group; None ends the thread, after what came before."""
        while True:
            group: list[_Ticket] = []
            ticket = tickets.get()
            while ticket is not None:
                group.append(ticket)
                if tickets.empty() or len(group) >= _GROUP_MAX:
                    break
                ticket = tickets.get()
            if group:
                _answer(runner, [one for one in group if not one[1].cancelled()])
            if ticket is None:
                break
        runner.disconnect()


def _answer(runner: PlanRunner, group: Sequence[_Ticket]) -> None:
    """Run a group and hand out the answers, with one call into each event loop."""
    try:
        answers = runner.run_group([plan for plan, _ in group])
    except PackhorseError as error:  # the file cannot be opened: fail all, try again later
        answers = [error] * len(group)
    except BaseException as error:  # noqa: BLE001 - the thread must survive any error
        answers = [StoreUnavailable(f"the SQLite store failed: {error!r}")] * len(group)
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for (_, future), answer in zip(group, answers, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, answer))
    for loop, results in by_loop.items():
        # If the loop is closed, no caller is left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for future, answer in results:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
