# SPDX-License-Identifier: MIT
"""The parts of one running worker, put together: runners, timeouts, processes, its supervisor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.config import WorkerOptions
from packhorse.core.job_logs import LOGS_OFF, RunningJob
from packhorse.core.outcome import Outcome
from packhorse.events import JobStarted, LoopBlocked, WorkerQuiet, WorkerResumed, WorkerStarted
from packhorse.logs.setup import capture
from packhorse.runtime.services.upkeep import Starvation
from packhorse.runtime.supervisor.messages import Quiet
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.base_runtime import Runtime
from packhorse.runtime.worker.contexts import ContextFactory
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.executor import Executor
from packhorse.runtime.worker.handlers import HandlerBook
from packhorse.runtime.worker.hooks import Instruments, MiddlewareChain
from packhorse.runtime.worker.processes.runner import (
    ProcessFetcher,
    ProcessRunner,
    process_slots,
    process_tasks,
)
from packhorse.runtime.worker.runners import ThreadRunner, WrappedRunner, leave_copy
from packhorse.runtime.worker.settings import Settings, dividing_queues, limited_queues
from packhorse.runtime.worker.shutdown import Phase
from packhorse.runtime.worker.stacks import HEARD_TOPICS, StackAnswers, stack_of_thread
from packhorse.runtime.worker.stopping import Stopper
from packhorse.runtime.worker.supervised import SupervisorReporter

_RUNNING: Final = Stage.RUNNING  # as in `slots`


class WorkerRuntime(Runtime):
    """One worker's parts, for one run on one event loop."""

    def __init__(self, worker: str, env: Environment, options: WorkerOptions) -> None:
        handlers = HandlerBook(env.registry, env.queues, options.default_timeout_us)
        super().__init__(
            *(worker, env, options, handlers),
            tasks=env.registry.names,
            concurrency=options.concurrency,
            process_slots=process_slots(env.registry, options),
            look_ahead=True,
        )
        self.problem: str | None = None  #: why the worker shuts itself down
        self.thread = threading.get_ident()  #: of the event loop
        self._started = False
        self._pid = os.getpid()
        self.starvation = Starvation(self.services, served=self.fetcher.served)
        self.contexts = ContextFactory(self)
        self.contexts.attachments.after_write = self.settler.flush
        if env.log_level < LOGS_OFF:
            capture()
        executor = Executor(self.contexts.make, env.places)
        self._execute = executor.execute
        self.threads = ThreadRunner(self, executor)
        self.instruments = Instruments(env.instruments, self.announcer.middleware_failed)
        self.processes: ProcessRunner | None = None
        if apart := process_tasks(env.registry):
            self.processes = ProcessRunner(self)
            self.fetcher.own_tasks = tuple(name for name in env.registry.names if name not in apart)
            pool = self.processes.pool
            self.fetcher.beside = ProcessFetcher(self, pool, tuple(sorted(apart)))
        self.stopper = Stopper(self)
        self.supervisor = None if env.link is None else SupervisorReporter(env.link, self)
        if self.supervisor is not None or options.burst:
            self.settler.on_accepted = self._accepted
        self.stacks = StackAnswers(self)
        self.also_heard = dict.fromkeys(HEARD_TOPICS, self.stacks.asked)
        middlewares = MiddlewareChain(env.middlewares, self.announcer.middleware_failed)
        self.slots.connect(
            run=WrappedRunner(self, executor, middlewares).start if middlewares else self._start,
            settle=self._instrumented(executor),
            after_turn=self.after_turn,
            may_start=lambda: self.monotonic() < self.lease.trusted_until or self.lease.trusted,
        )
        self.use_settings(self.settings.settings)
        self.shutdown.watch(self._stop_starting)

    def _instrumented(self, executor: Executor) -> Callable[[Attempt, Outcome], None]:
        """Connect the instruments, if there are any; return the function to settle with."""
        settle = self.settler.add if self.supervisor is None else self.supervisor.settle
        if not self.instruments:
            return settle
        executor.enter = self.instruments.entered
        self.settler.on_answered = self.instruments.settled
        return self.instruments.before(settle)

    @property
    def abandoned(self) -> int:
        """The number of abandoned handlers that still run, and of settlements not stored yet."""
        return self.threads.stuck + self.stopper.abandoned + self.settler.backlog

    def told_quiet(self, on: bool) -> None:  # noqa: FBT001 - what a signal stands for
        """Stop or resume claiming as a signal or an operator says; a replacement does the same."""
        if self.env.link is not None:
            self.env.link.send(Quiet(on))
        self.set_quiet(on=on)

    def set_quiet(self, *, on: bool) -> None:
        """Stop or resume claiming; running jobs are not touched."""
        if on is self.shutdown.quiet:
            return
        self.shutdown.quiet = on
        self.heartbeat.tell_quiet(on=on)
        if on:
            self._give_back()
        self.fetcher.wake()
        running, worker = self.slots.occupied, self.worker
        self.env.bus.emit(
            WorkerQuiet(worker=worker, running=running) if on else WorkerResumed(worker=worker)
        )

    def leave_with(self, problem: str) -> None:
        """Shut down because of a problem that this worker cannot recover from."""
        if self.problem is None:
            self.problem = problem
            self.shutdown.advance(Phase.DRAINING, problem)

    def use_settings(self, settings: Settings) -> None:
        super().use_settings(settings)
        self.fetcher.rotation.set_limited(limited_queues(settings, self.env.registry))
        self.starvation.leave_out(dividing_queues(settings, self.env.registry))

    # ------------------------------------------------------------------------------ one attempt

    def _start(self, attempt: Attempt) -> None:
        """Run a handler without middlewares."""
        if attempt.handler.threaded:
            self.threads.start(attempt)
        elif attempt.handler.process and self.processes is not None:
            self.processes.start(attempt)
        else:
            attempt.task = self.loop.create_task(self._run_on_loop(attempt))

    async def _run_on_loop(self, attempt: Attempt) -> None:
        """Run a coroutine handler, in the attempt's own task."""
        if attempt.ending is None:  # else it was told to stop before it began
            self.begin(attempt)
        outcome = await self._execute(attempt)
        if os.getpid() != self._pid:  # the handler has forked, and this is the copy
            leave_copy(outcome)
        attempt.task = None  # over: the attempt is held until it is settled, its task need not be
        self.slots.finish(attempt, outcome)
        del outcome  # the exception in it may hold this frame: a cycle that would keep it alive

    def begin(self, attempt: Attempt) -> None:
        """Note that a handler begins, and when it must have ended. Runs once per job."""
        now, job, handler = self.monotonic(), attempt.job, attempt.handler
        if self.too_late(attempt, now):
            attempt.ending = Ending.TOO_LATE
            return
        attempt.running = RunningJob(job, self.worker, handler.worker_id, self.env.log_level)
        attempt.stage = _RUNNING
        attempt.begun, attempt.started = True, now
        own_us, timeout_s = job.timeout_us, handler.timeout_s
        if own_us is not None:
            timeout_s = min(own_us / SECOND_US, handler.timeout_max_s)
        if job.deadline_us is not None:
            left_s = (job.deadline_us - attempt.offset_us) / SECOND_US - now
            if left_s < timeout_s:
                timeout_s, attempt.bound = max(0.0, left_s), Ending.DEADLINE
        attempt.timeout_s, attempt.expires = timeout_s, now + timeout_s
        if attempt.expires < self.stopper.alarm:
            self.stopper.wake_at(attempt.expires, now)
        if self.supervisor is not None:
            self.supervisor.begin(attempt)
        if JobStarted in self.env.bus.observers:
            self.announcer.started(attempt)

    # --------------------------------------------------------------------- what the parts report

    def _accepted(self, attempts: Sequence[Attempt]) -> None:
        if self.supervisor is not None:
            self.supervisor.accepted(attempts)
        if self.options.burst and not (self.slots.busy or self.settler.backlog):
            self.fetcher.nudge()  # it may be finished

    def _stop_starting(self) -> None:
        """Give back jobs that have not begun, since shutdown has."""
        self.slots.open = False
        self._give_back()
        self.fetcher.wake()

    def _give_back(self) -> None:
        """Release the jobs that are held ahead."""
        self.slots.give_back()
        if self.processes is not None:
            self.processes.pool.turn_away()
        self.settler.flush()

    def on_renewed(self) -> None:
        if self.lease.trusted and not self._started:
            self._started = True
            self.env.bus.emit(
                WorkerStarted(
                    worker=self.worker,
                    queues=self.options.queues,
                    concurrency=self.options.concurrency,
                    store=self.env.store.label,
                )
            )
        super().on_renewed()

    def on_cancelled(self, job_ids: Sequence[str]) -> None:
        self.stopper.cancel(job_ids)

    def on_lease_lost(self) -> None:
        if self.processes is not None:
            self.processes.pool.tell_lease(gone=True)
        super().on_lease_lost()

    def on_beat(self) -> None:
        if self.supervisor is not None:
            self.supervisor.beat()
        self.stacks.beat()

    def on_loop_blocked(self, seconds: float) -> None:
        running = [each for each in list(self.slots.held) if each.live_tasks]
        task = asyncio.current_task(self.loop)
        culprit = next((each for each in running if task in each.live_tasks), None)
        names = [culprit.handler.name] if culprit else [_.handler.name for _ in running]
        stack = stack_of_thread(self.thread)
        if self.supervisor is not None:
            self.supervisor.loop_blocked(culprit, stack)
        self.env.bus.emit(
            LoopBlocked(
                worker=self.worker,
                seconds=seconds,
                tasks=tuple(sorted(set(names))),
                stack=stack,
            )
        )
