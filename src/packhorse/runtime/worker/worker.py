# SPDX-License-Identifier: MIT
"""The worker: runs until shutdown begins, then stops its parts in order.

heartbeat ─ lease ─┐
wake-ups ────────▶ fetcher ─ claim ▶ slots ─▶ runners ─▶ executor ─ Outcome ▶ settler ─▶ store
                      ▲               ▲ │      stopper
settings ─────────────┘               └─┘ turn  services: rescue, promote, expire, park, prune
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.config import WorkerOptions
from packhorse.core.interpreter import fewer_collections, prompt_switches
from packhorse.core.job import JobStatus
from packhorse.errors import StoreError
from packhorse.events import WorkerStopped, WorkerStopping
from packhorse.runtime.services.alerts import AlertWatch
from packhorse.runtime.services.operations import OperationSteps
from packhorse.runtime.services.service import Service, ServiceContext
from packhorse.runtime.services.subscribers import Subscribers
from packhorse.runtime.services.ticker import Ticker
from packhorse.runtime.worker.attempt import Ending
from packhorse.runtime.worker.base_runtime import end
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.event_loop import on_own_loop
from packhorse.runtime.worker.hooks import entered
from packhorse.runtime.worker.loop_crash import crash
from packhorse.runtime.worker.recycling import refuse_unsupervised
from packhorse.runtime.worker.shutdown import CTRL_C, Phase, what_ctrl_c_does
from packhorse.runtime.worker.tallies import WorkerReport
from packhorse.runtime.worker.worker_runtime import WorkerRuntime
from packhorse.stores.requests import JobFilter

_LOG: Final = logging.getLogger(__name__)
#: How long the last settlements may take to be accepted once everything else has ended.
_LAST_WRITES_S: Final = 5.0
#: How long they may take in the last phase of the shutdown.
_PARTING_WRITES_S: Final = 0.5
#: How long a claim under way may still take when shutdown begins.
_CLAIM_LANDS_S: Final = 5.0
#: Waiting jobs that a burst looks at when it leaves.
_LOOKED_AT: Final = 100
_PASSED_OVER: Final = (
    ", save jobs of tasks that this app does not have; see them with 'packhorse jobs list "
    "--status queued'"
)


class Worker:
    """Claims jobs and runs them, in this process, on the running event loop."""

    def __init__(self, env: Environment, options: WorkerOptions) -> None:
        self.id = new_id()
        self._env = env
        self._options = options
        self._runtime: WorkerRuntime | None = None
        self._cancelled = False
        self._owns_loop = False
        self._asked_early: tuple[str, ...] = ()

    def stop(self, reason: str = "asked to") -> None:
        """Stop as on a signal: once to drain, twice to cancel jobs, three times to leave."""
        if self._runtime is None:
            self._asked_early += (reason,)
        else:
            self._runtime.shutdown.request(reason)

    async def run(self) -> WorkerReport:
        """Work until stopped; a burst worker also leaves when nothing is left to do."""
        if self._env.link is None:
            refuse_unsupervised(self._options)
        self._owns_loop = on_own_loop()
        runtime = self._runtime = WorkerRuntime(self.id, self._env, self._options)
        for reason in self._asked_early:
            runtime.shutdown.request(reason)
        handled = runtime.shutdown.signals(runtime.told_quiet)
        signals = handled if self._options.handle_signals else contextlib.nullcontext()
        with signals, fewer_collections(), prompt_switches():
            async with entered(self._env.lifespans, self._env.app) as state:
                runtime.contexts.state = state
                report = await self._run(runtime)
        if self._cancelled:
            raise asyncio.CancelledError
        return report

    async def _run(self, runtime: WorkerRuntime) -> WorkerReport:
        began = self._env.clock.monotonic()
        if runtime.supervisor is not None:
            runtime.supervisor.greet()
        if runtime.processes is not None:
            runtime.processes.pool.warm()
        runtime.heartbeat.start()
        # A burst runs no services that produce jobs as time passes.
        timed = self._services(runtime.services)
        subscribers = timed[0]
        ticking = () if self._options.burst else timed
        background = runtime.background(runtime.starvation, *ticking)
        try:
            await self._patiently(runtime, _declared(subscribers))
            await self._patiently(runtime, self._work(runtime))
            await self._patiently(runtime, self._take_down(runtime))
        finally:
            await self._patiently(runtime, end(background))
            await self._patiently(runtime, self._leave(runtime))
        runtime.env.bus.emit(
            WorkerStopped(
                worker=self.id,
                processed=runtime.counters.succeeded + runtime.counters.failed,
                abandoned=runtime.abandoned,
            )
        )
        return WorkerReport(
            worker=self.id,
            name=self._options.name,
            uptime_s=self._env.clock.monotonic() - began,
            abandoned=runtime.abandoned,
            problem=runtime.problem,
            **runtime.counters.counts,
        )

    def _services(self, context: ServiceContext) -> tuple[Subscribers, *tuple[Service, ...]]:
        """Make the services that only workers run, not consumers."""
        env = self._env
        release = f"{env.origin or ''} {env.version}"
        return (
            Subscribers(
                context,
                subscribers=env.subscribers,
                queues=self._options.queues,
                release=release,
            ),
            Ticker(context, schedules=env.schedules, release=release, traced=env.traced),
            AlertWatch(context, alerts=env.alerts),
            OperationSteps(context),
        )

    async def _patiently(self, runtime: WorkerRuntime, step: Coroutine[Any, Any, None]) -> None:
        """Run a step to its end; cancelling the worker meanwhile asks it to stop, and to hurry."""
        task = asyncio.create_task(step)
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                if self._owns_loop and (self._options.handle_signals or error.args):
                    # Only a job can have cancelled this task, or stopped the loop.
                    self._owns_loop = False
                    crash(runtime, str(error) or "all its tasks were cancelled")
                else:
                    self._cancelled = runtime.problem is None
                    runtime.shutdown.request("cancelled")
        if runtime.problem is None or not task.cancelled():
            task.result()

    async def _work(self, runtime: WorkerRuntime) -> None:
        """Claim and run jobs until shutdown begins, or there is nothing left."""
        shutdown = runtime.shutdown
        await _first(runtime.settings.looked.wait(), shutdown.reached(Phase.DRAINING))
        beside = runtime.fetcher.beside
        fetching = asyncio.gather(runtime.fetcher.run(), *([beside.run()] if beside else []))
        await _first(asyncio.shield(fetching), shutdown.reached(Phase.DRAINING))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLAIM_LANDS_S):
                # Let a claim under way land, or its jobs would be held for nothing.
                await _first(asyncio.shield(fetching), shutdown.reached(Phase.HURRYING))
        shutdown.advance(Phase.DRAINING, "nothing left to do" + await self._passed_over(runtime))
        await end([fetching])
        runtime.slots.give_back()

    async def _passed_over(self, runtime: WorkerRuntime) -> str:
        """Say so if a burst leaves jobs behind because it does not know their tasks."""
        options, env = self._options, runtime.env
        if not options.burst or runtime.shutdown.begun:
            return ""
        waiting = JobFilter(statuses=(JobStatus.QUEUED,))
        with contextlib.suppress(Exception):  # this is no more than a hint
            async with asyncio.timeout(_CLAIM_LANDS_S):
                search = env.store.inspection.search(waiting, limit=_LOOKED_AT, most=_LOOKED_AT)
                jobs = (await env.store.arun(search)).jobs
            served = [each for each in jobs if each.queue in options.queues]
            if {each.task for each in served} - set(env.registry.names):
                return _PASSED_OVER
        return ""

    async def _take_down(self, runtime: WorkerRuntime) -> None:
        """Let running jobs finish, stop those that do not, and write their settlements."""
        slots, shutdown = runtime.slots, runtime.shutdown
        runtime.env.bus.emit(
            WorkerStopping(worker=self.id, reason=shutdown.reason, running=slots.occupied)
        )
        if shutdown.reason == CTRL_C and slots.occupied:  # else the terminal shows nothing
            _LOG.warning("Ctrl-C %s", what_ctrl_c_does(self._options.shutdown_timeout_us))
        for attempt in slots.running_attempts():
            if attempt.handler.is_tick:
                runtime.stopper.stop(attempt, Ending.SHUTDOWN)
        timeout_s = self._options.shutdown_timeout_us / SECOND_US
        await self._wait_idle(runtime, None if shutdown.patient else timeout_s, Phase.HURRYING)
        shutdown.advance(Phase.HURRYING)
        for attempt in slots.running_attempts():
            runtime.stopper.stop(attempt, Ending.SHUTDOWN)
        await self._wait_idle(runtime, self._options.stop_grace_us / SECOND_US, Phase.LEAVING)
        for attempt in slots.running_attempts():
            runtime.stopper.abandon(attempt)
        await _first(runtime.settler.drained(_LAST_WRITES_S), shutdown.reached(Phase.LEAVING))
        await runtime.settler.drained(_PARTING_WRITES_S)

    async def _wait_idle(
        self, runtime: WorkerRuntime, timeout_s: float | None, phase: Phase
    ) -> None:
        """Wait until nothing runs, but not longer than `timeout_s`, nor beyond `phase`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while runtime.slots.running and runtime.shutdown.phase < phase:
                    runtime.idle.clear()
                    await _first(runtime.idle.wait(), runtime.shutdown.reached(phase))

    async def _leave(self, runtime: WorkerRuntime) -> None:
        """Close the runners and end the lease."""
        runtime.stopper.close()
        runtime.threads.close()
        if runtime.processes is not None:
            await runtime.processes.pool.close()
        if await runtime.leave() and runtime.supervisor is not None:
            runtime.supervisor.left(finished=runtime.fetcher.finished)


async def _declared(subscribers: Subscribers) -> None:
    """Declare subscribers before jobs are claimed."""
    with contextlib.suppress(StoreError):  # the service tries again
        await subscribers.declare()


async def _first(*waits: Awaitable[object]) -> None:
    """Wait until one of these ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(tasks)
