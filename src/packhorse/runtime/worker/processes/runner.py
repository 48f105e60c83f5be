# SPDX-License-Identifier: MIT
"""Run handlers declared with `executor="process"`: claim their jobs, and run them in the pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from packhorse.client.registry import Registry
from packhorse.core.clock import SECOND_US
from packhorse.core.config import WorkerOptions
from packhorse.core.job import AttemptError
from packhorse.core.outcome import Failed, Outcome
from packhorse.errors import ConfigError
from packhorse.runtime.worker.attempt import Attempt, Ending
from packhorse.runtime.worker.outcomes import ended_by_worker
from packhorse.runtime.worker.processes.child import VARIABLE
from packhorse.runtime.worker.processes.messages import Setup
from packhorse.runtime.worker.processes.pool import (
    BrokenApp,
    PoolProcess,
    ProcessLimits,
    ProcessPool,
)

if TYPE_CHECKING:
    from packhorse.runtime.worker.worker_runtime import WorkerRuntime

#: A job that finds no free process within this is given back: another worker may have one.
_WAIT_S: Final = 1.0
#: The share of the stop grace after which the process is killed.
_OWN_GRACE: Final = 0.8
_MIB: Final = 1024 * 1024
_MAIN: Final = "__main__"
#: The wait after a lease renewal prevented a claim.
_IN_THE_WAY_S: Final = 0.02
_REST_MIN_S: Final = 0.005


class ProcessRunner:
    """Run each attempt in an event-loop task that talks to a process."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self.pool = _pool(runtime)
        self._runtime = runtime
        self._grace_s = runtime.options.stop_grace_us / SECOND_US * _OWN_GRACE
        self._running: dict[Attempt, PoolProcess] = {}  # at most one per process

    def start(self, attempt: Attempt) -> None:
        """Run a handler in a process."""
        attempt.task = self._runtime.loop.create_task(self._run(attempt))

    def stop(self, attempt: Attempt) -> None:
        """Stop a handler: tell it first if it has a context, else kill its process at once."""
        process = self._running.get(attempt)
        if process is None:
            return  # it has not begun, and will not
        if attempt.handler.wants_context:
            process.cancel(attempt.job)
            self._runtime.loop.call_later(self._grace_s, self._kill, attempt, process)
        else:
            process.kill()

    def ask_where(self, told: Callable[[], None]) -> None:
        """Ask every process where its handler is; `told` is called when all have answered."""
        waited = set(self._running)

        def one(attempt: Attempt) -> None:
            waited.discard(attempt)
            if not waited:
                told()

        for attempt, process in self._running.items():
            process.ask_where(partial(one, attempt))

    def places(self) -> dict[Attempt, str]:
        """What they have answered; callable from any thread."""
        return {attempt: process.where for attempt, process in list(self._running.items())}

    async def run(self, attempt: Attempt) -> Outcome:
        """Run a handler whose attempt has begun already, inside its middlewares."""
        try:
            process = await self.pool.acquire()
        except BrokenApp as error:
            return _broken(error)
        except OSError:
            return await self._given_back(attempt)
        if attempt.ending is not None:  # told to stop while it waited
            self.pool.release(process)
            return ended_by_worker(attempt, attempt.ending)
        return await self._run_in(process, attempt)

    async def _run(self, attempt: Attempt) -> None:
        self._runtime.slots.finish(attempt, await self._outcome(attempt))

    async def _outcome(self, attempt: Attempt) -> Outcome:
        try:
            process = None if attempt.ending else await self.pool.acquire(_WAIT_S)
        except TimeoutError:
            attempt.ending = attempt.ending or Ending.TOO_LATE
            return ended_by_worker(attempt, attempt.ending)
        except BrokenApp as error:
            self._runtime.begin(attempt)
            return _broken(error)
        except OSError:
            return await self._given_back(attempt)
        if attempt.ending is None:
            self._runtime.begin(attempt)
        if process is not None and attempt.ending is None:
            return await self._run_in(process, attempt)
        if process is not None:
            self.pool.release(process)
        return ended_by_worker(attempt, attempt.ending or Ending.TOO_LATE)

    async def _given_back(self, attempt: Attempt) -> Outcome:
        """Give back a job that the system starts no process for; first keep its slot for a pause.

        Without the pause the next claim would bring it back at once.
        """
        await self.pool.rest(_WAIT_S)
        attempt.ending = attempt.ending or Ending.TOO_LATE
        return ended_by_worker(attempt, attempt.ending)

    async def _run_in(self, process: PoolProcess, attempt: Attempt) -> Outcome:
        self._running[attempt] = process
        instruments = self._runtime.instruments
        assert attempt.running is not None  # noqa: S101 - it has begun
        try:
            outcome = await process.run(
                attempt.running,
                (attempt.offset_us, attempt.offset_us_max),
                lambda noted: self._runtime.progress.note(attempt, noted.progress),
                start_by=attempt.start_by,
                carrier=instruments.handed_over(attempt) if instruments else None,
            )
        except asyncio.CancelledError:  # it was abandoned
            process.kill()
            raise
        finally:
            del self._running[attempt]
            self.pool.release(process)
        return outcome if attempt.ending is None else ended_by_worker(attempt, attempt.ending)

    def _kill(self, attempt: Attempt, process: PoolProcess) -> None:
        if self._running.get(attempt) is process:
            process.kill()


def _broken(error: BrokenApp) -> Outcome:
    return Failed(
        AttemptError(
            type="BrokenApp",
            message=str(error),
            code="APP_NOT_LOADED",
            reason="exception:BrokenApp",
            stack=error.stack,
        ),
        kinds=("builtins.Exception",),
    )


