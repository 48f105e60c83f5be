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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.config import WorkerOptions
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest
from packhorse.worker.attempt import Attempt
from packhorse.worker.heartbeat import Heartbeat
from packhorse.worker.plans import PlanBook
from packhorse.worker.quarantine import Mode, Quarantine
from packhorse.worker.reach import Caps, Reach
from packhorse.worker.settler import BACKLOG_MAX, Settler
from packhorse.worker.shutdown import Shutdown
from packhorse.worker.slots import Slots
from packhorse.worker.starvation import Starvation
from packhorse.worker.store_time import StoreTime
from packhorse.worker.trouble import Backoff, StoreHealth

__all__ = ["GRANT_S", "Fetcher", "FetcherParts"]

#: A limited job that did not start within this of its claim goes back; its limit is not refunded.
GRANT_S: Final = 1.0
#: The shortest rest after a claim that brought nothing, so that no mistake makes a hot loop.
_REST_MIN_S: Final = 0.005
#: Between two looks of a burst worker that waits for something no wake-up tells of.
_BURST_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class FetcherParts:
    """What a fetcher works with."""

    store: Store
    clock: Clock
    chance: Chance
    options: WorkerOptions
    plans: PlanBook
    slots: Slots
    settler: Settler
    heartbeat: Heartbeat
    shutdown: Shutdown
    health: StoreHealth
    starvation: Starvation
    apart: frozenset[str] = frozenset()  #: tasks that are claimed by somebody else


