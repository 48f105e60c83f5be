# SPDX-License-Identifier: MIT
"""Turn outcomes into settlements, and write them in batches until the store has accepted them.

A batch is written when it is large, after a few milliseconds, when nothing else runs, or just
before a claim, so that both share one commit. One write is under way at a time; attempts that end
meanwhile make the next batch. Nothing is dropped: a failed write is repeated, and a settlement that
is sent twice is written once. A settlement that the store can never hold is found by halving the
batch, and written in a simpler form.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from packhorse.core.generators import adrive, drive
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import settle
from packhorse.core.outcome import Limited, Outcome, Succeeded
from packhorse.core.redaction import redacted_error
from packhorse.core.settlement import Settlement, SettlementKind, Verdict, refused
from packhorse.errors import StoreRefused, StoreUnavailable
from packhorse.events import JobCompleted
from packhorse.runtime.worker.attaching import LogWriter
from packhorse.runtime.worker.attempt import Attempt, SettlementWaiter
from packhorse.runtime.worker.handlers import rules_of
from packhorse.runtime.worker.store_health import Backoff
from packhorse.runtime.worker.tallies import Tallies

if TYPE_CHECKING:
    from packhorse.runtime.worker.base_runtime import Runtime

_LOG: Final = logging.getLogger("packhorse.worker")
#: While more than this wait to be written, nothing new is claimed.
BACKLOG_MAX: Final = 2_000
_BATCH_MAX: Final = 1_000
#: Of results in one batch, in characters: a store answers no other call while it reads them.
_BATCH_LENGTH_MAX: Final = 4 * 1024 * 1024
_FLUSH_SIZE: Final = 500
_FLUSH_DELAY_S: Final = 0.003
_CANCELLED: Final = "CancelledError"
_Pair = tuple[Settlement, Attempt]
_APPLIED: Final = Verdict.APPLIED
_RETRIED: Final = frozenset({JobStatus.FAILED, JobStatus.TIMEOUT})
_COMPLETED: Final = SettlementKind.COMPLETED


class Settler:
    """Writes settlements."""

    def __init__(self, runtime: Runtime) -> None:
        env = runtime.env
        self._runtime = runtime
        self._store = env.store
        self._bus = env.bus
        self._logs = LogWriter(env.store, env.bus.redact)
        self._chance = env.chance
        self._monotonic = env.clock.monotonic
        self._held = runtime.slots.held  # until the store has accepted what became of them
        self._shutdown = runtime.shutdown
        self._health = runtime.health
        self._announcer = runtime.announcer
        self._progress = runtime.progress
        self._loop = runtime.loop
        self._queue: list[_Pair] = []
        self._under_way: list[_Pair] = []
        self._due = asyncio.Event()
        self._wrote = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._batch_max = _BATCH_MAX
        self._backoff = Backoff(env.chance)
        #: Called with the attempts that the store has accepted.
        self.on_accepted: Callable[[Sequence[Attempt]], None] | None = None
        self.tallies = Tallies(runtime.counters)  #: of all attempts that the store has answered
        #: Called with every answered batch, where attempts are traced.
        self.on_answered: (
            Callable[[Sequence[Settlement], Sequence[Attempt], Sequence[Verdict]], None] | None
        ) = None

    @property
    def backlog(self) -> int:
        """The number of settlements that the store has not accepted yet."""
        return len(self._queue) + len(self._under_way)

    def add(self, attempt: Attempt, outcome: Outcome, *, retry_us: int | None = None) -> None:
        """Decide what follows for a job, and write it with the next batch.

        A retry waits for `retry_us`, or as the retry policy says.
        """
        if attempt.settled is not None:
            self._already_settled(attempt, attempt.settled, outcome)
            return
        job = attempt.job
        plan = attempt.handler
        limits = plan.rules if job.options is None else rules_of(job, plan)
        # A success needs no random number.
        roll = 0.0 if type(outcome) is Succeeded else self._chance.roll()
        settlement = settle(job, outcome, limits, roll=roll)
        if attempt.running is not None and attempt.running.lines is not None:
            self._logs.take(attempt)
        if plan.item is not None:
            settlement = _with_items(settlement, attempt, outcome)
        if type(outcome) is not Succeeded:
            attempt.outcome = outcome
        if settlement.error is not None:  # before it reaches the store and logs
            shown = redacted_error(self._bus.redact, settlement.error)
            settlement = msgspec.structs.replace(settlement, error=shown)
        if retry_us is not None and settlement.status in _RETRIED:
            settlement = msgspec.structs.replace(settlement, delay_us=retry_us)
        self._queue.append((settlement, attempt))
        if type(outcome) is Limited:
            self._runtime.limited(attempt)

    def _already_settled(self, attempt: Attempt, settlement: Settlement, outcome: Outcome) -> None:
        """Report a job that its handler completed in a transaction: nothing is left to write."""
        if type(outcome) is not Succeeded:
            _LOG.warning(
                "job %s was completed by ctx.transaction(), so that what its handler did after the "
                "block does not count: %s",
                attempt.job.id,
                _words_of(outcome),
                extra={"job_id": attempt.job.id, "queue": attempt.job.queue},
            )
        self._answered([settlement], [attempt], [_APPLIED])
        self._wrote.set()

    def flush(self, *, at_once: bool = True) -> None:
        """Write all that waits: in this round of the event loop, or soon, if more may join it."""
        if not self._queue or self._due.is_set():
            return
        if at_once or len(self._queue) >= _FLUSH_SIZE:
            self._due.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_DELAY_S, self._time_is_up)

    def withdraw(self, attempt: Attempt) -> None:
        """Drop the unwritten settlement of this attempt; one that is being written, if it fails."""
        if attempt.settling is not None:
            attempt.settling.withdrawn = any(each is attempt for _, each in self._under_way)
            if not attempt.settling.withdrawn:
                attempt.settling.answer.cancel()
        self._logs.forget(attempt)
        self._queue = [pair for pair in self._queue if pair[1] is not attempt]

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._due.wait()
            await self._write()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until everything is accepted; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.backlog:
                    self._wrote.clear()
                    self.flush()
                    await self._wrote.wait()
        except TimeoutError:
            return False
        return True

    def write_now(self) -> list[Attempt]:
        """Write all that waits, blocking; leave out and return attempts that were only cancelled.

        For a loop that a job has ended: its handlers were cancelled, and did not end by themselves.
        """
        batch = [*self._under_way, *(pair for pair in self._queue if not _was_cancelled(pair[0]))]
        cancelled = [attempt for settlement, attempt in self._queue if _was_cancelled(settlement)]
        self._queue, self._under_way = [], []
        if batch:
            settlements, attempts = [each for each, _ in batch], [each for _, each in batch]
            with contextlib.suppress(Exception):  # the settlements matter more
                drive(self._logs.write(attempts), self._store.run)
            verdicts = self._store.run(self._store.jobs.settle(settlements))
            self._answered(settlements, attempts, verdicts)
        return cancelled

    def _time_is_up(self) -> None:
        self._timer = None
        self.flush()

    async def _write(self) -> None:
        """Write the next batch. Apart from `run`, whose frame would keep the batch alive."""
        batch = self._next_batch()
        settlements, attempts = [each for each, _ in batch], [each for _, each in batch]
        try:
            if self._progress.newest:
                await self._progress.write(attempts)
            if self._logs.kept:
                await adrive(self._logs.write(attempts), self._store.arun)
            verdicts = await self._store.arun(self._store.jobs.settle(settlements))
        except Exception as error:  # noqa: BLE001 - whatever failed, the batch is offered again
            if self._under_way is not batch:
                return  # `write_now` has written it
            if not (isinstance(error, StoreRefused) and self._simplify(batch, error)):
                self._put_back(batch, error)
                await self._health.pause(self._shutdown, self._backoff.next_s())
            return
        if self._under_way is not batch:
            return  # `write_now` has written it too
        self._under_way = []
        self._batch_max = _BATCH_MAX
        if self._health.failing:
            self._health.worked("settle")
            self._backoff.reset()
        self._answered(settlements, attempts, verdicts)
        self._wrote.set()

    def _next_batch(self) -> list[_Pair]:
        """Take as many settlements as fit into one write."""
        most, length = 0, 0
        for settlement, _ in self._queue[: self._batch_max]:
            length += len(settlement.result or "")
            if most and length > _BATCH_LENGTH_MAX:
                break
            most += 1
        self._under_way, self._queue = self._queue[:most], self._queue[most:]
        if not self._queue:
            self._due.clear()
        return self._under_way

    def _simplify(self, batch: list[_Pair], error: StoreRefused) -> bool:
        """Halve a batch that the store refuses for good; simplify a settlement that is alone in it.

        Returns whether to write again at once.
        """
        settlement, attempt = batch[0]
        if len(batch) == 1 and not _is_withdrawn(attempt):
            simpler = refused(settlement, str(error))
            if simpler is None:  # it does not even hold that: wait, as for any other error
                return False
            batch = [(simpler, attempt)]
        self._under_way = []
        self._batch_max = max(1, len(batch) // 2)
        self._queue[:0] = self._give_up(batch, error, _is_withdrawn)
        self._due.set()
        return True

    def _put_back(self, batch: list[_Pair], error: Exception) -> None:
        self._health.failed("settle", error)
        self._under_way = []
        left = self._give_up(batch, error, self._waits_no_longer)
        if isinstance(error, StoreUnavailable):
            self._queue[:0] = left
        else:
            # One of them may be the cause: smaller batches, and others first, find it.
            self._batch_max = max(1, len(left) // 2)
            self._queue += left
        self._due.set()

    def _waits_no_longer(self, attempt: Attempt) -> bool:
        waits = attempt.settling
        if waits is None:
            return False
        return waits.withdrawn or self._shutdown.begun or self._monotonic() >= waits.until

    def _give_up(
        self, batch: list[_Pair], error: Exception, which: Callable[[Attempt], bool]
    ) -> list[_Pair]:
        """Raise the error in callers that wait no longer; return the rest, to be written again."""
        left: list[_Pair] = []
        for settlement, attempt in batch:
            waits = attempt.settling
            if waits is not None and which(attempt):
                if waits.withdrawn:
                    waits.answer.cancel()  # no caller would see the error
                elif not waits.answer.done():
                    waits.answer.set_exception(error)
            else:
                left.append((settlement, attempt))
        return left

    def _answered(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],
    ) -> None:
        self._held.difference_update(attempts)
        if self.on_accepted is not None:
            self.on_accepted(attempts)
        if self.on_answered is not None:
            self.on_answered(settlements, attempts, verdicts)
        count, announcer = self.tallies.count, self._announcer
        wants_completed = JobCompleted in self._bus.observers
        for attempt, settlement, verdict in zip(attempts, settlements, verdicts, strict=True):
            before = attempt.settling is not None and _answer(attempt.settling, verdict)
            said, found = settlement, verdict
            if verdict is Verdict.STALE and attempt.settled is not None:
                # Its handler was abandoned, but had committed before that was written.
                said, found = attempt.settled, _APPLIED
            count(attempt, said, found, before=before)
            if before and found is not Verdict.STALE:
                continue  # its events were emitted then
            if found is _APPLIED and settlement.kind is _COMPLETED:  # nearly all of them
                if wants_completed:
                    announcer.completed(attempt)
                continue
            if announcer.wants_ends:
                announcer.settled(attempt, said, found)
            attempt.outcome = None  # its exception holds the frames that hold the attempt


def _with_items(settlement: Settlement, attempt: Attempt, outcome: Outcome) -> Settlement:
    """Add how many items of a chunk are done; an outcome of another process has that itself."""
    counted = getattr(outcome, "counted", None)
    if counted is None and attempt.chunk is not None:
        counted = attempt.chunk.counted
    return msgspec.structs.replace(settlement, counted=counted)


def _was_cancelled(settlement: Settlement) -> bool:
    return settlement.error is not None and settlement.error.type == _CANCELLED


def _is_withdrawn(attempt: Attempt) -> bool:
    return attempt.settling is not None and attempt.settling.withdrawn


def _words_of(outcome: Outcome) -> str:
    error = getattr(outcome, "error", None)
    return type(outcome).__name__ if error is None else f"{error.type}: {error.message}"


def _answer(settling: SettlementWaiter, verdict: Verdict) -> bool:
    """Answer the waiting caller; return whether its attempt was counted before."""
    before, settling.counted = settling.counted, True
    if not settling.answer.done():
        settling.answer.set_result(verdict)
    return before
