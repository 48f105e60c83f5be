# SPDX-License-Identifier: MIT
"""Stop attempts that take too long, or that the worker must end; abandon those that do not stop.

told to stop ──ends by itself──▶ settled
             ──grace is over───▶ abandoned: settled without it, slot free, late result dropped
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from packhorse.core.clock import SECOND_US
from packhorse.core.outcome import Outcome
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.outcomes import ended_by_worker

if TYPE_CHECKING:
    from packhorse.runtime.worker.worker_runtime import WorkerRuntime


class Stopper:
    """Watches every running attempt's `expires`, stops handlers, and abandons those that go on.

    An attempt that expires is told to stop and given a grace; one that expires again is abandoned.
    """

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime
        self._slots = runtime.slots
        self._grace_s = runtime.options.stop_grace_us / SECOND_US
        self.alarm = float("inf")  #: when it looks next
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned: set[Attempt] = set()  # coroutines; kept, for the loop forgets tasks

    @property
    def abandoned(self) -> int:
        """How many abandoned coroutines still run."""
        self._abandoned = {each for each in self._abandoned if each.live_tasks}
        return len(self._abandoned)

    def abandoned_attempts(self) -> list[Attempt]:
        """Return the attempts of those coroutines; callable from any thread."""
        return [each for each in list(self._abandoned) if each.live_tasks]

    def wake_at(self, when: float, now: float) -> None:
        """Look at `when`, which is sooner than `alarm`."""
        if self._timer is not None:
            self._timer.cancel()
        self.alarm = when
        self._timer = self._runtime.loop.call_later(max(0.0, when - now), self._look)

    def close(self) -> None:
        """Stop watching, and keep a closing event loop from waiting for abandoned coroutines."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (task for attempt in self._abandoned for task in attempt.live_tasks):
            # It would be cancelled and awaited there, and it does not heed being cancelled.
            asyncio._unregister_task(task)  # noqa: SLF001 - part of asyncio's extension API
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - told already

    def cancel(self, job_ids: Collection[str]) -> None:
        """Stop the attempts of these cancelled jobs."""
        wanted = frozenset(job_ids)
        self._slots.withdraw(lambda job: job.id in wanted)
        for attempt in self._slots.running_attempts():
            if attempt.job.id in wanted and attempt.ending is None:
                self._runtime.announcer.cancelling(attempt)
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
            self._give_grace(attempt)
            if self._runtime.processes is not None and attempt.handler.process:
                self._runtime.processes.stop(attempt)
            elif not attempt.handler.threaded:
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
        if attempt.handler.threaded:
            self._abandon_thread(attempt)
        for task in attempt.live_tasks:
            task.cancel()
            self._abandoned.add(attempt)
        self._runtime.announcer.abandoned(attempt)

    def _look(self) -> None:
        self.alarm, self._timer = float("inf"), None
        now = self._runtime.monotonic()
        running = [each for each in self._slots.held if each.stage is Stage.RUNNING]
        for attempt in running:
            if attempt.expires <= now:
                self._expired(attempt)
        ends = [each.expires for each in running if each.stage is Stage.RUNNING]
        if ends and min(ends) < self.alarm:
            self.wake_at(min(ends), now)

    def _expired(self, attempt: Attempt) -> None:
        """Stop an attempt whose time is over; abandon it when its grace is over too."""
        if attempt.ending is None:
            self.stop(attempt, attempt.bound)
        else:
            self.abandon(attempt)
        if self._runtime.supervisor is not None:
            self._runtime.supervisor.expired(attempt)

    def _give_grace(self, attempt: Attempt) -> None:
        now, supervisor = self._runtime.monotonic(), self._runtime.supervisor
        attempt.expires = now + self._grace_s
        if attempt.expires < self.alarm:
            self.wake_at(attempt.expires, now)
        if supervisor is not None:
            supervisor.extend(attempt)

    def _abandon_thread(self, attempt: Attempt) -> None:
        runtime, options = self._runtime, self._runtime.options
        runtime.threads.abandon(attempt)
        stuck = runtime.threads.stuck
        if stuck >= (options.abandoned_threads_max or options.concurrency):
            runtime.leave_with(
                f"{stuck} threads do not stop, the last one of job {attempt.job.id} "
                f"(task {attempt.job.task}); restart the process, and let the handler look at "
                "ctx.cancel_requested or use timeouts of its own"
            )
