# SPDX-License-Identifier: MIT
"""Runs handlers declared with `executor="process"`: in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from packhorse.job import AttemptError
from packhorse.outcome import Failed, Outcome
from packhorse.worker.attempt import Attempt, Ending
from packhorse.worker.failures import ended_by_worker
from packhorse.worker.process_pool import BrokenApp, PoolProcess, ProcessPool
from packhorse.worker.progress import ProgressBoard

__all__ = ["ProcessRunner"]

#: A job that finds no free process within this goes back: somebody else may have one.
_WAIT_S: Final = 1.0
#: Of the grace a handler has to stop, so much is its own; then its process is killed.
_OWN_GRACE: Final = 0.8


class ProcessRunner:
    """One task of the event loop per attempt, which talks to a process."""

    def __init__(
        self,
        pool: ProcessPool,
        progress: ProgressBoard,
        begin: Callable[[Attempt], None],
        finish: Callable[[Attempt, Outcome], None],
        grace_s: float,
    ) -> None:
        self.pool = pool
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        self._begin = begin
        self._finish = finish
        self._grace_s = grace_s * _OWN_GRACE
        self._running: dict[Attempt, PoolProcess] = {}  # at most one per process

    def start(self, attempt: Attempt) -> None:
        """Run a handler in a process."""
        attempt.task = self._loop.create_task(self._run(attempt))

    def stop(self, attempt: Attempt) -> None:
        """End a handler: one with a context is told first, any other is killed at once."""
        process = self._running.get(attempt)
        if process is None:
            return  # it has not begun, and will not
        if attempt.plan.wants_context:
            process.cancel()
            self._loop.call_later(self._grace_s, self._kill, attempt, process)
        else:
            process.kill()

    async def run(self, attempt: Attempt) -> Outcome:
        """Run a handler whose attempt has begun already, inside its middlewares."""
        try:
            process = await self.pool.acquire()
        except BrokenApp as error:
            return _broken(error)
        return await self._run_in(process, attempt)

    async def _run(self, attempt: Attempt) -> None:
        self._finish(attempt, await self._outcome(attempt))

    async def _outcome(self, attempt: Attempt) -> Outcome:
        try:
            process = None if attempt.ending else await self.pool.acquire(_WAIT_S)
        except TimeoutError:
            return ended_by_worker(attempt, attempt.ending or Ending.TOO_LATE)
        except BrokenApp as error:
            self._begin(attempt)
            return _broken(error)
        if attempt.ending is None:
            self._begin(attempt)
        if process is not None and attempt.ending is None:
            return await self._run_in(process, attempt)
        if process is not None:
            self.pool.release(process)
        return ended_by_worker(attempt, attempt.ending or Ending.TOO_LATE)

    async def _run_in(self, process: PoolProcess, attempt: Attempt) -> Outcome:
        self._running[attempt] = process
        try:
            outcome = await process.run(
                attempt.job, lambda noted: self._progress.note(attempt, noted.progress)
            )
        except asyncio.CancelledError:  # it was abandoned: nobody waits for it any more
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
