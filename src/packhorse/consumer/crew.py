# SPDX-License-Identifier: MIT
"""The parts of one open consumer: its lease, its claims, its settlements, and the upkeep beside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.config import WorkerOptions
from packhorse.consumer.claimer import Claimer, ClaimerParts
from packhorse.consumer.custody import Custody
from packhorse.consumer.fetched import FetchedJob, fetched_job
from packhorse.consumer.plans import ConsumerPlans
from packhorse.errors import StoreUnavailable
from packhorse.events import EventBus, LeaseLost, LeaseRegained, LoopBlocked
from packhorse.job import DeadReason, JobStatus
from packhorse.lifecycle import settle
from packhorse.outcome import GivenUp, Outcome, Released
from packhorse.services.expirer import Expirer
from packhorse.services.parker import Parker
from packhorse.services.promoter import Promoter
from packhorse.services.pruner import Pruner
from packhorse.services.rescuer import Rescuer
from packhorse.services.service import Driver, Service
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.protocol import Listener, Store
from packhorse.stores.requests import ClaimRequest, Renewal
from packhorse.worker.announcer import Announcer
from packhorse.worker.attempt import Attempt, Stage
from packhorse.worker.failures import described
from packhorse.worker.heartbeat import Heartbeat, HeartbeatCalls
from packhorse.worker.plans import limits_of
from packhorse.worker.shutdown import Phase, Shutdown
from packhorse.worker.trouble import Backoff, StoreHealth

__all__ = ["ConsumerParts", "Crew"]

#: How long a claim under way may still take when the consumer is closed.
_CLAIM_LANDS_S: Final = 5.0
#: How long giving back what is open may take; its lease runs out by itself otherwise.
_PARTING_WRITES_S: Final = 5.0
#: How long a listener waits before it is asked again; only a bound, nothing happens then.
_LISTEN_S: Final = 60.0
_RETRIED: Final = frozenset({JobStatus.FAILED, JobStatus.TIMEOUT})


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """What an app gives its consumer."""

    store: Store
    bus: EventBus
    clock: Clock
    chance: Chance
    plans: ConsumerPlans
    tasks: tuple[str, ...]
    version: str


class Crew:
    """One consumer's parts, for one life on one event loop."""

    def __init__(self, worker: str, parts: ConsumerParts, options: WorkerOptions) -> None:
        self.worker = worker
        self.loop = asyncio.get_running_loop()
        self.custody = Custody(parts.clock, parts.plans.longest_timeout_us)
        self.announcer = Announcer(parts.bus, parts.chance, worker)
        self._parts = parts
        self._options = options
        self._monotonic = parts.clock.monotonic
        self._shutdown = Shutdown()
        self._health = StoreHealth(parts.bus, parts.clock, worker)
        self._heartbeat = self._make_heartbeat()
        self.claimer = self._make_claimer()
        self._claiming: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to live: lease, wake-ups, claims, upkeep."""
        self._heartbeat.start()
        driver = Driver(
            sleep=self._shutdown.sleep,
            stopped=lambda: self._shutdown.begun,
            failed=self._health.failed,
            worked=self._health.worked,
            chance=self._parts.chance,
        )
        services = [driver.run(service) for service in self._services()]
        self._claiming = asyncio.create_task(self.claimer.run())
        self._background = [asyncio.create_task(each) for each in (self._listen(), *services)]

    async def hand_over(self, attempt: Attempt) -> FetchedJob | None:
        """A claimed job as its runtime sees it; one that cannot be read is dead, `undecodable`."""
        if attempt.stage is not Stage.RUNNING:  # closed between the claim and now
            return None
        attempt.timeout_s = self.custody.allowed_s(attempt)
        try:
            job = fetched_job(attempt)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            unreadable = described(error, code="UNDECODABLE")
            await self.settle(attempt, GivenUp(DeadReason.UNDECODABLE, unreadable))
            return None
        if self.announcer.wants_starts:
            self.announcer.started(attempt)
        return job

    async def settle(
        self,
        attempt: Attempt,
        outcome: Outcome,
        *,
        delay_us: int | None = None,
        latency_s: float | None = None,
    ) -> bool:
        """Write what became of a fetched job; says whether it was still this fetch's to say."""
        settlement = self._decided(attempt, outcome, delay_us)
        measured_s = self._monotonic() - attempt.started
        attempt.duration = measured_s if latency_s is None else latency_s
        before, attempt.stage = attempt.stage, Stage.ENDED
        try:
            verdict = await self._written(settlement)
        except BaseException:
            attempt.stage = before  # still open: the verb may be called again
            raise
        self.custody.let_go(attempt)
        told = attempt.outcome is not None and verdict is not Verdict.STALE
        if self.announcer.wants_ends and not told:
            self.announcer.settled(attempt, settlement, verdict)
        attempt.outcome = outcome
        self.claimer.nudge()  # a suspect waits until nothing else is held
        return verdict is not Verdict.STALE

    async def close(self) -> None:
        """Claim no more, give back what is open, and leave."""
        self._shutdown.advance(Phase.DRAINING, "closed")
        if self._claiming is not None:  # let a claim land, or its jobs would wait for nothing
            await asyncio.wait({self._claiming}, timeout=_CLAIM_LANDS_S)
            await _end([self._claiming])
        with contextlib.suppress(Exception):  # what is not given back here is, by leaving
            async with asyncio.timeout(_PARTING_WRITES_S):
                for attempt in self.custody.open:
                    await self.settle(attempt, Released(started=True))
        await _end(self._background)
        await asyncio.to_thread(self._heartbeat.stop)
        store = self._parts.store
        with contextlib.suppress(Exception):  # the lease runs out by itself
            async with asyncio.timeout(_PARTING_WRITES_S):
                await store.arun(store.leases.leave(self.worker))

    def _decided(self, attempt: Attempt, outcome: Outcome, delay_us: int | None) -> Settlement:
        limits = limits_of(attempt.job, attempt.plan)
        settlement = settle(attempt.job, outcome, limits, roll=self._parts.chance.roll())
        if delay_us is not None and settlement.status in _RETRIED:
            return msgspec.structs.replace(settlement, delay_us=delay_us)
        return settlement

    async def _written(self, settlement: Settlement) -> Verdict:
        """Offer a settlement until the store accepts it, for as long as a lease lasts."""
        store, backoff = self._parts.store, Backoff(self._parts.chance)
        until = self._monotonic() + self._options.lease_us / SECOND_US
        while True:
            try:
                (verdict,) = await store.arun(store.jobs.settle([settlement]))
            except StoreUnavailable as error:
                self._health.failed("settle", error)
                if self._monotonic() >= until or self._shutdown.begun:
                    raise
                await self._shutdown.sleep(backoff.next_s())
            else:
                self._health.worked("settle")
                return verdict

    def _services(self) -> list[Service]:
        """The loops every worker runs, so that consumers alone can keep a store in order."""
        parts = self._parts
        return [
            Rescuer(
                *(parts.store, parts.clock, parts.chance, parts.bus, self.worker),
                renew=self._heartbeat.renew_now,
            ),
            Promoter(parts.store, parts.chance),
            Expirer(parts.store, parts.chance),
            Parker(parts.store, parts.chance, parts.bus, self.worker),
            Pruner(parts.store, parts.chance),
        ]

    def _make_heartbeat(self) -> Heartbeat:
        parts = self._parts
        renewal = Renewal(
            worker=self.worker,
            lease_us=self._options.lease_us,
            queues=self._options.queues,
            tasks=parts.tasks,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=parts.version,
        )
        calls = HeartbeatCalls(
            renewed=self._renewed,
            cancelled=self._cancelled,
            lease_lost=self._lease_lost,
            lease_regained=lambda: parts.bus.emit(LeaseRegained(worker_id=self.worker)),
            failed=self._health.failed,
            worked=self._health.worked,
            blocked=self._loop_blocked,
        )
        return Heartbeat(
            parts.store,
            parts.clock,
            parts.chance,
            renewal=renewal,
            slots=self.custody.slots,
            calls=calls,
        )

    def _make_claimer(self) -> Claimer:
        parts, options = self._parts, self._options
        request = ClaimRequest(
            worker=self.worker,
            queues=options.queues,
            tasks=parts.tasks,
            limit=0,
            default_timeout_us=parts.plans.longest_timeout_us,
        )
        claimer_parts = ClaimerParts(
            store=parts.store,
            clock=parts.clock,
            chance=parts.chance,
            custody=self.custody,
            heartbeat=self._heartbeat,
            shutdown=self._shutdown,
            health=self._health,
            find_plan=parts.plans.find,
            poll_s=options.poll_interval_us / SECOND_US,
        )
        return Claimer(request, claimer_parts)

    async def _listen(self) -> None:
        """Hear wake-ups until cancelled; what cannot be heard is found by polling."""
        backoff = Backoff(self._parts.chance)
        cancel = f"cancel:{self.worker}"
        topics = frozenset({cancel, *map("queue:{}".format, self._options.queues)})
        while True:
            try:
                with contextlib.closing(self._parts.store.wakeups.listen(topics)) as listener:
                    await self._hear(listener, cancel)
            except Exception as error:  # noqa: BLE001 - polling goes on meanwhile
                self._health.failed("listen", error)
                await self._shutdown.sleep(backoff.next_s())

    async def _hear(self, listener: Listener, cancel: str) -> None:
        while True:
            topics = await listener.wait(_LISTEN_S)
            self._health.worked("listen")
            if cancel in topics or "*" in topics:
                self._heartbeat.look_now()
            if topics - {cancel}:
                self.claimer.wake()

    def _renewed(self) -> None:
        # Rescuers have had the time since the limit passed, and have the time to the next renewal,
        # which is the first that does not tell of these: then the store gives them back itself.
        self.custody.let_go_overdue()
        self.claimer.nudge()

    def _cancelled(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            for attempt in self.custody.of(job_id):
                self.announcer.cancelling(attempt)

    def _lease_lost(self) -> None:
        self._parts.bus.emit(LeaseLost(worker_id=self.worker, running=self.custody.slots.running))

    def _loop_blocked(self, seconds: float) -> None:
        """Called from the heartbeat's thread: the loop cannot be asked, it is blocked."""
        tasks = tuple(sorted({each.job.task for each in list(self.custody.slots.held)}))
        self._parts.bus.emit(LoopBlocked(worker_id=self.worker, seconds=seconds, tasks=tasks))


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
