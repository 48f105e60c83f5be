# SPDX-License-Identifier: MIT
"""Stop attempts that take too long, or that the worker must end; abandon those that do not stop.

told to stop ──ends by itself──▶ settled
             ──grace is over───▶ abandoned: settled without it, slot free, late result dropped
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from packhorse.core.clock import Clock
from packhorse.core.outcome import Outcome
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.outcomes import ended_by_worker
from packhorse.runtime.worker.slots import Slots
from packhorse.runtime.worker.telemetry import Announcer


class Watchdog:
    """Watches every running attempt's `expires`.

    An attempt that expires is told to stop and given a grace; one that expires again is abandoned.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        running: Callable[[], Iterable[Attempt]],
        expired: Callable[[Attempt], None],
    ) -> None:
        self._loop = loop
        self._monotonic = clock.monotonic
        self._running = running
        self._expired = expired
        self.alarm = float("inf")  #: when it looks next
        self._timer: asyncio.TimerHandle | None = None

    def wake_at(self, when: float, now: float) -> None:
        """Look at `when`, which is sooner than `alarm`."""
        if self._timer is not None:
            self._timer.cancel()
        self.alarm = when
        self._timer = self._loop.call_later(max(0.0, when - now), self._look)

    def extend(self, attempt: Attempt, seconds: float) -> None:
        """Give an attempt that is being stopped this many seconds."""
        now = self._monotonic()
        attempt.expires = now + seconds
        if attempt.expires < self.alarm:
            self.wake_at(attempt.expires, now)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.alarm, self._timer = float("inf"), None
        now = self._monotonic()
        running = [each for each in self._running() if each.stage is Stage.RUNNING]
        for attempt in running:
            if attempt.expires <= now:
                self._expired(attempt)
        ends = [each.expires for each in running if each.stage is Stage.RUNNING]
        if ends and min(ends) < self.alarm:
            self.wake_at(min(ends), now)


class Stopper:
    """Stops handlers, and abandons those that do not stop."""

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
        self._abandoned: set[Attempt] = set()  # coroutines; kept, for the loop forgets tasks

    @property
    def abandoned(self) -> int:
        """How many abandoned coroutines still run."""
        self._abandoned = {each for each in self._abandoned if each.live_tasks}
        return len(self._abandoned)

    def abandoned_attempts(self) -> list[Attempt]:
        """Return the attempts of those coroutines; callable from any thread."""
        return [each for each in list(self._abandoned) if each.live_tasks]

    def let_go(self) -> None:
        """Keep a closing event loop from waiting for abandoned coroutines."""
        for task in (task for attempt in self._abandoned for task in attempt.live_tasks):
            # It would be cancelled and awaited there, and it does not heed being cancelled.
            asyncio._unregister_task(task)  # noqa: SLF001 - part of asyncio's extension API
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - told already

    def expired(self, attempt: Attempt) -> None:
        """Stop an attempt whose time is over; abandon it when its grace is over too."""
        if attempt.ending is None:
            self.stop(attempt, attempt.bound)
        else:
            self.abandon(attempt)

    def cancel(self, job_ids: Collection[str]) -> None:
        """Stop the attempts of these cancelled jobs."""
        wanted = frozenset(job_ids)
        self._slots.withdraw(lambda job: job.id in wanted)
        for attempt in self._slots.running_attempts():
            if attempt.job.id in wanted and attempt.ending is None:
                self._announcer.cancelling(attempt)
                self.stop(attempt, Ending.CANCEL)

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        """Ask a handler to stop, and give it its grace."""
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
            elif not attempt.plan.threaded:
                for task in attempt.live_tasks[:1]:  # its middlewares see how it ends
                    task.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Free the slot of a handler that does not stop; ignore what it still returns."""
        if attempt.stage > Stage.RUNNING:
            return
        ending = attempt.ending or attempt.bound
        outcome: Outcome = attempt.outcome or ended_by_worker(attempt, ending)
        self._slots.finish(attempt, outcome)
        attempt.stage = Stage.ABANDONED
        if attempt.plan.threaded:
            self._abandon_thread(attempt)
        for task in attempt.live_tasks:
            task.cancel()
            self._abandoned.add(attempt)
        self._announcer.abandoned(attempt)
