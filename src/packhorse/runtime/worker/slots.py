# SPDX-License-Identifier: MIT
"""The worker's slots: which jobs it holds, which run, and the turn from one job to the next.

    claim ──▶ take ──▶ waiting (look-ahead) ──▶ turn ──▶ runner ──▶ finish ──▶ settler
                                                 ▲                     │
                                                 └─────────────────────┘

`finish` is called once per job and only notes its end. The turn that follows, once per round of the
event loop however many jobs ended in it, fills slots and calls fetcher and settler.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.job import Job
from packhorse.core.outcome import Outcome, Released
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.outcomes import ended_by_worker

#: Jobs asked for in one claim.
CLAIM_BATCH_MAX: Final = 500
#: Jobs held beyond the free slots: those of two claims, so that one batch runs while the store
#: works on the next.
LOOK_AHEAD_MAX: Final = 2 * CLAIM_BATCH_MAX
_WORK_S: Final = 0.05
#: Weight of the newest duration in the moving average.
_NEWEST: Final = 0.05
#: The next claim goes when this part of the look-ahead is used up: early enough to overlap with
#: the work that is left, late enough to be worth a round trip.
_REFILL: Final = 4


class LookAhead:
    """How many jobs to hold beyond the free slots: enough to hide the time of a claim, no more.

    At most 50 ms of work, by the moving average of how long a job keeps its slot, and at most two
    claim batches, so that priorities, pauses and other workers are overtaken by 50 ms at most.
    """

    __slots__ = ("_suspended", "average_s", "concurrency")

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._suspended = False
        self.average_s = 0.0  #: 0 until the first job has ended

    def measured(self, duration_s: float) -> None:
        """Take the duration of a job that has ended into the average."""
        average = self.average_s
        self._suspended = False
        if average:
            self.average_s = average + (duration_s - average) * _NEWEST
        else:
            self.average_s = max(duration_s, 1e-6)

    def suspend(self) -> None:
        """Hold nothing ahead until a job has ended again: what was held ahead grew old."""
        self._suspended = True

    def wanted(self, running: int, waiting: int, *, ahead: bool = True) -> int:
        """Return how many jobs to claim now; 0 while a claim would bring too few to be worth it."""
        size = 0
        if ahead and self.average_s and not self._suspended:
            size = min(int(self.concurrency * _WORK_S / self.average_s), LOOK_AHEAD_MAX)
        missing = self.concurrency - running + size - waiting
        if waiting and missing < max(1, size // _REFILL):
            return 0
        return max(0, min(missing, CLAIM_BATCH_MAX))


#: Look-ahead that could not begin within this goes back: another worker may have room for it.
LOOK_AHEAD_HELD_S: Final = 1.0

_NOT_BEGUN: Final = Released(started=False)
# Looked up several times per job: reading a member from its enum takes ten times as long.
_STARTING: Final = Stage.STARTING
_ENDED: Final = Stage.ENDED
_ABANDONED: Final = Stage.ABANDONED
_TOO_LATE: Final = Ending.TOO_LATE


class Slots:
    """All jobs of this worker. Used by the event loop's thread alone, except `held_fences`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        concurrency: int,
        *,
        max_jobs: int | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.max_jobs = max_jobs  #: attempts that may begin at all
        self.running = 0
        self.in_processes = 0  #: of those; they have slots of their own, one a process
        self.started = 0  #: attempts begun since the worker started
        self.waiting: deque[Attempt] = deque()  #: look-ahead
        self.held: set[Attempt] = set()  #: from the claim until the settlement is accepted
        self.look_ahead = LookAhead(concurrency)
        self.process_look_ahead = LookAhead(0)  #: `ProcessFetcher` sets how many processes
        self.open = True  #: False: start nothing any more
        self.freed = False  #: a job has ended that counted against a limit
        self._loop = loop
        self._monotonic = clock.monotonic
        # Jobs start from turns alone, and turns run in the worker's own context, so that no job
        # sees what another put into its context variables.
        self._context = contextvars.copy_context()
        self._turn_due = False
        self._may_start: Callable[[], bool] = lambda: True
        self._run: Callable[[Attempt], None] = _unset
        self._settle: Callable[[Attempt, Outcome], None] = _unset
        self._after_turn: Callable[[], None] = _unset

    def connect(
        self,
        run: Callable[[Attempt], None],
        settle: Callable[[Attempt, Outcome], None],
        after_turn: Callable[[], None],
        may_start: Callable[[], bool],
    ) -> None:
        """Set what runs and settles attempts, what follows a turn, and what may forbid starting."""
        self._run, self._settle, self._after_turn = run, settle, after_turn
        self._may_start = may_start

    def resize(self, concurrency: int) -> None:
        """Change the number of slots."""
        self.concurrency = self.look_ahead.concurrency = concurrency

    def held_of(self, queue: str) -> int:
        """Return how many jobs of a queue run here, or are about to."""
        return sum(each.job.queue == queue for each in self.held if each.stage <= Stage.RUNNING)

    def held_below(self, priority: int) -> int:
        """Return how many less urgent jobs hold a slot of `concurrency`, or are about to."""
        held = (each for each in self.held if each.stage <= Stage.RUNNING)
        return sum(each.job.priority > priority and not each.handler.process for each in held)

    @property
    def occupied(self) -> int:
        """How many slots are taken: jobs that wait for a process have none yet."""
        waiting = self.in_processes - self.process_look_ahead.concurrency
        return self.running - max(0, waiting)

    @property
    def left(self) -> int:
        """How many more jobs may be claimed, by `max_jobs`."""
        if self.max_jobs is None:
            return sys.maxsize
        return self.max_jobs - self.started - len(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether anything runs, or is about to."""
        return self.running > 0 or bool(self.waiting)

    def take(self, attempts: Iterable[Attempt]) -> None:
        """Hold the jobs of a claim, and start those that find a slot."""
        arrived = self._monotonic()
        first = []
        for attempt in attempts:
            attempt.arrived = arrived
            self.held.add(attempt)
            if attempt.handler.process:  # its slot is a process, not one that others wait for
                first.append(attempt)
            else:
                self.waiting.append(attempt)
        self.waiting.extendleft(reversed(first))
        self.turn_soon()

    def finish(self, attempt: Attempt, outcome: Outcome) -> None:
        """Free the slot of an ended attempt, and settle it. Runs once per job: keep it short."""
        if attempt.stage is _ABANDONED:
            return  # it was settled when it was abandoned
        attempt.stage = _ENDED
        self.running -= 1
        self.in_processes -= attempt.handler.process
        if attempt.begun:  # else it was stopped, or too late, before it began
            attempt.duration = duration = self._monotonic() - attempt.started
            ahead = self.process_look_ahead if attempt.handler.process else self.look_ahead
            ahead.measured(duration)
            if duration > attempt.timeout_s and attempt.ending is None:
                # It blocked the loop, so that nothing could stop it in time.
                outcome = ended_by_worker(attempt, attempt.bound)
        if attempt.ending is _TOO_LATE:
            self.started -= 1  # `max_jobs` does not count a job that never started
            if attempt.handler.process:
                self.process_look_ahead.suspend()
        self._settle(attempt, outcome)
        if attempt.context is not None:  # it holds the attempt: a cycle, which keeps the payload
            attempt.context.let_go()
            attempt.context = None
        if attempt.handler.counted:
            self.freed = True
        self.turn_soon()

    def drop(self) -> None:
        """Forget all held jobs, which are settled; stop those that run and ignore their ends."""
        for attempt in self.running_attempts():
            attempt.stage = _ABANDONED
            if attempt.context is not None:
                attempt.context.request_cancel()
            if attempt.task is not None:
                attempt.task.cancel()
        self.held.clear()
        self.waiting.clear()
        self.running = self.in_processes = 0

    def turn_soon(self) -> None:
        """Schedule a turn, because something changed."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn, context=self._context)

    def give_back(self, *, older_than: float = math.inf) -> None:
        """Release the look-ahead that arrived before `older_than`; it counts as no attempt."""
        while self.waiting and self.waiting[0].arrived < older_than:
            self._release(self.waiting.popleft())
        self.turn_soon()

    def withdraw(self, meant: Callable[[Job], bool]) -> None:
        """Release look-ahead that fits the condition, so that the store decides about it."""
        for each in [each for each in self.waiting if meant(each.job)]:
            self.waiting.remove(each)
            self._release(each)
        self.turn_soon()

    def give_back_stale(self, now: float) -> float:
        """Release look-ahead that has waited too long; return how soon the next one has."""
        older_than = now - LOOK_AHEAD_HELD_S
        if self.waiting and self.waiting[0].arrived < older_than:
            self.give_back(older_than=older_than)
            self.look_ahead.suspend()
        return self.waiting[0].arrived - older_than if self.waiting else math.inf

    def running_attempts(self) -> list[Attempt]:
        """Return the attempts that have a slot."""
        return [each for each in self.held if _STARTING <= each.stage <= Stage.RUNNING]

    def held_fences(self) -> tuple[tuple[str, int], ...]:
        """Return id and fence of every held job; callable from any thread."""
        # list() of a set is one step of the interpreter, so the loop's thread cannot get between.
        return tuple((each.job.id, each.job.fence) for each in list(self.held))

    def _turn(self) -> None:
        """Fill free slots, then let fetcher and settler look."""
        self._turn_due = False
        waiting = self.waiting
        may_start = waiting and self.open and self._may_start()
        while may_start and waiting:
            attempt, in_own = waiting[0], self.running - self.in_processes
            if in_own >= self.concurrency and not attempt.handler.process:
                break
            waiting.popleft()
            if attempt.job.deadline_us is not None and self._is_over(attempt):
                self._release(attempt)  # the store puts it away as expired
                continue
            attempt.stage = _STARTING
            self.running += 1
            self.in_processes += attempt.handler.process
            self.started += 1
            self._run(attempt)
        self._after_turn()

    def _is_over(self, attempt: Attempt) -> bool:
        """Whether a job's deadline passed while it waited here."""
        deadline_us = attempt.job.deadline_us
        now_us = self._monotonic() * SECOND_US + attempt.offset_us_max
        return deadline_us is not None and now_us >= deadline_us

    def _release(self, attempt: Attempt) -> None:
        attempt.stage = _ENDED
        self._settle(attempt, _NOT_BEGUN)


def _unset(*_: object) -> None:
    raise RuntimeError("slots are used before they are connected")
