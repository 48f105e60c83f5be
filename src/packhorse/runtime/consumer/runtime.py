# SPDX-License-Identifier: MIT
"""The runtime of a consumer: claimed jobs are handed out to fetches instead of being run.

Each waiting fetch is a free slot; each open fetch is a running one. A fetch asks the store at least
once, and a claim that brings more jobs than fetches wait for gives the rest back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from packhorse.context import Context
from packhorse.core.clock import SECOND_US
from packhorse.core.config import WorkerOptions
from packhorse.core.job import DeadReason
from packhorse.core.lifecycle import hold_until_us
from packhorse.core.outcome import GivenUp, Outcome, Released, Snoozed
from packhorse.core.references import Wanted, filled, wanted_results
from packhorse.core.sealing import key_of
from packhorse.core.settlement import Verdict
from packhorse.core.steps import has_attachments
from packhorse.core.text import text_of
from packhorse.core.versions import OtherVersion, set_aside
from packhorse.errors import (
    BudgetExceeded,
    JobConflict,
    KeyUnavailable,
    PayloadError,
    StepRefused,
    StoreUnavailable,
)
from packhorse.events import JobStarted, LoopBlocked
from packhorse.runtime.consumer.fetched import FetchedJob, fetched_job
from packhorse.runtime.services.upkeep import PARKED_US_MAX
from packhorse.runtime.worker.attempt import Attempt, SettlementWaiter, Stage
from packhorse.runtime.worker.base_runtime import Runtime, end
from packhorse.runtime.worker.contexts import ContextFactory
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.handlers import HandlerBook
from packhorse.runtime.worker.outcomes import described, keyless, raised, within_budget
from packhorse.runtime.worker.shutdown import Phase
from packhorse.signals import JobSignal
from packhorse.steps import ON_LOOP

#: How much longer than its timeout a fetch may take, to ask the store once.
_FIRST_LOOK_S: Final = 1.0
#: How long a claim under way may still take when the consumer is closed.
_CLAIM_LANDS_S: Final = 5.0
#: How long giving back what is open may take; its lease runs out by itself otherwise.
_PARTING_WRITES_S: Final = 5.0
_NOT_BEGUN: Final = Released(started=False)


class ConsumerRuntime(Runtime):
    """One consumer's parts, for one life on one event loop."""

    def __init__(
        self, worker: str, env: Environment, options: WorkerOptions, tasks: tuple[str, ...]
    ) -> None:
        handlers = HandlerBook(env.registry, env.queues, options.default_timeout_us, foreign=True)
        super().__init__(
            *(worker, env, options, handlers), tasks=tasks, concurrency=0, look_ahead=False
        )
        self._contexts = ContextFactory(self)
        self._waiting: list[_Waiter] = []
        self._claiming: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []
        self.slots.connect(
            run=self._hand_out,
            settle=self.settler.add,
            after_turn=self.after_turn,
            may_start=lambda: self.lease.trusted,
        )
        self.fetcher.on_look = self._look_ended
        self.settler.on_accepted = self._accepted
        self.shutdown.watch(self._end_fetches)

    def start(self) -> None:
        """Start lease, wake-ups, claims and services."""
        self.heartbeat.start()
        self._background = self.background()
        self._claiming = asyncio.create_task(self._claim())

    async def close(self) -> None:
        """Stop claiming, give back open jobs, and end the lease."""
        self.shutdown.advance(Phase.DRAINING, "closed")
        if self._claiming is not None:  # let a claim land, or its jobs would wait for nothing
            await asyncio.wait({self._claiming}, timeout=_CLAIM_LANDS_S)
            await end([self._claiming])
        self.slots.give_back()
        for attempt in self.open():
            attempt.stage = Stage.ENDED
            self.settler.add(attempt, Released(started=True))
        await self.settler.drained(_PARTING_WRITES_S)
        await end(self._background)
        await self.leave()

    # -------------------------------------------------------------------------------- fetching

    async def fetch(self, timeout_s: float) -> FetchedJob | None:
        """Return the next job, or None when the time is up or shutdown begins."""
        ends = self.monotonic() + timeout_s
        while True:
            attempt = await self._next(max(0.0, ends - self.monotonic()))
            if attempt is None or attempt.stage is not Stage.RUNNING:  # closed meanwhile
                return None
            # This is where it starts, as its rate limit sees it.
            if not self.too_late(attempt, self.monotonic()):
                return await self._handed_over(attempt)
            self._release(attempt)

    async def _next(self, timeout_s: float) -> Attempt | None:
        if self.shutdown.begun:
            return None
        waiter = _Waiter(self.loop.create_future(), self.fetcher.looks)
        timer = self.loop.call_later(timeout_s, self._time_is_up, waiter)
        self._waiting.append(waiter)
        self._count()
        self.fetcher.wake()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            attempt = waiter.given
            if attempt is not None:  # cancelled just when it got its job
                self._release(attempt)
            raise
        finally:
            timer.cancel()
            self._waiting.remove(waiter)
            self._count()

    async def _handed_over(self, attempt: Attempt) -> FetchedJob | None:
        """Return the job to its fetch, or give it back if it cannot be opened."""
        try:
            return await self._opened(attempt)
        except BaseException as error:
            self._not_opened(attempt)
            if isinstance(error, StoreUnavailable):
                return None  # as if the queue were empty
            raise

    async def _opened(self, attempt: Attempt) -> FetchedJob | None:
        """Return the job as its runtime sees it; None if it had to be settled instead."""
        attempt.timeout_s = self._allowed_s(attempt)
        if (key := key_of(attempt.job.payload)) is not None:
            missing = KeyUnavailable(attempt.job.id, key=key, what="payload")
            await self.settle(attempt, keyless(missing))
            return None
        if (wanted := wanted_results(attempt.job)) and not await self._filled_in(attempt, wanted):
            return None
        try:
            job = fetched_job(attempt)
        except OtherVersion as error:
            store = self.env.store
            stored = await store.arun(store.inspection.job(attempt.job.id))
            now_us = int(self.monotonic() * SECOND_US) + attempt.offset_us_max
            aside = set_aside(stored, text_of(error), now_us, longest_us=PARKED_US_MAX)
            await self.settle(attempt, aside)
            return None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            unreadable = described(error, code="UNDECODABLE")
            await self.settle(attempt, GivenUp(DeadReason.UNDECODABLE, unreadable))
            return None
        if has_attachments(attempt.job) and not await self._may_begin(attempt):
            return None
        if self.env.bus.wants(JobStarted):
            self.announcer.started(attempt)
        return job

    async def _filled_in(self, attempt: Attempt, wanted: Wanted) -> bool:
        """Put results of other nodes into the payload; False if one of them is not there."""
        try:
            results = await self.context(attempt).host.aresults(wanted)
            payload = filled(attempt.job.payload, wanted, results)
        except (JobConflict, PayloadError, KeyUnavailable) as error:
            await self.settle(attempt, raised(error))
            return False
        attempt.job = msgspec.structs.replace(attempt.job, payload=payload)
        return True

    def _not_opened(self, attempt: Attempt) -> None:
        """Give back a job that no caller receives, unless its end is, or is being, written."""
        settling = attempt.settling
        if settling is not None and (settling.counted or not settling.answer.done()):
            settling.withdrawn = False
        elif attempt.stage is Stage.RUNNING:
            attempt.settling = None  # no caller waits for its answer
            self._release(attempt)

    async def _may_begin(self, attempt: Attempt) -> bool:
        """Read what is kept with a job; False if it has no budget left, or waits for a person."""
        steps = self.context(attempt).steps
        try:
            await steps.open(ON_LOOP)
        except (JobSignal, BudgetExceeded, KeyUnavailable) as error:
            await self.settle(attempt, raised(error))
            return False
        return True

    def context(self, attempt: Attempt) -> Context:
        """Return the attempt's context; made when first needed."""
        if attempt.context is None:
            attempt.context = self._contexts.make(attempt)
        return attempt.context

    async def asked(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """Keep the question of an outcome that needs a person; return what to settle with."""
        if not isinstance(outcome, Snoozed) or not outcome.asks:
            return outcome
        steps = self.context(attempt).steps
        try:
            return await steps.ask(ON_LOOP, outcome)
        except StepRefused:  # another worker holds the job by now, as `settle` will find too
            return Released(started=True)

    def _hand_out(self, attempt: Attempt) -> None:
        """Answer the fetch that has waited longest."""
        waiter = next((each for each in self._waiting if not each.answer.done()), None)
        if waiter is None:
            self._release(attempt)
            return
        job, now = attempt.job, self.monotonic()
        own_us = self.handlers.longest_timeout_us if job.timeout_us is None else job.timeout_us
        attempt.expires = hold_until_us(int(now * SECOND_US), own_us) / SECOND_US
        attempt.begun, attempt.started = True, now
        attempt.stage = Stage.RUNNING
        waiter.given = attempt
        waiter.answer.set_result(attempt)

    def _release(self, attempt: Attempt) -> None:
        """Give back a job that no fetch has received."""
        attempt.stage = Stage.ENDED
        self.settler.add(attempt, _NOT_BEGUN)
        self.settler.flush()

    def _time_is_up(self, waiter: _Waiter) -> None:
        if waiter.looked or waiter.overdue:
            waiter.resolve()
        else:
            waiter.overdue = True
            self.loop.call_later(_FIRST_LOOK_S, self._time_is_up, waiter)

    def _look_ended(self) -> None:
        self.loop.call_soon(self._looked, self.fetcher.looks)  # after the jobs are handed out

    def _looked(self, look: int) -> None:
        """Answer the fetches that have had their look and whose time is up."""
        for waiter in self._waiting:
            if waiter.since < look:
                waiter.looked = True
                if waiter.overdue:
                    waiter.resolve()

    def _end_fetches(self) -> None:
        for waiter in self._waiting:
            waiter.resolve()
        self.fetcher.wake()

    async def _claim(self) -> None:
        await self.settings.looked.wait()  # of shutdown the fetcher is told by itself
        await self.fetcher.run()

    def _count(self) -> None:
        """Open fetches are running slots, and fetches that wait are free ones."""
        slots = self.slots
        slots.running = len(slots.held) - len(slots.waiting)
        slots.resize(slots.running + sum(not each.answer.done() for each in self._waiting))

    # --------------------------------------------------------------------------------- holding

    def open(self, job_id: str | None = None) -> list[Attempt]:
        """Return unsettled fetches, of one job or of all; a job that was lost may have two."""
        held = [each for each in self.slots.held if each.stage is Stage.RUNNING]
        return [each for each in held if job_id is None or each.job.id == job_id]

    async def settle(
        self,
        attempt: Attempt,
        outcome: Outcome,
        *,
        retry_us: int | None = None,
        latency_s: float | None = None,
    ) -> bool:
        """Settle a fetched job; return whether this fetch still held it.

        Tried for as long as a lease lasts. If it fails, the job stays open.
        """
        # One after the other: the answer is of the attempt, not of what was told of it.
        while (earlier := attempt.settling) is not None and not earlier.answer.done():
            await asyncio.wait({earlier.answer})
        if attempt.context is not None:
            outcome = within_budget(attempt, attempt.context, outcome)
        measured_s = self.monotonic() - attempt.started
        attempt.duration = measured_s if latency_s is None else latency_s
        before, attempt.stage = attempt.stage, Stage.ENDED
        until = self.monotonic() + self.options.lease_us / SECOND_US
        answer: asyncio.Future[Verdict] = self.loop.create_future()
        counted = attempt.settling is not None and attempt.settling.counted
        attempt.settling = SettlementWaiter(answer, until, counted)
        try:
            self.settler.add(attempt, outcome, retry_us=retry_us)
            self.settler.flush()
            # Shielded: what is being written when the caller goes is answered all the same.
            return await asyncio.shield(answer) is not Verdict.STALE
        except BaseException:
            self.settler.withdraw(attempt)
            attempt.stage = before
            raise

    def deadline_passed(self, attempt: Attempt) -> bool:
        """Whether the job's deadline has passed, by the store's clock as estimated here."""
        deadline_us = attempt.job.deadline_us
        return deadline_us is not None and self._store_now_us(attempt) >= deadline_us

    def _allowed_s(self, attempt: Attempt) -> float:
        """Return how long an attempt may take: its timeout, or less if the deadline is sooner."""
        own_us, deadline_us = attempt.job.timeout_us, attempt.job.deadline_us
        handler = attempt.handler
        timeout_s = (
            handler.timeout_s if own_us is None else min(own_us / SECOND_US, handler.timeout_max_s)
        )
        if deadline_us is None:
            return timeout_s
        return min(timeout_s, max(0.0, (deadline_us - self._store_now_us(attempt)) / SECOND_US))

    def _store_now_us(self, attempt: Attempt) -> int:
        return int(self.monotonic() * SECOND_US) + attempt.offset_us_max

    # --------------------------------------------------------------------- what the parts report

    def after_turn(self) -> None:
        self._count()
        if self.slots.waiting and self.slots.running >= self.slots.concurrency:
            self.slots.give_back()
        self.settler.flush()
        self.fetcher.consider()

    def _accepted(self, _attempts: Sequence[Attempt]) -> None:
        self._count()
        self.fetcher.nudge()  # a suspect waits until nothing else is held

    def on_renewed(self) -> None:
        # Rescuers have had the time since the limit passed, and have the time to the next renewal,
        # which is the first that does not tell of these: then the store gives them back itself.
        now = self.monotonic()
        for attempt in [each for each in self.open() if each.expires <= now]:
            attempt.stage = Stage.ENDED
            self.slots.held.discard(attempt)
        self._count()
        super().on_renewed()

    def on_cancelled(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            for attempt in self.open(job_id):
                self.announcer.cancelling(attempt)

    def on_loop_blocked(self, seconds: float) -> None:
        tasks = tuple(sorted({each.job.task for each in list(self.slots.held)}))
        self.env.bus.emit(LoopBlocked(worker=self.worker, seconds=seconds, tasks=tasks))


class _Waiter:
    """One waiting fetch."""

    __slots__ = ("answer", "given", "looked", "overdue", "since")

    def __init__(self, answer: asyncio.Future[Attempt | None], since: int) -> None:
        self.answer = answer
        self.since = since  #: how many looks at the store had begun when it came
        self.given: Attempt | None = None
        self.looked = False  #: the store was asked since it came
        self.overdue = False  #: its time is up, and it waits for that look only

    def resolve(self) -> None:
        """Answer that there is no job."""
        if not self.answer.done():
            self.answer.set_result(None)
