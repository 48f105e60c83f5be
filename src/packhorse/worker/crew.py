# SPDX-License-Identifier: MIT
"""The parts of one running worker, put together: who tells whom is written here."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packhorse.clock import SECOND_US, Chance, Clock, SystemChance, SystemClock
from packhorse.config import WorkerOptions
from packhorse.events import EventBus, LeaseLost, LeaseRegained, LoopBlocked, WorkerStarted
from packhorse.registry import Registry
from packhorse.services.expirer import Expirer
from packhorse.services.parker import Parker
from packhorse.services.promoter import Promoter
from packhorse.services.pruner import Pruner
from packhorse.services.rescuer import Rescuer
from packhorse.services.service import Driver, Service
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueSettings, Renewal
from packhorse.worker.announcer import Announcer
from packhorse.worker.attempt import Attempt, Ending
from packhorse.worker.endings import Endings
from packhorse.worker.executor import Executor
from packhorse.worker.fetcher import Fetcher, FetcherParts
from packhorse.worker.heartbeat import Heartbeat, HeartbeatCalls
from packhorse.worker.lifespan import Lifespan
from packhorse.worker.links import ContextMaker
from packhorse.worker.middleware import Middleware, MiddlewareChain
from packhorse.worker.plans import PlanBook
from packhorse.worker.progress import ProgressBoard
from packhorse.worker.runners import LoopRunner, ThreadRunner, WrappedRunner
from packhorse.worker.settings import (
    Settings,
    SettingsWatch,
    declared_settings,
    dividing_queues,
    limited_queues,
)
from packhorse.worker.settler import Settler
from packhorse.worker.shutdown import Phase, Shutdown
from packhorse.worker.slots import Slots
from packhorse.worker.starvation import Starvation
from packhorse.worker.trouble import StoreHealth
from packhorse.worker.watchdog import Watchdog

__all__ = ["Crew", "WorkerParts"]


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What an app gives its worker."""

    store: Store
    registry: Registry
    bus: EventBus = field(default_factory=EventBus)
    middlewares: Sequence[Middleware] = ()
    lifespans: Sequence[Lifespan] = ()
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=SystemChance)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)  #: as declared, by name
    app: object | None = None  #: handed to the lifespan hooks
    version: str = ""  #: of the release that runs


