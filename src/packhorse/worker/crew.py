# SPDX-License-Identifier: MIT
"""The parts of one running worker, put together: who tells whom is written here."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence

from packhorse.clock import SECOND_US
from packhorse.config import WorkerOptions
from packhorse.events import LeaseLost, LeaseRegained, LoopBlocked, WorkerStarted
from packhorse.outcome import Outcome
from packhorse.stores.requests import Renewal
from packhorse.supervisor.link import Link
from packhorse.worker.announcer import Announcer
from packhorse.worker.attempt import Attempt, Ending
from packhorse.worker.board import Board, BoardParts
from packhorse.worker.endings import Endings
from packhorse.worker.executor import Executor
from packhorse.worker.fetcher import Fetcher, FetcherParts
from packhorse.worker.heartbeat import Heartbeat, HeartbeatCalls
from packhorse.worker.links import ContextMaker
from packhorse.worker.middleware import MiddlewareChain
from packhorse.worker.parts import WorkerParts
from packhorse.worker.plans import PlanBook
from packhorse.worker.process_crew import origin_of, process_runner, process_tasks
from packhorse.worker.process_fetcher import ProcessFetcher
from packhorse.worker.process_pool import PoolCalls
from packhorse.worker.process_runner import ProcessRunner
from packhorse.worker.progress import ProgressBoard
from packhorse.worker.reporting import stack_of_thread
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

__all__ = ["Crew"]


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
        self._thread = threading.get_ident()
        self.board: Board | None = None  #: for the supervisor, if there is one
        loop = self._loop = asyncio.get_running_loop()
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
        self._apart = process_tasks(parts.registry)
        self.processes: ProcessRunner | None = None
        self._connect_runners()
        if parts.link is not None:
            self.board = self._make_board(parts.link)
        self.fetcher = self._make_fetcher(self.plans)
        self.process_fetcher = self._make_process_fetcher()
        self.settler.connect(self._accepted, self._limited)
        declared = declared_settings(parts.queues, parts.registry)
        self.settings = SettingsWatch(
            parts.store, parts.clock, self.health, declared=declared, changed=self._use
        )
        self._use(declared)
        self.shutdown.watch(self._stop_starting)
        self._started = False

    @property
    def abandoned(self) -> int:
        """Handlers that still run though they were given up, and ends that are not stored."""
        return self.threads.stuck + self.endings.deaf + self.settler.backlog

    def set_quiet(self, *, on: bool) -> None:
        """Claim nothing more, or go on; what runs is not touched."""
        self.shutdown.quiet = on
        if on:
            self.slots.give_back()
            self.settler.flush()
        self.wake()

    def wake(self, topics: Collection[str] = ()) -> None:
        """There may be work."""
        self.fetcher.wake(topics)
        if self.process_fetcher is not None:
            self.process_fetcher.wake()

    def _make_board(self, link: Link) -> Board:
        parts = BoardParts(
            worker=self.worker,
            slots=self.slots,
            settler=self.settler,
            threads=self.threads,
            endings=self.endings,
            heartbeat=self.heartbeat,
            shutdown=self.shutdown,
            health=self.health,
        )
        return Board(link, self.parts, self.options, parts)

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
            beat=self._beat,
        )
        return Heartbeat(
            parts.store,
            parts.clock,
            parts.chance,
            renewal=renewal,
            slots=self.slots,
            calls=calls,
            page=None if parts.link is None else parts.link.page,
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
            apart=self._apart,
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
        if self._apart:
            origin = origin_of(self.parts.app, self.parts.origin)
            self.processes = process_runner(
                self.worker,
                origin,
                self.options,
                self.progress,
                begin=begin,
                finish=finish,
                calls=PoolCalls(self._process_freed, self._leave_with),
            )
        chain = MiddlewareChain(self.parts.middlewares, self.announcer.middleware_failed)
        run: Callable[[Attempt], None]
        if chain:
            wrapped = WrappedRunner(
                executor, chain, self.threads, begin, finish, in_process=self._run_in_process
            )
            run = wrapped.start
        else:
            run = _by_kind(LoopRunner(executor, begin, finish), self.threads, self.processes)
        grace_s = self.options.stop_grace_us / SECOND_US
        self.endings = Endings(
            self.slots,
            self.announcer,
            extend=lambda attempt: self._extend(attempt, grace_s),
            abandon_thread=self._abandon_thread,
            stop_process=self._stop_process,
        )
        self.slots.connect(
            run=run,
            settle=self.settler.add if self.parts.link is None else self._settle,
            after_turn=self._after_turn,
            may_start=lambda: self.heartbeat.lease.trusted,
        )

    def _make_process_fetcher(self) -> ProcessFetcher | None:
        if self.processes is None:
            return None
        return ProcessFetcher(
            self.fetcher,
            self.slots,
            self.shutdown,
            tasks=tuple(sorted(self._apart)),
            processes=self.processes.pool.limits.slots,
            poll_s=self.options.poll_interval_us / SECOND_US,
        )

    def _run_in_process(self, attempt: Attempt) -> Awaitable[Outcome]:
        if self.processes is None:
            raise RuntimeError("there are no processes, since no task wants one")
        return self.processes.run(attempt)

    def _process_freed(self) -> None:
        if self.process_fetcher is not None:
            self.process_fetcher.wake()

    def _stop_process(self, attempt: Attempt) -> None:
        if self.processes is not None:
            self.processes.stop(attempt)

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
        if self.board is not None:
            self.board.begin(attempt)
        if self.announcer.wants_starts:
            self.announcer.started(attempt)

    def _too_late(self, attempt: Attempt, now: float) -> bool:
        """Whether the job may be somebody else's by now, or its limit may count on its start.

        Asked at the last moment: this process may have been stopped just before.
        """
        lease, start_by = self._lease, attempt.start_by
        if now > lease.trusted_until:
            lease.look()  # the supervisor may have renewed it
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
        if self.board is not None:
            self.board.accepted(attempts)
        self.slots.held.difference_update(attempts)
        self.fetcher.nudge_if_finished()

    def _abandon_thread(self, attempt: Attempt) -> None:
        self.threads.abandon(attempt)
        most = self.options.abandoned_threads_max or self.options.concurrency
        if self.threads.stuck >= most:
            self._leave_with(
                f"{self.threads.stuck} threads do not stop, the last one of job {attempt.job.id} "
                f"(task {attempt.job.task}); restart the process, and let the handler look at "
                "ctx.cancel_requested or use timeouts of its own"
            )

    def _leave_with(self, problem: str) -> None:
        """Leave unasked: there is no going on like this."""
        if self.problem is None:
            self.problem = problem
            self.shutdown.advance(Phase.DRAINING, problem)

    def _expired(self, attempt: Attempt) -> None:
        self.endings.expired(attempt)
        if self.board is not None:
            self.board.expired(attempt)

    def _extend(self, attempt: Attempt, grace_s: float) -> None:
        self.watchdog.extend(attempt, grace_s)
        if self.board is not None:
            self.board.extend(attempt)

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        if self.board is not None:
            self.board.settle(attempt, outcome)

    def _beat(self) -> None:
        if self.board is not None:
            self.board.beat()

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
        if self.processes is not None:
            self.processes.pool.tell_lease(gone=True)
        self.parts.bus.emit(LeaseLost(worker_id=self.worker, running=self.slots.running))

    def _loop_blocked(self, seconds: float) -> None:
        """Called from the heartbeat's thread: the loop cannot be asked, it is blocked."""
        running = [each for each in list(self.slots.held) if each.task is not None]
        task = asyncio.current_task(self._loop)
        culprit = next((each for each in running if each.task is task), None)
        names = [culprit.plan.name] if culprit else [_.plan.name for _ in running]
        stack = stack_of_thread(self._thread)
        if self.board is not None:
            self.board.loop_blocked(culprit, stack)
        self.parts.bus.emit(
            LoopBlocked(
                worker_id=self.worker,
                seconds=seconds,
                tasks=tuple(sorted(set(names))),
                stack=stack,
            )
        )


def _by_kind(
    loop: LoopRunner, threads: ThreadRunner, processes: ProcessRunner | None
) -> Callable[[Attempt], None]:
    def run(attempt: Attempt) -> None:
        if attempt.plan.threaded:
            threads.start(attempt)
        elif attempt.plan.process and processes is not None:
            processes.start(attempt)
        else:
            loop.start(attempt)

    return run
