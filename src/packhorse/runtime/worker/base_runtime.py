# SPDX-License-Identifier: MIT
"""The parts that a worker and a consumer share: lease, claims, settlements, wake-ups, services."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from packhorse.core.config import WorkerOptions
from packhorse.events import LeaseLost, LeaseRegained
from packhorse.runtime.services.artifact_sweeper import ArtifactSweeper
from packhorse.runtime.services.batch_folding import BatchFolding
from packhorse.runtime.services.groups import JOURNAL_TOPIC, Folding, Groups
from packhorse.runtime.services.history_keeper import HistoryKeeper
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.runtime.services.service import Driver, Service, ServiceContext
from packhorse.runtime.services.upkeep import (
    Admitter,
    DeathReporter,
    Expirer,
    Parker,
    Promoter,
    Pruner,
)
from packhorse.runtime.services.workflow_folding import WorkflowFolding, WorkflowKeeper
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.fetcher import Fetcher
from packhorse.runtime.worker.handlers import HandlerBook
from packhorse.runtime.worker.heartbeat import Heartbeat
from packhorse.runtime.worker.progress import ProgressWriter
from packhorse.runtime.worker.settings import Settings, SettingsWatch, declared_settings
from packhorse.runtime.worker.settler import Settler
from packhorse.runtime.worker.shutdown import Shutdown
from packhorse.runtime.worker.slots import Slots
from packhorse.runtime.worker.store_health import Backoff, StoreHealth
from packhorse.runtime.worker.tallies import WorkerCounters
from packhorse.runtime.worker.telemetry import Announcer
from packhorse.stores.intake import INTAKE_TOPIC
from packhorse.stores.protocol import Listener
from packhorse.stores.requests import Renewal

#: How long ending the lease may take; otherwise it runs out by itself.
_LEAVE_S: Final = 2.0
#: After so long a loop that has not ended is cancelled once more.
_CANCEL_AGAIN_S: Final = 0.5
#: How long a listener waits before it is asked again; only a bound, nothing happens then.
_LISTEN_S: Final = 60.0
#: Between two wake-ups while jobs are running anyway.
_WAKE_INTERVAL_S: Final = 0.01


def known_foldings(env: Environment, worker: str) -> tuple[Folding, ...]:
    """Return one folding for each kind of group."""
    return (BatchFolding(env.watchers, env.bus, worker), WorkflowFolding(env.bus, worker))


class Runtime:
    """The common parts, for one run on one event loop; subclasses run the claimed jobs."""

    def __init__(
        self,
        worker: str,
        env: Environment,
        options: WorkerOptions,
        handlers: HandlerBook,
        *,
        tasks: tuple[str, ...],
        concurrency: int,
        process_slots: int = 0,
        look_ahead: bool,
    ) -> None:
        self.worker = worker
        self.env = env
        self.options = options
        self.handlers = handlers
        self.capacity = concurrency + process_slots  #: jobs that run at once
        self.monotonic = env.clock.monotonic
        self.loop = asyncio.get_running_loop()
        self.shutdown = Shutdown()
        self.idle = asyncio.Event()  #: set after a turn that left nothing running
        self.health = StoreHealth(env.bus, env.clock, worker)
        self.announcer = Announcer(env.bus, env.chance, worker)
        self.counters = WorkerCounters()
        self.slots = Slots(self.loop, env.clock, concurrency, max_jobs=options.max_jobs)
        self.progress = ProgressWriter(env.store, env.clock, self.health, self.slots.held)
        self.settler = Settler(self)
        self.services = ServiceContext(env.store, env.clock, env.chance, env.bus, worker)
        self.history = HistoryKeeper(self.services, totals=self.settler.tallies.totals)
        self.heartbeat = Heartbeat(self, self._renewal(tasks))
        self.lease = self.heartbeat.lease
        self.fetcher = Fetcher(self, tasks, look_ahead=look_ahead)
        self.admitter = self._admitter()
        self.groups = Groups(
            *(self.services, known_foldings(env, worker)),
            failed=self.health.failed,
            worked=self.health.worked,
        )
        self.workflow_keeper = WorkflowKeeper(self.services)
        #: Topics of this kind of runtime alone, and what to do when one is heard.
        self.also_heard: dict[str, Callable[[], None]] = {}
        declared = declared_settings(env.queues, env.registry)
        self.settings = SettingsWatch(
            env.store, env.clock, self.health, declared=declared, changed=self.use_settings
        )

    def _admitter(self) -> Admitter | None:
        intake = self.env.store.intake
        if intake is None or intake.admits_by_itself:
            return None
        return Admitter(self.services, found=self.fetcher.wake)

    def _renewal(self, tasks: tuple[str, ...]) -> Renewal:
        return Renewal(
            worker=self.worker,
            lease_us=self.options.lease_us,
            queues=self.options.queues,
            tasks=tasks,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self.env.version,
            concurrency=self.capacity,
        )

    def background(self, *more: Service) -> list[asyncio.Task[None]]:
        """Start the loops beside claims: settlements, settings, wake-ups, upkeep."""
        env, shutdown, context = self.env, self.shutdown, self.services
        driver = Driver(
            sleep=shutdown.sleep,
            stopped=lambda: shutdown.begun,
            failed=self.health.failed,
            worked=self.health.worked,
            chance=env.chance,
        )
        deaths = DeathReporter(context, count=self.counters.count_dead)
        rescuer = Rescuer(
            context,
            deaths=deaths,
            renew=self.heartbeat.renew_now,
            count=self.settler.tallies.count_lost,
        )
        services: tuple[Service, ...] = (
            rescuer,
            Promoter(context),
            *([] if self.admitter is None else [self.admitter]),
            Expirer(context, DeathReporter(context, count=self.counters.count_expired)),
            Parker(context, deaths),
            Pruner(context),
            ArtifactSweeper(context, env.places),
            self.history,
            *self._drainers(),
            self.workflow_keeper,
            *more,
        )
        # Its rest ends by a wake-up too; when the worker stops, it is cancelled as they all are.
        folding = dataclasses.replace(driver, sleep=self.groups.rest)
        loops: list[Coroutine[Any, Any, None]] = [
            *(self.settler.run(), self.settings.run(), self._listen(), folding.run(self.groups)),
            *(driver.run(service) for service in services),
        ]
        return [asyncio.create_task(each) for each in loops]

    async def fold(self) -> bool:
        """Fold groups and follow workflows before a burst ends; return whether there were any."""
        folded = await self.groups.fold_all()
        return await self.workflow_keeper.follow() or folded

    def _drainers(self) -> list[Service]:
        env = self.env
        if not env.outboxes:
            return []
        from packhorse.runtime.services.drainer import Drainer  # noqa: PLC0415 - few have one

        return [Drainer(self.services, outbox, found=self.fetcher.wake) for outbox in env.outboxes]

    async def leave(self) -> bool:
        """End the lease, so that the store need not wait for its expiry; return whether it did."""
        await self.history.close()
        await asyncio.to_thread(self.heartbeat.stop)
        store = self.env.store
        try:
            await asyncio.wait_for(store.arun(store.leases.leave(self.worker)), _LEAVE_S)
        except Exception:  # noqa: BLE001 - the lease runs out by itself
            return False
        return True

    def too_late(self, attempt: Attempt, now: float) -> bool:
        """Whether another worker may hold the job by now, or its rate limit's grant is too old.

        Asked at the last moment, since this process may have been suspended just before.
        """
        lease, start_by = self.lease, attempt.start_by
        if now > lease.trusted_until:
            lease.look()  # the supervisor may have renewed it
        if attempt.epoch != lease.epoch or now > lease.trusted_until:
            return True
        return start_by is not None and self.fetcher.allowance.is_late(start_by, now)

    def use_settings(self, settings: Settings) -> None:
        """Apply changed settings of queues and tasks."""
        self.handlers.use(settings)
        self.fetcher.urgency.set_background(
            name for name, queue in settings.queues.items() if queue.background_only
        )

    # --------------------------------------------------------------------- what the parts report

    def after_turn(self) -> None:
        """Settle and claim what a turn of the slots made room for."""
        idle = self.slots.running == 0
        self.settler.flush(at_once=idle)  # else what still runs may join the batch
        self.fetcher.consider()
        if idle:
            self.idle.set()

    def limited(self, attempt: Attempt) -> None:
        """Release waiting jobs that share the rate limit a handler met elsewhere."""
        self.fetcher.seen_limited([attempt])
        met = attempt.job
        self.slots.withdraw(lambda job: (job.task, job.rate_key) == (met.task, met.rate_key))

    def on_renewed(self) -> None:
        """Start and claim what waited for the lease."""
        self.slots.turn_soon()
        self.fetcher.nudge()

    def on_cancelled(self, job_ids: Sequence[str]) -> None:
        """Stop these jobs."""
        raise NotImplementedError

    def on_lease_lost(self) -> None:
        """Release what has not begun."""
        self.slots.give_back()
        self.env.bus.emit(LeaseLost(worker=self.worker, running=self.slots.occupied))

    def on_lease_regained(self) -> None:
        """Report that this worker has a lease again."""
        self.env.bus.emit(LeaseRegained(worker=self.worker))

    def on_loop_blocked(self, seconds: float) -> None:
        """Report what blocks the event loop; called from the heartbeat's thread."""
        raise NotImplementedError

    def on_beat(self) -> None:
        """Do what is due every second, in the heartbeat's thread."""

    # --------------------------------------------------------------------------------- wake-ups

    async def _listen(self) -> None:
        """Listen for wake-ups until cancelled; polling finds the work of lost ones."""
        backoff = Backoff(self.env.chance)
        topics = frozenset({f"cancel:{self.worker}", *map("queue:{}".format, self.options.queues)})
        topics |= {JOURNAL_TOPIC}
        topics |= {INTAKE_TOPIC} if self.admitter is not None else set()
        topics |= self.also_heard.keys()
        while True:
            try:
                with contextlib.closing(self.env.store.wakeups.listen(topics)) as listener:
                    await self._hear(listener)
            except Exception as error:  # noqa: BLE001 - polling goes on meanwhile
                self.health.failed("listen", error)
                await self.health.pause(self.shutdown, backoff.next_s())

    async def _hear(self, listener: Listener) -> None:
        cancel = f"cancel:{self.worker}"
        while True:
            heard = await listener.wait(_LISTEN_S)
            if self.health.failing:
                self.health.worked("listen")
            if not heard:
                continue
            if cancel in heard or "*" in heard:
                self.heartbeat.look_now()
            if INTAKE_TOPIC in heard and self.admitter is not None:
                await self.admitter.run_once()
            if JOURNAL_TOPIC in heard or "*" in heard:
                self.groups.wake()
            for topic in heard & self.also_heard.keys():
                self.also_heard[topic]()
            if not heard <= {cancel, INTAKE_TOPIC, JOURNAL_TOPIC, *self.also_heard}:
                self.fetcher.wake(heard)
                self.settings.soon.set()
            if self.slots.running:
                await asyncio.sleep(_WAKE_INTERVAL_S)


async def end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel these, and wait until they have ended.

    Again and again: `asyncio.wait_for` of Python 3.11 forgets a cancel that comes when what it
    waits for is just done.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it as never retrieved