class Crew:
    """One worker's parts, for one run on one event loop."""

    def __init__(self, worker: str, parts: WorkerParts, options: WorkerOptions) -> None:
        self.worker = worker
        self.parts = parts
        self.options = options
        self.problem: str | None = None  #: why the worker leaves unasked
        self._monotonic = parts.clock.monotonic
        self.shutdown = Shutdown()
        self.health = StoreHealth(parts.bus, parts.clock, worker)
        self.announcer = Announcer(parts.bus, parts.chance, worker)
        self.quiet = asyncio.Event()  #: set after a turn that left nothing running
        loop = asyncio.get_running_loop()
        self.slots = Slots(loop, parts.clock, options.concurrency)
        self.watchdog = Watchdog(
            loop, parts.clock, self.slots.running_attempts, expired=self._expired
        )
        self.progress = ProgressBoard(parts.store, parts.clock, self.health)
        self.settler = Settler(
            parts.store,
            parts.chance,
            self.shutdown,
            self.health,
            announcer=self.announcer,
            progress=self.progress,
        )
        self.plans = PlanBook(parts.registry, parts.queues, options.default_timeout_us)
        self.starvation = Starvation(parts.store, parts.clock, parts.chance, parts.bus, worker)
        self.heartbeat = self._make_heartbeat(self.plans)
        self._lease = self.heartbeat.lease
        self.contexts = ContextMaker(parts.store, self.heartbeat.lease, self.progress, worker)
        self._connect_runners()
        self.fetcher = self._make_fetcher(self.plans)
        self.settler.connect(self._accepted, self._limited)
        declared = declared_settings(parts.queues, parts.registry)
        self.settings = SettingsWatch(
            parts.store, parts.clock, self.health, declared=declared, changed=self._use
        )
        self._use(declared)
        self.shutdown.watch(self._stop_starting)
        self._started = False

    def services(self) -> list[Service]:
        """The loops every worker runs beside its jobs."""
        store, chance, bus = self.parts.store, self.parts.chance, self.parts.bus
        return [
            Rescuer(store, self.parts.clock, chance, bus, self.worker),
            Promoter(store, chance),
            Expirer(store, chance),
            Parker(store, chance, bus, self.worker),
            Pruner(store, chance),
            self.starvation,
        ]

    def driver(self) -> Driver:
        """What drives them."""
        return Driver(
            sleep=self.shutdown.sleep,
            stopped=lambda: self.shutdown.begun,
            failed=self.health.failed,
            worked=self.health.worked,
            chance=self.parts.chance,
        )

    @property
    def abandoned(self) -> int:
        """Handlers that still run though they were given up, and ends that are not stored."""
        return self.threads.stuck + self.endings.deaf + self.settler.backlog

    def _make_heartbeat(self, plans: PlanBook) -> Heartbeat:
        parts, options = self.parts, self.options
        renewal = Renewal(
            worker=self.worker,
            lease_us=options.lease_us,
            queues=options.queues,
            tasks=plans.tasks,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=parts.version,
            concurrency=options.concurrency,
        )
        calls = HeartbeatCalls(
            renewed=self._renewed,
            cancelled=self._cancelled,
            lease_lost=self._lease_lost,
            lease_regained=lambda: parts.bus.emit(LeaseRegained(worker_id=self.worker)),
            failed=self.health.failed,
            worked=self.health.worked,
            blocked=self._loop_blocked,
        )
        return Heartbeat(
            parts.store,
            parts.clock,
            parts.chance,
            renewal=renewal,
            slots=self.slots,
            calls=calls,
        )

    def _make_fetcher(self, plans: PlanBook) -> Fetcher:
        parts = FetcherParts(
            store=self.parts.store,
            clock=self.parts.clock,
            chance=self.parts.chance,
            options=self.options,
            plans=plans,
            slots=self.slots,
            settler=self.settler,
            heartbeat=self.heartbeat,
            shutdown=self.shutdown,
            health=self.health,
            starvation=self.starvation,
        )
        return Fetcher(self.worker, parts)

    def _connect_runners(self) -> None:
        """Coroutines run on the loop, functions in threads; inside middlewares if there are any."""
        executor, begin, finish = Executor(self.contexts.make), self._begin, self.slots.finish
        self.threads = ThreadRunner(
            executor,
            begin,
            finish,
            too_late=lambda attempt: self._too_late(attempt, self._monotonic()),
            size=self.options.concurrency,
        )
        chain = MiddlewareChain(self.parts.middlewares, self.announcer.middleware_failed)
        run: Callable[[Attempt], None]
        if chain:
            run = WrappedRunner(executor, chain, self.threads, begin, finish).start
        else:
            run = _by_kind(LoopRunner(executor, begin, finish), self.threads)
        grace_s = self.options.stop_grace_us / SECOND_US
        self.endings = Endings(
            self.slots,
            self.announcer,
            extend=lambda attempt: self.watchdog.extend(attempt, grace_s),
            abandon_thread=self._abandon_thread,
        )
        self.slots.connect(
            run=run,
            settle=self.settler.add,
            after_turn=self._after_turn,
            may_start=lambda: self.heartbeat.lease.trusted,
        )

    def _use(self, settings: Settings) -> None:
        """What queues and tasks are set to has changed."""
        registry = self.parts.registry
        self.plans.use(settings)
        self.fetcher.set_limited(limited_queues(settings, registry))
        self.starvation.leave_out(dividing_queues(settings, registry))

    def _limited(self, attempt: Attempt) -> None:
        """A handler met somebody else's limit: those of its kind that have not begun go back."""
        self.fetcher.seen_limited([attempt])
        met = attempt.job
        self.slots.withdraw(lambda job: (job.task, job.rate_key) == (met.task, met.rate_key))

    def _begin(self, attempt: Attempt) -> None:
        now = self._monotonic()
        if self._too_late(attempt, now):
            attempt.ending = Ending.TOO_LATE
            return
        self.watchdog.begin(attempt, now)
        if self.announcer.wants_starts:
            self.announcer.started(attempt)

    def _too_late(self, attempt: Attempt, now: float) -> bool:
        """Whether the job may be somebody else's by now, or its limit may count on its start.

        Asked at the last moment: this process may have been stopped just before.
        """
        lease, start_by = self._lease, attempt.start_by
        if attempt.epoch != lease.epoch or now > lease.trusted_until:
            return True
        return start_by is not None and now > start_by

    def _after_turn(self) -> None:
        idle = self.slots.running == 0
        self.settler.consider(idle=idle)
        self.fetcher.consider()
        if idle:
            self.quiet.set()

    def _accepted(self, attempts: Sequence[Attempt]) -> None:
        self.slots.held.difference_update(attempts)
        self.fetcher.nudge_if_finished()

    def _abandon_thread(self, attempt: Attempt) -> None:
        self.threads.abandon(attempt)
        most = self.options.abandoned_threads_max or self.options.concurrency
        if self.threads.stuck >= most and self.problem is None:
            self.problem = (
                f"{self.threads.stuck} threads do not stop, the last one of job {attempt.job.id} "
                f"(task {attempt.job.task}); restart the process, and let the handler look at "
                "ctx.cancel_requested or use timeouts of its own"
            )
            self.shutdown.advance(Phase.DRAINING, self.problem)

    def _expired(self, attempt: Attempt) -> None:
        self.endings.expired(attempt)

    def _cancelled(self, job_ids: Sequence[str]) -> None:
        self.endings.cancel(job_ids)

    def _stop_starting(self) -> None:
        """Shutdown has begun, or goes on: what has not begun goes back at once."""
        self.slots.open = False
        self.slots.give_back()
        self.settler.flush()
        self.fetcher.wake()

    def _renewed(self) -> None:
        if self.heartbeat.lease.trusted and not self._started:
            self._started = True
            self.parts.bus.emit(
                WorkerStarted(
                    worker_id=self.worker,
                    queues=self.options.queues,
                    concurrency=self.options.concurrency,
                    store=self.parts.store.label,
                )
            )
        self.slots.turn_soon()  # what waited for the lease may start
        self.fetcher.nudge()

    def _lease_lost(self) -> None:
        self.slots.give_back()
        self.parts.bus.emit(LeaseLost(worker_id=self.worker, running=self.slots.running))

    def _loop_blocked(self, seconds: float) -> None:
        """Called from the heartbeat's thread: the loop cannot be asked, it is blocked."""
        running = (each for each in list(self.slots.held) if each.task is not None)
        tasks = tuple(sorted({each.plan.name for each in running if not each.plan.threaded}))
        self.parts.bus.emit(LoopBlocked(worker_id=self.worker, seconds=seconds, tasks=tasks))


def _by_kind(loop: LoopRunner, threads: ThreadRunner) -> Callable[[Attempt], None]:
    def run(attempt: Attempt) -> None:
        if attempt.plan.threaded:
            threads.start(attempt)
        else:
            loop.start(attempt)

    return run
