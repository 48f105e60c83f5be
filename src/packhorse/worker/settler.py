# SPDX-License-Identifier: MIT
"""Outcomes to settlements to one batched write, tried again until the store has accepted it.

A batch goes when it is large, when a few milliseconds have passed, when nothing else runs, or when
a claim is about to go, so that both can share one commit. One write is under way at a time; what
ends meanwhile makes the next batch. Nothing is ever dropped: what the store refuses to take now is
offered again, and the same settlement sent twice is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from packhorse.clock import Chance
from packhorse.errors import StoreUnavailable
from packhorse.lifecycle import settle
from packhorse.outcome import Limited, Outcome, Succeeded
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.protocol import Store
from packhorse.worker.announcer import Announcer
from packhorse.worker.attempt import Attempt
from packhorse.worker.plans import completed, limits_of
from packhorse.worker.progress import ProgressBoard
from packhorse.worker.shutdown import Shutdown
from packhorse.worker.tally import Tally
from packhorse.worker.trouble import Backoff, StoreHealth

__all__ = ["BACKLOG_MAX", "Settler"]

#: While more than this wait to be written, nothing new is claimed.
BACKLOG_MAX: Final = 2_000
_BATCH_MAX: Final = 1_000
_FLUSH_SIZE: Final = 500
_FLUSH_DELAY_S: Final = 0.003
_APPLIED: Final = Verdict.APPLIED
_COMPLETED: Final = SettlementKind.COMPLETED


class Settler:
    """Writes what became of jobs."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        shutdown: Shutdown,
        health: StoreHealth,
        *,
        announcer: Announcer,
        progress: ProgressBoard,
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._chance = chance
        self._shutdown = shutdown
        self._health = health
        self._announcer = announcer
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._settlements: list[Settlement] = []
        self._attempts: list[Attempt] = []
        self._under_way = 0
        self._due = asyncio.Event()
        self._wrote = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._batch_max = _BATCH_MAX
        self._accepted: Callable[[Sequence[Attempt]], None] = lambda _attempts: None
        self._limited: Callable[[Attempt], None] = lambda _attempt: None

    def connect(
        self, accepted: Callable[[Sequence[Attempt]], None], limited: Callable[[Attempt], None]
    ) -> None:
        """Say who is told which attempts the store has accepted, and which one met a limit."""
        self._accepted, self._limited = accepted, limited

    @property
    def backlog(self) -> int:
        """How many settlements wait to be accepted."""
        return len(self._settlements) + self._under_way

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Decide what becomes of a job, and write it with the next batch. Once per job."""
        job = attempt.job
        if type(outcome) is Succeeded:
            settlement = completed(job, attempt.plan, outcome.result)
        else:
            limits = limits_of(job, attempt.plan)
            settlement = settle(job, outcome, limits, roll=self._chance.roll())
        self._settlements.append(settlement)
        self._attempts.append(attempt)
        if type(outcome) is Limited:
            self._limited(attempt)

    def consider(self, *, idle: bool) -> None:
        """Look whether to write now; `idle` when nothing runs that could still join the batch."""
        if not self._settlements or self._due.is_set():
            return
        if idle or len(self._settlements) >= _FLUSH_SIZE:
            self._due.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_DELAY_S, self._time_is_up)

    def flush(self) -> None:
        """Write what there is, starting in this round of the event loop."""
        if self._settlements:
            self._due.set()

    async def run(self) -> None:
        """Write batches until cancelled."""
        backoff = Backoff(self._chance)
        while True:
            await self._due.wait()
            if await self._write():
                backoff.reset()
            else:
                await self._shutdown.sleep(backoff.next_s())

    async def drained(self, timeout_s: float) -> bool:
        """Wait until everything is accepted; False if that takes longer than it may."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.backlog:
                    self._wrote.clear()
                    self.flush()
                    await self._wrote.wait()
        except TimeoutError:
            return False
        return True

    def _time_is_up(self) -> None:
        self._timer = None
        self.flush()

    async def _write(self) -> bool:
        settlements, attempts = self._next_batch()
        try:
            if self._progress.pending:
                await self._progress.write(attempts)
            verdicts = await self._store.arun(self._store.jobs.settle(settlements))
        except Exception as error:  # noqa: BLE001 - whatever failed, the batch is offered again
            self._put_back(settlements, attempts, error)
            return False
        self._under_way = 0
        self._batch_max = _BATCH_MAX
        self._health.worked("settle")
        self._answered(settlements, attempts, verdicts)
        self._wrote.set()
        return True

    def _next_batch(self) -> tuple[list[Settlement], list[Attempt]]:
        most = self._batch_max
        settlements, attempts = self._settlements[:most], self._attempts[:most]
        self._settlements, self._attempts = self._settlements[most:], self._attempts[most:]
        self._under_way = len(settlements)
        if not self._settlements:
            self._due.clear()
        return settlements, attempts

    def _put_back(
        self, settlements: list[Settlement], attempts: list[Attempt], error: Exception
    ) -> None:
        self._health.failed("settle", error)
        self._under_way = 0
        if isinstance(error, StoreUnavailable):
            self._settlements[:0], self._attempts[:0] = settlements, attempts
        else:
            # One of them may be what fails: smaller batches, and others first, find it out.
            self._batch_max = max(1, len(settlements) // 2)
            self._settlements += settlements
            self._attempts += attempts
        self._due.set()

    def _answered(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],
    ) -> None:
        self._accepted(attempts)
        tally, announcer = self.tally, self._announcer
        wanted, wants_completed = announcer.wants_ends, announcer.wants_completed
        tally.execution_s += sum([attempt.duration for attempt in attempts])
        for attempt, settlement, verdict in zip(attempts, settlements, verdicts, strict=True):
            if verdict is _APPLIED and settlement.kind is _COMPLETED:  # nearly all of them
                tally.succeeded += 1
                if wants_completed:
                    announcer.completed(attempt)
                continue
            tally.count(settlement, verdict)
            if wanted:
                announcer.settled(attempt, settlement, verdict)
