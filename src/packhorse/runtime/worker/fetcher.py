# SPDX-License-Identifier: MIT
"""Keeps the slots filled: claims when there is room, rests when there is no work.

A rest ends by a wake-up from the store, a slot that becomes free, the next time a job becomes due
or a limit lets one go, or the poll interval. While work is to be had, the next claim goes before
the look-ahead is used up, together with the settlements that wait, so that the store works while
handlers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from packhorse.core.clock import SECOND_US, pass_idle
from packhorse.runtime.services.upkeep import Served
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.claim_policy import (
    Asked,
    Mode,
    Quarantine,
    QueueCaps,
    QueueRotation,
    StartAllowance,
    StoreTime,
    Urgency,
)
from packhorse.runtime.worker.settler import BACKLOG_MAX
from packhorse.runtime.worker.shutdown import Phase
from packhorse.runtime.worker.store_health import Backoff
from packhorse.stores.requests import Claimed, ClaimRequest

if TYPE_CHECKING:
    from packhorse.runtime.worker.base_runtime import Runtime
    from packhorse.runtime.worker.processes.runner import ProcessFetcher

#: A limited job that did not start within this of its claim goes back. Where a rate let it go, the
#: claim's allowance is what counts.
GRANT_S: Final = 1.0
#: The shortest rest after a claim that brought nothing, so that no mistake makes a hot loop.
_REST_MIN_S: Final = 0.005
#: Between two looks of a burst worker that waits for something no wake-up tells of.
_BURST_LOOK_S: Final = 0.25
#: The longest a busy worker goes on as usual once it has seen suspects.
_SUSPECTS_PATIENCE_S: Final = 4.0


class _Ask(NamedTuple):
    """What one claim asks for."""

    mode: Mode
    asked: tuple[str, ...]  #: the queues whose turn it is
    queues: tuple[str, ...]  #: those of them that are not full
    limit: int
    urgent: Asked | None = None  #: None: jobs of every priority


class Fetcher:
    """One loop; `run_once` is its body, and says how long to rest."""

    def __init__(self, runtime: Runtime, tasks: tuple[str, ...], *, look_ahead: bool) -> None:
        env, options, slots = runtime.env, runtime.options, runtime.slots
        self.finished = False  #: nothing is left to do, and the worker leaves
        self.allowance = StartAllowance()
        #: Tasks of ordinary claims; `beside` claims those of processes, save suspects.
        self.own_tasks = tasks
        self.beside: ProcessFetcher | None = None  #: if a task wants processes
        self.looks = 0  #: how often a look at the store has begun
        self.on_look: Callable[[], None] = lambda: None  #: called when a look has ended
        self.served: dict[str, Served] = {}  #: by queue, for `Starvation`, which clears it
        self._request = ClaimRequest(
            worker=runtime.worker,
            queues=options.queues,
            tasks=tasks,
            limit=0,
            default_timeout_us=runtime.handlers.longest_timeout_us,
            tenants=options.tenants,
        )
        self._runtime = runtime
        self._env = env
        self._store = env.store
        self._monotonic = env.clock.monotonic
        self._options = options
        self._find_plan = runtime.handlers.find
        self._slots = slots
        self._settler = runtime.settler
        self._heartbeat = runtime.heartbeat
        self._shutdown = runtime.shutdown
        self._health = runtime.health
        self._poll_s = options.poll_interval_us / SECOND_US
        self._turn = asyncio.Lock()  # ordinary claims may never end; others come between
        self._suspects_apart = False  # a suspect waits for a process; ordinary claims do not see it
        self._quarantine = Quarantine(patience_s=env.chance.roll() * _SUSPECTS_PATIENCE_S)
        self.rotation = QueueRotation(options.queues, options.queue_caps, look_ahead=look_ahead)
        self._caps = QueueCaps(caps, slots.held_of) if (caps := options.queue_caps) else None
        self.urgency = Urgency(options.reserve, options.concurrency, slots.held_below)
        self._store_time = StoreTime()
        self._backoff = Backoff(env.chance)
        self._woken = asyncio.Event()
        self._resting = False
        self._empty = False  # the last ordinary claim brought less than it might have
        self._claim_again_at = 0.0  # when to claim again all the same
        self._due_at = math.inf  # when the next job that waits for its time may be claimed

    def wake(self, topics: Collection[str] = ()) -> None:
        """Claim now: there may be work."""
        if self.rotation.limited:
            self.rotation.woken(topics)
        self._empty = False
        self._woken.set()
        if self.beside is not None:
            self.beside.wake()

    def nudge(self) -> None:
        """End a rest: what kept this from claiming or finishing may have changed."""
        if self._resting:
            self._woken.set()

    def consider(self) -> None:
        """End a rest if a turn of the slots made room for a claim."""
        if self.beside is not None:
            self.beside.consider()
        if not self.urgency.plain:
            self._look_for_room()
        if self._slots.freed or (self._caps is not None and self._caps.freed):
            # Together with the settlement that makes the room, instead of after its wake-up.
            self._slots.freed = False
            self.wake()
        elif not self._resting:
            return
        elif not self._slots.running or (not self._empty and self._wanted() > 0):
            self._woken.set()

    def seen_limited(self, attempts: Sequence[Attempt]) -> None:
        """For a while, look ahead in none of the queues of these attempts."""
        self.rotation.seen_limited({each.job.queue for each in attempts}, self._monotonic())

    async def run(self) -> None:
        """Claim until the worker shuts down, or has finished."""
        with contextlib.suppress(Exception):  # services try again, and report it
            await self._admit()
        while not (self._shutdown.begun or self.finished):
            self._woken.clear()
            try:
                async with self._turn:
                    rest_s = await self.run_once()
            except Exception as error:  # noqa: BLE001 - the loop goes on, whatever happened
                self._health.failed("fetch", error)
                await self._health.pause(self._shutdown, self._backoff.next_s())
                continue
            if self._health.failing:
                self._health.worked("fetch")
            ended = self._shutdown.phase > Phase.RUNNING or self.finished
            if rest_s > 0 and not (ended or self._woken.is_set()):
                self._resting = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), rest_s)
                self._resting = False

    async def run_once(self) -> float:
        """Claim once if there is room and work; return how long to rest at most."""
        slots, now = self._slots, self._monotonic()
        if not self.urgency.plain:
            self._look_for_room()
        stale_s = slots.give_back_stale(now) if slots.waiting else math.inf
        mode, change_s = Mode.NORMAL, math.inf
        if not self._quarantine.idle:
            mode, change_s = self._mode(now)
        if mode is Mode.NORMAL and self._empty and now < self._claim_again_at:
            rest_s = max(_REST_MIN_S, min(stale_s, self._claim_again_at - now, change_s))
            # What the settler still has comes with a nudge once it is accepted.
            if self._options.burst and not (slots.busy or self._settler.backlog):
                rest_s = min(rest_s, await self._leave_or_wait())
            return rest_s
        ask = self._room(mode, now)
        if ask.limit < 1 or not self._begin_claim():
            if mode is Mode.NOTHING:  # a suspect runs, or is about to
                self.looks += 1
                self.on_look()
            return max(_REST_MIN_S, min(stale_s, self._poll_s, change_s))
        self.looks += 1
        alone = mode is Mode.SUSPECTS
        claimed = await self._claim(
            queues=ask.queues,
            tasks=self._request.tasks if alone else self.own_tasks,
            limit=ask.limit,
            quarantine=alone,
            levels={} if ask.urgent is None else dict(ask.urgent.levels),
        )
        if claimed is None:
            self._heartbeat.renew_now()  # only now: it needs the claim lock
            await self._health.pause(self._shutdown, self._backoff.next_s())
        else:
            self._after_claim(claimed, ask)
            self.on_look()
        return 0.0

    async def claim_only(self, tasks: tuple[str, ...], limit: int) -> Claimed | None:
        """Claim jobs of these tasks beside this loop; None if that is not possible."""
        async with self._turn:
            limit = min(limit, self._slots.left)  # others were claimed while this one waited
            barred = limit < 1 or self.finished or self._quarantine.is_open
            if barred or not self._begin_claim():
                return None
            claimed = await self._claim(tasks=tasks, limit=limit)
        if claimed is not None:
            self._note_suspects(claimed)
        return claimed

    def _note_suspects(self, claimed: Claimed) -> None:
        """Begin a quarantine if a claim beside this loop saw suspects that need a process."""
        suspects = claimed.suspects and self._takes_suspects()
        begun = suspects and not self._suspects_apart
        self._suspects_apart = suspects
        if begun and not self._quarantine.is_open:
            self._quarantine.claimed(Mode.NORMAL, jobs=0, suspects=True)
            self.nudge()

    def _takes_suspects(self) -> bool:
        """Whether this worker runs suspects: one process of a supervisor does, and any burst."""
        link = self._env.link
        return link is None or link.takes_suspects or self._options.burst

    def _begin_claim(self) -> bool:
        """Take the claim lock if a claim is possible now; `_claim` releases it."""
        heartbeat = self._heartbeat
        if self._shutdown.quiet or heartbeat.must_tell or heartbeat.copied:
            return False
        if self._monotonic() >= heartbeat.lease.trusted_until and not heartbeat.lease.trusted:
            return False
        if self._settler.backlog >= BACKLOG_MAX:
            return False
        return heartbeat.claim_lock.acquire(blocking=False)  # a renewal in it ends with a nudge

    def _wanted(self) -> int:
        """Return how many jobs to claim; none ahead of free slots where some are reserved."""
        slots, ahead = self._slots, self.rotation.ahead and self.urgency.plain
        running = slots.running - slots.in_processes
        return slots.look_ahead.wanted(running, len(slots.waiting), ahead=ahead)

    @property
    def may_look_ahead(self) -> bool:
        """Whether a claim of all queues may bring jobs that have to wait here."""
        return self.urgency.plain and not (self.rotation.limited or self._options.max_jobs)

    def _look_for_room(self) -> None:
        """Claim again if there is room now for less urgent jobs than the last claim asked for."""
        if self._empty and self.urgency.is_news(self._wanted()):
            self._empty = False

    def _mode(self, now: float) -> tuple[Mode, float]:
        """Return what to claim, and how soon that may change by time alone."""
        quarantine, busy = self._quarantine, self._slots.busy
        mode = quarantine.mode(now, busy=busy, idle=self._empty and not busy)
        return mode, quarantine.next_change(now)

    def _room(self, mode: Mode, now: float) -> _Ask:
        """Decide which queues to ask, for how many jobs, and of which priorities."""
        if mode is Mode.NOTHING:
            return _Ask(mode, (), (), 0)
        rotation, slots = self.rotation, self._slots
        limited = rotation.limited and mode is Mode.NORMAL
        asked = queues = rotation.ask(now) if limited else rotation.queues
        limit = self._wanted()
        if self._options.max_jobs is not None:
            self.finished = slots.left <= 0 and not slots.busy
            limit = min(limit, slots.left)
        if self._caps is not None:
            queues, limit = self._caps.within(queues, limit)
        if mode is Mode.SUSPECTS:
            return _Ask(mode, asked, queues, min(1, limit))
        if self.urgency.plain:
            return _Ask(mode, asked, queues, limit)
        urgent = self.urgency.within(queues, limit)
        return _Ask(mode, asked, queues, urgent.limit, urgent)

    async def _claim(self, **asked: Any) -> Claimed | None:
        """Claim and hold what is given, then release the claim lock; None if the answer is lost."""
        asked_at, epoch = self._monotonic(), self._heartbeat.lease.epoch
        allowance_us = self.allowance.us
        request = msgspec.structs.replace(self._request, allowance_us=allowance_us, **asked)
        # First what waits to be settled, then the claim, in one round of the loop: one commit.
        self._settler.flush()
        claim = asyncio.create_task(self._store.arun(self._store.jobs.claim(request)))
        try:
            claimed = await asyncio.shield(claim)  # granted or not, it runs to its end
        except Exception as error:  # noqa: BLE001 - tried again until the worker ends
            self._health.failed("claim", error)
            self._heartbeat.must_tell = True  # it may have been granted all the same
            return None
        else:
            if self._health.failing:
                self._health.worked("claim")
                self._backoff.reset()
            self._take(claimed, asked_at, epoch, allowance_us)
            return claimed
        finally:
            self._heartbeat.claim_lock.release()

    def _take(self, claimed: Claimed, asked_at: float, epoch: int, allowance_us: int) -> None:
        """Hold the claimed jobs."""
        time, find = self._store_time, self._find_plan
        time.read(claimed.now_us, asked_at, self._monotonic())
        least_us, most_us = time.least_us, time.most_us
        attempts = [Attempt(job, find(job), epoch, least_us, most_us) for job in claimed.jobs]
        bound = [each for each in attempts if each.handler.limited or each.job.rate_key is not None]
        if bound:
            self._bind(bound, (claimed.now_us - least_us) / SECOND_US + GRANT_S)
        if claimed.rated:
            rated = [each for each in attempts if each.job.id in claimed.rated]
            # From the moment of asking, which was before the grant whatever either clock says.
            self._bind(rated, asked_at + allowance_us / SECOND_US)
        self._slots.take(attempts)

    def _bind(self, attempts: Sequence[Attempt], start_by: float) -> None:
        """Let these limited jobs start by a time; look ahead no further in their queues."""
        for each in attempts:
            each.start_by = start_by if each.start_by is None else min(start_by, each.start_by)
        unknown = [each for each in attempts if each.job.queue not in self.rotation.limited]
        if unknown:
            self.seen_limited(unknown)

    def _after_claim(self, claimed: Claimed, ask: _Ask) -> None:
        """Learn from a claim's answer when to claim again, and what."""
        now, jobs, mode = self._monotonic(), claimed.jobs, ask.mode
        full = len(jobs) >= ask.limit
        suspects = claimed.suspects and self._takes_suspects()
        if mode is Mode.SUSPECTS:  # of all tasks
            self._suspects_apart = suspects
        suspects = suspects or self._suspects_apart
        if suspects or not self._quarantine.idle:
            crashes = max((job.crashes for job in jobs), default=0)
            self._quarantine.claimed(mode, jobs=len(jobs), suspects=suspects, crashes=crashes)
        if jobs:
            queue, lowest = jobs[-1].queue, Served(jobs[-1].ready_us, jobs[-1].priority, 0)
            lowest = min(lowest, self.served.get(queue, lowest))
            self.served[queue] = lowest._replace(now_us=claimed.now_us)
        if claimed.lease_lost:
            self._heartbeat.must_renew()
        elif mode is Mode.NORMAL:
            given = {job.queue for job in jobs}
            whole = self.rotation.answered(now, ask.asked, full=full, given=given)
            # A submission meanwhile has set `_woken`, so that `_empty` cannot hide it.
            self._empty = whole and not full and not self._woken.is_set()
            self._due_at = math.inf
            if claimed.next_due_us is not None:
                due_s = (claimed.next_due_us - claimed.now_us) / SECOND_US
                self._due_at = now + max(due_s, _REST_MIN_S)
            self._claim_again_at = min(now + self._poll_s, self._due_at)
        if ask.urgent is not None and self.urgency.answered(ask.urgent, full=full):
            self._empty = False  # nothing else waits, so that background jobs may run

    async def _leave_or_wait(self) -> float:
        """Return how long a burst worker waits for jobs it could run; finish if there are none."""
        request = self._request
        if await self._admit() or await self._runtime.fold():
            self._empty = False
            return _REST_MIN_S
        plan = self._store.inspection.outlook(request.worker, request.queues, request.tasks)
        outlook = await self._store.arun(plan)
        if outlook.ready:
            self._empty = False
            return _REST_MIN_S
        dues_us = (outlook.retry_due_us, outlook.limit_free_us)
        waits_us = [max(0, due_us - outlook.now_us) for due_us in dues_us if due_us is not None]
        if waits_us:
            now = self._monotonic()
            wait_s = min(waits_us) / SECOND_US
            if pass_idle(self._env.clock, min(wait_s, max(0.0, self._due_at - now))):
                self._empty = False
                self._heartbeat.renew_now()  # the lease may have run out meanwhile
                return _REST_MIN_S
            self._claim_again_at = min(self._claim_again_at, now + wait_s)
            return max(_REST_MIN_S, self._claim_again_at - now)
        if outlook.orphaned:
            return _BURST_LOOK_S
        self.finished = not (self._woken.is_set() or self._slots.busy)
        return 0.0 if self.finished else _REST_MIN_S

    async def _admit(self) -> int:
        """Admit jobs of users' transactions and outboxes; return how many."""
        intake, outboxes = self._store.intake, self._env.outboxes
        admitted = 0 if intake is None else await self._store.arun(intake.admit(wait=True))
        return admitted + (await outboxes.adrain(self._store) if outboxes else 0)