def process_tasks(registry: Registry) -> frozenset[str]:
    """Return the names and aliases of tasks whose handlers run in processes."""
    found = ((name, registry.get(name)) for name in registry.names)
    return frozenset(name for name, task in found if task is not None and task.kind == "process")


def process_slots(registry: Registry, options: WorkerOptions) -> int:
    """How many jobs run in processes at once, beside those that `concurrency` bounds."""
    return _most_processes(options) if process_tasks(registry) else 0


def _most_processes(options: WorkerOptions) -> int:
    return options.process_slots or min(os.cpu_count() or 1, options.concurrency)


def _pool(runtime: WorkerRuntime) -> ProcessPool:
    """Make the pool of a worker; no process is started yet."""
    env, options = runtime.env, runtime.options
    app: Any = env.app
    named = origin_of(app, env.origin)
    memory_mib, cpu_us = options.process_memory_mib, options.process_cpu_us
    setup = Setup(
        app=named,
        folder=app.folder,
        include=app.modules,
        url=app.url,
        path=tuple(sys.path),
        main=_main_file() if named.startswith(f"{_MAIN}:") else None,
        worker=runtime.worker,
        log_level=logging.getLogger("packhorse").getEffectiveLevel(),
        memory_bytes=None if memory_mib is None else memory_mib * _MIB,
        cpu_s=None if cpu_us is None else max(1, cpu_us // SECOND_US),
        recycle_on=options.recycle_on,
        tells_memory=options.process_recycle_mib is not None,
    )
    limits = ProcessLimits(
        slots=_most_processes(options),
        max_jobs=options.process_max_jobs,
        max_failures=options.process_max_failures,
        recycle_mib=options.process_recycle_mib,
    )
    return ProcessPool(setup, limits, hopeless=runtime.leave_with)


def origin_of(app: Any, given: str | None) -> str:
    """Find how a process can import the app: `module:attribute`."""
    if os.environ.get(VARIABLE):
        raise ConfigError(
            "a worker was started by a module that a handler's process only imports; start it "
            "under: if __name__ == '__main__':"
        )
    if given is not None:
        return given
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    raise ConfigError(
        "executor='process' imports the app in another process, and it is no variable of any "
        "module; make it one, or start it with 'packhorse worker module:create_app'"
    )


def _main_file() -> str:
    """Return the file of the program that was started, which a process runs again."""
    path: str | None = getattr(sys.modules[_MAIN], "__file__", None)
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - stays a text
        raise ConfigError(
            "executor='process' imports the app in another process, and this program was read from "
            "standard input, from `python -c` or from a notebook; put the app into a file"
        )
    return os.path.abspath(path)  # noqa: PTH100 - stays a text


class ProcessFetcher:
    """Claim jobs for processes, ahead of the free ones by what `LookAhead` allows.

    They are claimed apart from the others and have slots of their own: neither kind keeps the
    other waiting, however many jobs of it there are and however long they take. A job held ahead
    waits for a process in `ProcessPool.acquire`.
    """

    def __init__(self, runtime: WorkerRuntime, pool: ProcessPool, tasks: tuple[str, ...]) -> None:
        self._fetcher = runtime.fetcher
        self._slots = runtime.slots
        self._shutdown = runtime.shutdown
        self._tasks = tasks
        self._look_ahead = runtime.slots.process_look_ahead
        self._look_ahead.concurrency = pool.limits.slots
        self._poll_s = runtime.options.poll_interval_us / SECOND_US
        # Inside of middlewares, an attempt has begun.
        self._may_look_ahead = not runtime.env.middlewares
        self._woken = asyncio.Event()
        self._running = 0  # after the last turn of the slots

    def wake(self) -> None:
        """Claim again: there may be work."""
        self._woken.set()

    def consider(self) -> None:
        """Claim again if jobs have ended since the last turn, and there is room."""
        before, self._running = self._running, self._slots.in_processes
        if self._running < before and self._wanted > 0:
            self._woken.set()

    async def run(self) -> None:
        """Claim until the worker shuts down, or has finished."""
        while not (self._shutdown.begun or self._fetcher.finished):
            self._woken.clear()
            rest_s = await self._claim()
            if rest_s > 0 and not self._shutdown.begun:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), rest_s)

    @property
    def _wanted(self) -> int:
        """How many jobs to claim; none ahead where a limit or `max_jobs` would count them."""
        slots, processes = self._slots, self._look_ahead.concurrency
        # Those just claimed stand first among the waiting, until the next turn starts them all.
        arrived = takewhile(lambda each: each.handler.process, slots.waiting)
        count = slots.in_processes + sum(1 for _ in arrived)
        running = min(count, processes)
        ahead = self._may_look_ahead and self._fetcher.may_look_ahead
        wanted = self._look_ahead.wanted(running, count - running, ahead=ahead)
        return min(wanted, self._slots.left)

    async def _claim(self) -> float:
        """Claim once if there is room; return how long to wait."""
        wanted = self._wanted
        if wanted < 1:
            return self._poll_s
        claimed = await self._fetcher.claim_only(self._tasks, wanted)
        if claimed is None:
            return _IN_THE_WAY_S if not self._shutdown.quiet else self._poll_s
        if claimed.next_due_us is None:
            return self._poll_s
        due_s = (claimed.next_due_us - claimed.now_us) / SECOND_US
        return max(_REST_MIN_S, min(self._poll_s, due_s))
