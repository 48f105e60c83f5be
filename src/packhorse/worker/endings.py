# SPDX-License-Identifier: MIT
"""Ends attempts that would go on: on timeout, cancel and shutdown. None keeps its slot for long.

told to stop ──ends by itself──▶ settled
             ──grace is over───▶ abandoned: settled without it, slot free, late result dropped
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from packhorse.outcome import Outcome
from packhorse.worker.announcer import Announcer
from packhorse.worker.attempt import Attempt, Ending, Stage
from packhorse.worker.failures import ended_by_worker
from packhorse.worker.slots import Slots

__all__ = ["Endings"]


class Endings:
    """Tells handlers to stop, and gives up on those that do not."""

    def __init__(
        self,
        slots: Slots,
        announcer: Announcer,
        extend: Callable[[Attempt], None],
        abandon_thread: Callable[[Attempt], None],
        stop_process: Callable[[Attempt], None],
    ) -> None:
        self._slots = slots
        self._announcer = announcer
        self._extend = extend
        self._abandon_thread = abandon_thread
        self._stop_process = stop_process
        self._deaf: set[Attempt] = set()  # abandoned coroutines; kept, for the loop forgets tasks

    @property
    def deaf(self) -> int:
        """How many abandoned coroutines still run."""
        self._deaf = {each for each in self._deaf if each.task and not each.task.done()}
        return len(self._deaf)

    def deaf_attempts(self) -> list[Attempt]:
        """Those that do; callable from any thread."""
        return [each for each in list(self._deaf) if each.task and not each.task.done()]

    def let_go(self) -> None:
        """Take abandoned coroutines off the list that a closing event loop waits for."""
        for attempt in self._deaf:
            if attempt.task is not None and not attempt.task.done():
                # It would be cancelled and awaited there, and it does not heed being cancelled.
                asyncio._unregister_task(attempt.task)  # noqa: SLF001 - part of asyncio's extension API
                attempt.task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - told already

    def expired(self, attempt: Attempt) -> None:
        """An attempt's time is over: its own first, then the grace it was given to stop."""
        if attempt.ending is None:
            self.stop(attempt, attempt.bound)
        else:
            self.abandon(attempt)

    def cancel(self, job_ids: Collection[str]) -> None:
        """Stop the attempts of these jobs, because somebody wants them cancelled."""
        wanted = frozenset(job_ids)
        self._slots.withdraw(lambda job: job.id in wanted)
        for attempt in self._slots.running_attempts():
            if attempt.job.id in wanted and attempt.ending is None:
                self._announcer.cancelling(attempt)
                self.stop(attempt, Ending.CANCEL)

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        """Tell a handler to stop, and give it its grace."""
        if attempt.ending is not None or attempt.stage > Stage.RUNNING:
            return
        attempt.ending = ending
        if attempt.context is not None:
            attempt.context.request_cancel()
        if attempt.stage is Stage.RUNNING:
            # A task that has not begun sees `ending` itself; cancelled, it would never say so.
            self._extend(attempt)
            if attempt.plan.process:
                self._stop_process(attempt)
            elif not attempt.plan.threaded and attempt.task is not None:
                attempt.task.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Free the slot of a handler that does not stop; what it still does counts for nothing."""
        if attempt.stage > Stage.RUNNING:
            return
        ending = attempt.ending or attempt.bound
        outcome: Outcome = attempt.outcome or ended_by_worker(attempt, ending)
        self._slots.finish(attempt, outcome)
        attempt.stage = Stage.ABANDONED
        if attempt.plan.threaded:
            self._abandon_thread(attempt)
        if attempt.task is not None and not attempt.task.done():
            attempt.task.cancel()
            self._deaf.add(attempt)
        self._announcer.abandoned(attempt)