class Fetcher:
    """One loop; `run_once` is its body, and says how long to rest."""

    def __init__(self, worker: str, parts: FetcherParts) -> None:
        self.finished = False  #: there is nothing left to do, and the worker is to leave then
        self._parts = parts
        self._slots = parts.slots
        self._monotonic = parts.clock.monotonic
        self._poll_s = parts.options.poll_interval_us / SECOND_US
        self._request = ClaimRequest(
            worker=worker,
            queues=parts.options.queues,
            tasks=parts.plans.tasks,
            limit=0,
            default_timeout_us=parts.plans.longest_timeout_us,
        )
        # What processes run is claimed by `ProcessFetcher`, save suspects, which run alone anyway.
        self._own_tasks = tuple(name for name in parts.plans.tasks if name not in parts.apart)
        self._claims_apart = 0
        self._suspects_apart = False  # such a suspect waits: ordinary claims do not see it
        self._quarantine = Quarantine()
        self._reach = Reach(parts.options.queues, parts.options.queue_caps)
        self._caps = Caps(parts.options.queue_caps, parts.slots.held_of)
        self._store_time = StoreTime()
        self._backoff = Backoff(parts.chance)
        self._woken = asyncio.Event()
        self._resting = False
        self._empty = False  # the last ordinary claim brought less than it might have
        self._look_at = 0.0  # when to claim again all the same

    def wake(self, topics: Collection[str] = ()) -> None:
        """There may be work: look now."""
        self._reach.woken(topics)
        self._empty = False
        self._woken.set()

    def nudge(self) -> None:
        """Something changed that may have kept this from claiming, or from finishing."""
        if self._resting:
            self._woken.set()

    def nudge_if_finished(self) -> None:
        """Everything that ended is stored: a burst worker may have nothing left."""
        if self._parts.options.burst and not (self._slots.busy or self._parts.settler.backlog):
            self.nudge()

    def consider(self) -> None:
        """After every turn of the slots, look whether it is time to claim."""
        if self._slots.freed or self._caps.freed:
            # Together with the settlement that makes the room, instead of after its wake-up.
            self._slots.freed = False
            self.wake()
        elif not self._resting:
            return
        elif not self._slots.busy or (not self._empty and self._has_room()):
            self._woken.set()

    def set_limited(self, queues: frozenset[str]) -> None:
        """Look ahead in none of these queues."""
        self._reach.set_limited(queues)

    def seen_limited(self, attempts: Sequence[Attempt]) -> None:
        """Nor, for a while, in those of these attempts."""
        self._reach.seen_limited({each.job.queue for each in attempts}, self._monotonic())

    async def run(self) -> None:
        """Claim until the worker shuts down, or has finished."""
        while not (self._parts.shutdown.begun or self.finished):
            self._woken.clear()
            try:
                rest_s = await self.run_once()
            except Exception as error:  # noqa: BLE001 - the loop goes on, whatever happened
                self._parts.health.failed("fetch", error)
                await self._parts.shutdown.sleep(self._backoff.next_s())
            else:
                self._parts.health.worked("fetch")
                await self._rest(rest_s)

    async def run_once(self) -> float:
        """Claim once if there is room and work, and say how long to rest at most."""
        slots = self._slots
        slots.give_back_stale()
        now = self._monotonic()
        mode = self._quarantine.mode(now, busy=slots.busy, idle=self._empty and not slots.busy)
        if mode is Mode.NORMAL and self._empty and now < self._look_at:
            return await self._nothing_to_do(now)
        asked = self._reach.ask(now) if mode is Mode.NORMAL else self._reach.queues
        queues, limit = self._caps.within(asked, self._limit(mode))
        if limit < 1 or not self._may_claim():
            return self._longest_rest(now, self._poll_s)
        if not self._parts.heartbeat.gate.enter():
            return self._longest_rest(now, self._poll_s)  # the renewal under way ends with a nudge
        alone = mode is Mode.SUSPECTS
        tasks = self._request.tasks if alone else self._own_tasks
        request = msgspec.structs.replace(
            self._request, queues=queues, tasks=tasks, limit=limit, quarantine=alone
        )
        try:
            claimed = await self._claim(request)
        finally:
            self._parts.heartbeat.gate.leave()
        if claimed is None:
            self._parts.heartbeat.renew_now()  # only now: the gate stood in its way
            await self._parts.shutdown.sleep(self._backoff.next_s())
        else:
            self._after_claim(claimed, asked, limit, mode)
        return 0.0

    async def claim_only(self, tasks: tuple[str, ...], limit: int) -> Claimed | None:
        """Claim jobs of these tasks now, beside this loop; None if that is not possible."""
        gate = self._parts.heartbeat.gate
        if self._quarantine.stands or not self._may_claim() or not gate.enter():
            return None
        self._claims_apart += 1
        try:
            request = msgspec.structs.replace(self._request, tasks=tasks, limit=limit)
            claimed = await self._claim(request)
        finally:
            self._claims_apart -= 1
            gate.leave()
        if claimed is not None:
            self._noticed(claimed)
        return claimed

    def _noticed(self, claimed: Claimed) -> None:
        """A claim beside this loop has seen whether suspects wait for a process."""
        begun = claimed.suspects and not self._suspects_apart
        self._suspects_apart = claimed.suspects
        if begun and not self._quarantine.stands:
            self._quarantine.claimed(Mode.NORMAL, jobs=0, suspects=True)
            self.nudge()

    def _may_claim(self) -> bool:
        heartbeat = self._parts.heartbeat
        if self._parts.shutdown.quiet or heartbeat.must_tell or not heartbeat.lease.trusted:
            return False
        return self._parts.settler.backlog < BACKLOG_MAX

    def _has_room(self) -> bool:
        return self._slots.wanted(ahead=self._reach.ahead) > 0

    def _limit(self, mode: Mode) -> int:
        """How many jobs to ask for."""
        if mode is Mode.NOTHING:
            return 0
        wanted = 1 if mode is Mode.SUSPECTS else self._slots.wanted(ahead=self._reach.ahead)
        most = self._parts.options.max_jobs
        if most is None:
            return wanted
        left = most - self._slots.started - len(self._slots.waiting)
        self.finished = left <= 0 and not self._slots.busy
        return min(wanted, left)

    async def _claim(self, request: ClaimRequest) -> Claimed | None:
        """Ask once, and hold what is given; None when the answer, if there was one, got lost."""
        parts = self._parts
        asked_at, epoch = self._monotonic(), parts.heartbeat.lease.epoch
        # First what waits to be settled, then the claim, in one round of the loop: one commit.
        parts.settler.flush()
        claim = asyncio.create_task(parts.store.arun(parts.store.jobs.claim(request)))
        try:
            claimed = await asyncio.shield(claim)  # granted or not, it runs to its end
        except Exception as error:  # noqa: BLE001 - tried again until the worker ends
            parts.health.failed("claim", error)
            parts.heartbeat.must_tell = True  # it may have been granted all the same
            return None
        parts.health.worked("claim")
        self._backoff.reset()
        self._take(claimed, asked_at, epoch)
        return claimed

    def _take(self, claimed: Claimed, asked_at: float, epoch: int) -> None:
        """Hold what was given."""
        offset_us = self._store_time.offset_us(claimed.now_us, asked_at, self._monotonic())
        find = self._parts.plans.find
        attempts = [Attempt(job, find(job), epoch, offset_us) for job in claimed.jobs]
        bound = [each for each in attempts if each.plan.limited or each.job.rate_key is not None]
        if bound:
            self._bind(bound, (claimed.now_us - offset_us) / SECOND_US)
        self._slots.take(attempts)

    def _bind(self, attempts: Sequence[Attempt], granted_at: float) -> None:
        """These are limited: they start soon after their claim, and nothing is held ahead there."""
        for each in attempts:
            each.start_by = granted_at + GRANT_S
        unknown = [each for each in attempts if each.job.queue not in self._reach.limited]
        if unknown:
            self.seen_limited(unknown)

    def _after_claim(
        self, claimed: Claimed, asked: tuple[str, ...], limit: int, mode: Mode
    ) -> None:
        now, jobs = self._monotonic(), claimed.jobs
        if mode is Mode.SUSPECTS:  # of all tasks
            self._suspects_apart = claimed.suspects
        suspects = claimed.suspects or self._suspects_apart
        self._quarantine.claimed(mode, jobs=len(jobs), suspects=suspects)
        given = {job.queue for job in jobs}
        if jobs:
            self._reach.served(given)
            self._parts.starvation.served(jobs[-1], claimed.now_us)
        if claimed.lease_lost:
            self._parts.heartbeat.must_renew()
        elif mode is Mode.NORMAL:
            full = len(jobs) >= limit
            whole = self._reach.answered(now, asked, full=full, given=given)
            # What is submitted meanwhile has woken us already, so that `empty` cannot hide it.
            self._empty = whole and not full and not self._woken.is_set()
            self._look_at = now + self._poll_s
            if claimed.next_due_us is not None:
                due_s = (claimed.next_due_us - claimed.now_us) / SECOND_US
                self._look_at = min(self._look_at, now + max(due_s, _REST_MIN_S))

    async def _nothing_to_do(self, now: float) -> float:
        """Rest until work is due; a burst worker finds out whether to leave instead."""
        rest_s = self._longest_rest(now, self._look_at - now)
        if not self._parts.options.burst or self._slots.busy:
            return rest_s
        if self._parts.settler.backlog:
            self._parts.settler.flush()
            return rest_s  # what was accepted comes with a nudge
        return min(rest_s, await self._leave_or_wait())

    async def _leave_or_wait(self) -> float:
        """How long a burst worker still has to wait for what it could run, if anything."""
        parts, request = self._parts, self._request
        plan = parts.store.inspection.outlook(request.worker, request.queues, request.tasks)
        outlook = await parts.store.arun(plan)
        if outlook.ready:
            self._empty = False
            return _REST_MIN_S
        dues_us = (outlook.retry_due_us, outlook.limit_free_us)
        waits_us = [max(0, due_us - outlook.now_us) for due_us in dues_us if due_us is not None]
        if waits_us:
            now = self._monotonic()
            self._look_at = min(self._look_at, now + min(waits_us) / SECOND_US)
            return max(_REST_MIN_S, self._look_at - now)
        if outlook.orphaned:
            return _BURST_LOOK_S
        self.finished = not (self._woken.is_set() or self._claims_apart or self._slots.busy)
        return 0.0 if self.finished else _REST_MIN_S

    def _longest_rest(self, now: float, rest_s: float) -> float:
        """At most so long, less if something else comes first by time alone."""
        spans = (rest_s, self._slots.stale_in_s, self._quarantine.next_change(now))
        return max(_REST_MIN_S, min(span for span in spans if span is not None))

    async def _rest(self, rest_s: float) -> None:
        if rest_s <= 0 or self._woken.is_set() or self._parts.shutdown.begun or self.finished:
            return
        self._resting = True
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest_s)
        finally:
            self._resting = False
