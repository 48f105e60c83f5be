# SPDX-License-Identifier: MIT
"""What a supervised worker keeps on the page its supervisor sees, and says over the pipe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from packhorse.clock import SECOND_US
from packhorse.config import WorkerOptions
from packhorse.outcome import Outcome
from packhorse.supervisor.link import Link
from packhorse.supervisor.messages import Stuck
from packhorse.worker.attempt import Attempt, Stage
from packhorse.worker.endings import Endings
from packhorse.worker.heartbeat import Heartbeat
from packhorse.worker.parts import WorkerParts
from packhorse.worker.reporting import Reporter, stack_of_task, stack_of_thread
from packhorse.worker.runners import ThreadRunner
from packhorse.worker.settler import Settler
from packhorse.worker.shutdown import Phase, Shutdown
from packhorse.worker.slots import Slots
from packhorse.worker.tally import Tally
from packhorse.worker.trouble import StoreHealth
from packhorse.worker.wear import Wear

__all__ = ["Board", "BoardParts"]


@dataclass(frozen=True, slots=True)
class BoardParts:
    """What is told about."""

    worker: str
    slots: Slots
    settler: Settler
    threads: ThreadRunner
    endings: Endings
    heartbeat: Heartbeat
    shutdown: Shutdown
    health: StoreHealth


class Board:
    """A worker as its supervisor sees it."""

    def __init__(
        self, link: Link, given: WorkerParts, options: WorkerOptions, parts: BoardParts
    ) -> None:
        self.page = link.page
        self._given = given
        self._options = options
        self._parts = parts
        self._monotonic = given.clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._reporter = Reporter(link, self, given.clock)
        self._wear = Wear(options)

    def greet(self) -> None:
        """Say who this is, before the first claim."""
        given = self._given
        self._reporter.hello(
            self._parts.worker, self._options, given.registry, given.store.label, given.version
        )

    # ------------------------------------------------------------------------- once per attempt

    def begin(self, attempt: Attempt) -> None:
        """Its handler begins."""
        job = attempt.job
        attempt.place = self.page.begin(job.id, job.fence, attempt.started, attempt.expires)

    def extend(self, attempt: Attempt) -> None:
        """It was told to stop, and has until its new `expires`."""
        if attempt.place is not None and attempt.stage is Stage.RUNNING:
            self.page.extend(attempt.place, attempt.expires)

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """It has ended, or never began."""
        if attempt.place is not None:
            self.page.ended(attempt.place)
            if not attempt.plan.process:  # else another process bore it, and looks after itself
                self._wear.ended(outcome)
        self._parts.settler.add(attempt, outcome)

    def accepted(self, attempts: Sequence[Attempt]) -> None:
        """The store has taken what became of these."""
        for attempt in attempts:
            if attempt.place is not None:
                self.page.settled(attempt.place)
                attempt.place = None
        self._reporter.ended(attempts)
        worn = self._wear.verdict(self._parts.slots.started)
        if worn is not None and not self._parts.shutdown.begun:
            self.retire(worn)

    # -------------------------------------------------------------------------------- otherwise

    def expired(self, attempt: Attempt) -> None:
        """One that was given up may still end by itself; if not, this process has to go."""
        if attempt.stage is Stage.ABANDONED:
            self._loop.call_later(self._options.stop_grace_us / SECOND_US, self._retire_if_stuck)

    def retire(self, reason: str) -> None:
        """Leave once all that runs has ended; another process takes this one's place now."""
        if self._reporter.retire(reason):
            self._parts.shutdown.patient = True
            self._parts.shutdown.advance(Phase.DRAINING, reason)

    def loop_blocked(self, culprit: Attempt | None, stack: str) -> None:
        """The event loop does not turn, because of this one if that is known."""
        self.page.blocked_by(None if culprit is None else culprit.place)
        self._reporter.blocked = stack

    def beat(self) -> None:
        """Every second, from the heartbeat's thread."""
        if not self._parts.heartbeat.loop_blocked:
            self._reporter.blocked = ""
        self._reporter.beat()
        swollen = self._wear.swollen(self._parts.slots.started)
        if swollen is not None and not self._parts.shutdown.begun:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has left already
                self._loop.call_soon_threadsafe(self.retire, swollen)

    def left(self) -> None:
        """The store holds nothing for this worker any more."""
        self._reporter.left()

    def _retire_if_stuck(self) -> None:
        stuck = self._parts.threads.stuck + self._parts.endings.deaf
        if stuck:
            self.retire(f"{stuck} handlers do not stop")

    # ------------------------------------------------------------- how it is, for the reporter

    def stuck(self) -> list[Stuck]:
        now = self._monotonic()
        found = [
            _stuck(attempt, now, stack_of_thread(thread), "thread")
            for attempt, thread in self._parts.threads.stuck_threads()
        ]
        for attempt in self._parts.endings.deaf_attempts():
            stack = "" if attempt.task is None else stack_of_task(attempt.task)
            found.append(_stuck(attempt, now, stack, "coroutine"))
        return found

    @property
    def running(self) -> int:
        return self._parts.slots.running

    @property
    def ahead(self) -> int:
        return len(self._parts.slots.waiting)

    @property
    def unsettled(self) -> int:
        return self._parts.settler.backlog

    @property
    def tally(self) -> Tally:
        return self._parts.settler.tally

    @property
    def abandoned(self) -> int:
        return len(self._parts.threads.stuck_threads()) + len(self._parts.endings.deaf_attempts())

    @property
    def trouble(self) -> str:
        return ", ".join(self._parts.health.failing)

    @property
    def trusted(self) -> bool:
        return self._parts.heartbeat.lease.trusted

    @property
    def stopping(self) -> bool:
        return self._parts.shutdown.begun

    @property
    def quiet_claims(self) -> bool:
        return self._parts.shutdown.quiet


def _stuck(attempt: Attempt, now: float, stack: str, kind: str) -> Stuck:
    job = attempt.job
    seconds = round(max(0.0, now - attempt.expires), 1)
    return Stuck(job_id=job.id, task=job.task, seconds=seconds, stack=stack, kind=kind)
