# SPDX-License-Identifier: MIT
"""The worker: runs its crew until it is told to stop, then takes it down in order.

heartbeat ─ lease ─┐
listener ─ wake ▶ fetcher ─ claim ▶ slots ─▶ runners ─▶ executor ─ Outcome ▶ settler ─▶ store
                                     ▲ │       watchdog, endings ─ stop
settings ─ what holds ──┘              └─┘ turn  services: rescue, promote, expire, park, prune
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final

from packhorse.clock import SECOND_US, new_id
from packhorse.config import WorkerOptions
from packhorse.events import WorkerQuiet, WorkerResumed, WorkerStopped, WorkerStopping
from packhorse.stores.protocol import Listener
from packhorse.supervisor.link import Link
from packhorse.supervisor.messages import Quiet
from packhorse.worker.attempt import Ending
from packhorse.worker.crew import Crew
from packhorse.worker.lifespan import entered
from packhorse.worker.parts import WorkerParts
from packhorse.worker.shutdown import Phase
from packhorse.worker.tally import WorkerReport
from packhorse.worker.trouble import Backoff
from packhorse.worker.upkeep import upkeep
from packhorse.worker.wear import refuse_unsupervised

__all__ = ["Worker", "WorkerParts"]

#: How long the last settlements may take to be accepted once everything else has ended.
_LAST_WRITES_S: Final = 5.0
#: How long they may take when nothing is waited for any more.
_PARTING_WRITES_S: Final = 0.5
#: How long a claim under way may still take when the worker is told to stop.
_CLAIM_LANDS_S: Final = 5.0
#: How long saying goodbye to the store may take; its lease runs out by itself otherwise.
_LEAVE_S: Final = 2.0
#: How long a listener waits before it is asked again; only a bound, nothing happens then.
_LISTEN_S: Final = 60.0
#: Between two wake-ups that are heeded while there is work anyway.
_WAKE_INTERVAL_S: Final = 0.01


class Worker:
    """Claims jobs and runs them, in this process, on the running event loop."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self.id = new_id()
        self._parts = parts
        self._options = options
        self._crew: Crew | None = None
        self._cancelled = False
        self._asked_early: tuple[str, ...] = ()

    def stop(self, reason: str = "asked to") -> None:
        """Stop as on a signal: once to drain, twice to hurry, three times to leave."""
        if self._crew is None:
            self._asked_early += (reason,)
        else:
            self._crew.shutdown.request(reason)

    async def run(self) -> WorkerReport:
        """Work until told to stop; a burst worker also leaves when there is nothing left to do."""
        if self._parts.link is None:
            refuse_unsupervised(self._options)
        crew = self._crew = Crew(self.id, self._parts, self._options)
        for reason in self._asked_early:
            crew.shutdown.request(reason)
        handled = crew.shutdown.signals(lambda on: self._signalled(crew, on=on))
        with handled if self._options.handle_signals else contextlib.nullcontext():
            async with entered(self._parts.lifespans, self._parts.app) as state:
                crew.contexts.state = state
                report = await self._run(crew)
        if self._cancelled:
            raise asyncio.CancelledError
        return report

    async def _run(self, crew: Crew) -> WorkerReport:
        began = self._parts.clock.monotonic()
        if crew.board is not None:
            crew.board.greet()
        if self._parts.link is not None:
            self._hear_supervisor(crew, self._parts.link)
        if crew.processes is not None:
            crew.processes.pool.warm()
        crew.heartbeat.start()
        background = [asyncio.create_task(each) for each in self._background(crew)]
        try:
            await self._patiently(crew, self._work(crew))
            await self._patiently(crew, self._take_down(crew))
        finally:
            await self._patiently(crew, _end(background))
            await self._patiently(crew, self._leave(crew))
        crew.parts.bus.emit(
            WorkerStopped(
                worker_id=self.id,
                processed=crew.settler.tally.succeeded + crew.settler.tally.failed,
                abandoned=crew.abandoned,
            )
        )
        return crew.settler.tally.report(
            worker_id=self.id,
            name=self._options.name,
            uptime_s=self._parts.clock.monotonic() - began,
            abandoned=crew.abandoned,
            problem=crew.problem,
        )

    def _hear_supervisor(self, crew: Crew, link: Link) -> None:
        loop = asyncio.get_running_loop()

        def quiet(on: bool) -> None:  # noqa: FBT001 - called from the link's own thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to stop
                loop.call_soon_threadsafe(lambda: self._set_quiet(crew, on=on))

        link.on_quiet(quiet)

    def _signalled(self, crew: Crew, *, on: bool) -> None:
        """Told by a signal of its own, it tells its supervisor, whose next process is to know."""
        if self._parts.link is not None:
            self._parts.link.send(Quiet(on))
        self._set_quiet(crew, on=on)

    def _set_quiet(self, crew: Crew, *, on: bool) -> None:
        if on is crew.shutdown.quiet:
            return
        crew.set_quiet(on=on)
        running = crew.slots.running
        crew.parts.bus.emit(
            WorkerQuiet(worker_id=self.id, running=running)
            if on
            else WorkerResumed(worker_id=self.id)
        )

    def _background(self, crew: Crew) -> list[Coroutine[Any, Any, None]]:
        services = upkeep(
            *(self.id, self._parts, crew.shutdown, crew.health, crew.starvation),
            renew=crew.heartbeat.renew_now,
        )
        loops = [crew.settler.run(), crew.settings.run(), self._listen(crew)]
        return [*loops, *services]

    async def _patiently(self, crew: Crew, step: Coroutine[Any, Any, None]) -> None:
        """Run a step to its end; cancelling the worker meanwhile asks it to stop, and to hurry."""
        task = asyncio.create_task(step)
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                self._cancelled = True
                crew.shutdown.request("cancelled")
        task.result()

    async def _work(self, crew: Crew) -> None:
        """Claim and run jobs until shutdown begins, or there is nothing left."""
        shutdown = crew.shutdown
        await _first(crew.settings.looked.wait(), shutdown.reached(Phase.DRAINING))
        fetching = asyncio.create_task(_fetch(crew))
        await _first(asyncio.shield(fetching), shutdown.reached(Phase.DRAINING))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLAIM_LANDS_S):
                # A claim under way is let land, or its jobs would be held for nothing.
                await _first(asyncio.shield(fetching), shutdown.reached(Phase.HURRYING))
        shutdown.advance(Phase.DRAINING, "nothing left to do")
        await _end([fetching])
        crew.slots.give_back()

    async def _take_down(self, crew: Crew) -> None:
        """Let what runs finish, stop what does not, and write what became of it."""
        slots, shutdown = crew.slots, crew.shutdown
        crew.parts.bus.emit(
            WorkerStopping(worker_id=self.id, reason=shutdown.reason, running=slots.running)
        )
        timeout_s = self._options.shutdown_timeout_us / SECOND_US
        await self._quiet(crew, None if shutdown.patient else timeout_s, Phase.HURRYING)
        shutdown.advance(Phase.HURRYING)
        for attempt in slots.running_attempts():
            crew.endings.stop(attempt, Ending.SHUTDOWN)
        await self._quiet(crew, self._options.stop_grace_us / SECOND_US, Phase.LEAVING)
        for attempt in slots.running_attempts():
            crew.endings.abandon(attempt)
        await _first(crew.settler.drained(_LAST_WRITES_S), shutdown.reached(Phase.LEAVING))
        await crew.settler.drained(_PARTING_WRITES_S)

    async def _quiet(self, crew: Crew, timeout_s: float | None, phase: Phase) -> None:
        """Wait until nothing runs, but not longer than this, nor beyond that phase."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while crew.slots.running and crew.shutdown.phase < phase:
                    crew.quiet.clear()
                    await _first(crew.quiet.wait(), crew.shutdown.reached(phase))

    async def _leave(self, crew: Crew) -> None:
        """Say goodbye: the store need not wait for the lease to run out."""
        crew.watchdog.close()
        crew.endings.let_go()
        crew.threads.close()
        if crew.processes is not None:
            await crew.processes.pool.close()
        await asyncio.to_thread(crew.heartbeat.stop)
        store = crew.parts.store
        with contextlib.suppress(Exception):  # the lease runs out by itself
            await asyncio.wait_for(store.arun(store.leases.leave(self.id)), _LEAVE_S)
            if crew.board is not None:
                crew.board.left()

    async def _listen(self, crew: Crew) -> None:
        """Hear wake-ups until cancelled; what cannot be heard is found by polling."""
        backoff = Backoff(crew.parts.chance)
        topics = frozenset({f"cancel:{self.id}", *map("queue:{}".format, self._options.queues)})
        while True:
            try:
                with contextlib.closing(crew.parts.store.wakeups.listen(topics)) as listener:
                    await self._hear(crew, listener)
            except Exception as error:  # noqa: BLE001 - polling goes on meanwhile
                crew.health.failed("listen", error)
                await crew.shutdown.sleep(backoff.next_s())

    async def _hear(self, crew: Crew, listener: Listener) -> None:
        cancel = f"cancel:{self.id}"
        while True:
            heard = await listener.wait(_LISTEN_S)
            crew.health.worked("listen")
            if not heard:
                continue
            if cancel in heard or "*" in heard:
                crew.heartbeat.look_now()
            if heard != {cancel}:
                crew.wake(heard)
                crew.settings.look_soon()
            if crew.slots.busy:
                await asyncio.sleep(_WAKE_INTERVAL_S)


async def _fetch(crew: Crew) -> None:
    """Claim until there is nothing left to do."""
    if crew.process_fetcher is None:
        await crew.fetcher.run()
    else:
        await asyncio.gather(crew.fetcher.run(), crew.process_fetcher.run())


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for whichever ends first; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
