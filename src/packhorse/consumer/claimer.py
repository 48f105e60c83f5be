# SPDX-License-Identifier: MIT
"""Fetches that wait, and the claims made for them.

One claim is under way at a time, for all fetches that wait. Each fetch has the store looked at once
at least; after that a look follows a wake-up, the next due time, or the poll interval. What a claim
brings for fetches that have left meanwhile is not held, so that the store takes it back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.consumer.custody import Custody
from packhorse.job import Job
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest
from packhorse.worker.attempt import Attempt
from packhorse.worker.heartbeat import Heartbeat
from packhorse.worker.plans import CallPlan
from packhorse.worker.quarantine import Mode, Quarantine
from packhorse.worker.reach import in_turn
from packhorse.worker.shutdown import Shutdown
from packhorse.worker.trouble import Backoff, StoreHealth

__all__ = ["Claimer", "ClaimerParts"]

#: Jobs asked for at once, however many fetches wait.
_CLAIM_MAX: Final = 100
#: How much longer than its timeout a fetch may take, to have the store looked at once.
_FIRST_LOOK_S: Final = 1.0
#: The shortest rest after a claim that brought nothing, so that no mistake makes a hot loop.
_REST_MIN_S: Final = 0.005
#: How long to rest while nobody fetches; a fetch ends the rest.
_IDLE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClaimerParts:
    """What a claimer works with."""

    store: Store
    clock: Clock
    chance: Chance
    custody: Custody
    heartbeat: Heartbeat
    shutdown: Shutdown
    health: StoreHealth
    find_plan: Callable[[Job], CallPlan]
    poll_s: float


class Claimer:
    """One loop; `run_once` is its body, and says how long to rest."""

    def __init__(self, request: ClaimRequest, parts: ClaimerParts) -> None:
        self._request = request
        self._parts = parts
        self._monotonic = parts.clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiter] = []
        self._quarantine = Quarantine()
        self._backoff = Backoff(parts.chance)
        self._woken = asyncio.Event()
        self._empty = False  # the last ordinary claim brought less than was asked for
        self._look_at = 0.0  # when to claim again all the same
        parts.shutdown.watch(self._end)

    async def fetch(self, timeout_s: float) -> Attempt | None:
        """A job, or None when the time is up or shutdown begins."""
        if self._parts.shutdown.begun:
            return None
        waiter = _Waiter(self._loop.create_future())
        timer = self._loop.call_later(timeout_s, self._time_is_up, waiter)
        self._waiting.append(waiter)
        self.wake()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            timer.cancel()
            self._waiting.remove(waiter)

    def wake(self) -> None:
        """There may be work: look now."""
        self._empty = False
        self._woken.set()

    def nudge(self) -> None:
        """Something changed that may have kept this from claiming."""
        self._woken.set()

    async def run(self) -> None:
        """Claim for those who wait, until shutdown begins."""
        while not self._parts.shutdown.begun:
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
        """Claim once if somebody waits and there may be work; say how long to rest at most."""
        asked = tuple(each for each in self._waiting if not each.answer.done())
        if not asked:
            return _IDLE_S
        now, busy = self._monotonic(), self._parts.custody.busy
        mode = self._quarantine.mode(now, busy=busy, idle=self._empty and not busy)
        if mode is Mode.NOTHING:  # a suspect runs, or is about to
            _looked(asked)
            return self._longest_rest(now, self._parts.poll_s)
        if mode is Mode.NORMAL and self._empty and now < self._look_at:
            return self._longest_rest(now, self._look_at - now)
        if not self._may_claim() or not self._parts.heartbeat.gate.enter():
            return self._longest_rest(now, self._parts.poll_s)  # the next renewal ends with a nudge
        try:
            claimed = await self._claim(mode, len(asked))
        finally:
            self._parts.heartbeat.gate.leave()
        if self._parts.heartbeat.must_tell:
            self._parts.heartbeat.renew_now()  # only now: the gate stood in its way
        if claimed is None:
            await self._parts.shutdown.sleep(self._backoff.next_s())
        else:
            _looked(asked)
        return 0.0

    def _may_claim(self) -> bool:
        heartbeat = self._parts.heartbeat
        return heartbeat.lease.trusted and not heartbeat.must_tell

    async def _claim(self, mode: Mode, waiting: int) -> Claimed | None:
        """Ask once, and hand out what is given; None when the answer, if any, got lost."""
        parts, quarantine = self._parts, mode is Mode.SUSPECTS
        limit = 1 if quarantine else min(waiting, _CLAIM_MAX)
        request = msgspec.structs.replace(self._request, limit=limit, quarantine=quarantine)
        asked_at, epoch = self._monotonic(), parts.heartbeat.lease.epoch
        claim = asyncio.create_task(parts.store.arun(parts.store.jobs.claim(request)))
        try:
            claimed = await asyncio.shield(claim)  # granted or not, it runs to its end
        except Exception as error:  # noqa: BLE001 - tried again until the consumer is closed
            parts.health.failed("claim", error)
            parts.heartbeat.must_tell = True  # it may have been granted all the same
            return None
        parts.health.worked("claim")
        self._backoff.reset()
        self._hand_out(claimed, asked_at, epoch)
        self._after_claim(claimed, limit, mode)
        return claimed

    def _hand_out(self, claimed: Claimed, asked_at: float, epoch: int) -> None:
        """Answer the fetches in the order they came; what is left over is not held."""
        offset_us = claimed.now_us - int(asked_at * SECOND_US)
        takers = [each for each in self._waiting if not each.answer.done()]
        for waiter, job in zip(takers, claimed.jobs, strict=False):
            attempt = Attempt(job, self._parts.find_plan(job), epoch, offset_us)
            self._parts.custody.hold(attempt, asked_at)
            waiter.answer.set_result(attempt)
        if len(claimed.jobs) > len(takers):
            self._parts.heartbeat.must_tell = True

    def _after_claim(self, claimed: Claimed, limit: int, mode: Mode) -> None:
        now = self._monotonic()
        self._quarantine.claimed(mode, jobs=len(claimed.jobs), suspects=claimed.suspects)
        queues = in_turn(self._request.queues, {job.queue for job in claimed.jobs})
        self._request = msgspec.structs.replace(self._request, queues=queues)
        if claimed.lease_lost:
            self._parts.heartbeat.must_renew()
        elif mode is Mode.NORMAL:
            # What is submitted meanwhile has woken us already, so that `empty` cannot hide it.
            self._empty = len(claimed.jobs) < limit and not self._woken.is_set()
            self._look_at = now + self._parts.poll_s
            if claimed.next_due_us is not None:
                due_s = (claimed.next_due_us - claimed.now_us) / SECOND_US
                self._look_at = min(self._look_at, now + max(due_s, _REST_MIN_S))

    def _time_is_up(self, waiter: _Waiter) -> None:
        if waiter.looked or waiter.overdue:
            waiter.resolve()
        else:
            waiter.overdue = True
            self._loop.call_later(_FIRST_LOOK_S, self._time_is_up, waiter)

    def _give_back(self, waiter: _Waiter) -> None:
        """The fetch was cancelled just when it got its job: let the store take it back."""
        answer = waiter.answer
        attempt = None if answer.cancelled() or not answer.done() else answer.result()
        if attempt is not None:
            self._parts.custody.let_go(attempt)
            self._parts.heartbeat.must_tell = True
            self._parts.heartbeat.renew_now()

    def _end(self) -> None:
        """Shutdown has begun: whoever waits is told that there is nothing."""
        for waiter in self._waiting:
            waiter.resolve()
        self._woken.set()

    def _longest_rest(self, now: float, rest_s: float) -> float:
        change_s = self._quarantine.next_change(now)
        return max(_REST_MIN_S, rest_s if change_s is None else min(rest_s, change_s))

    async def _rest(self, rest_s: float) -> None:
        if rest_s <= 0 or self._woken.is_set():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), rest_s)


class _Waiter:
    """One fetch that waits."""

    __slots__ = ("answer", "looked", "overdue")

    def __init__(self, answer: asyncio.Future[Attempt | None]) -> None:
        self.answer = answer
        self.looked = False  #: the store was asked since it came, and had nothing for it
        self.overdue = False  #: its time is up, and it waits for that look only

    def resolve(self) -> None:
        """There is nothing for it."""
        if not self.answer.done():
            self.answer.set_result(None)


def _looked(waiters: Sequence[_Waiter]) -> None:
    """These have had their look; those whose time is up need wait no longer."""
    for waiter in waiters:
        waiter.looked = True
        if waiter.overdue:
            waiter.resolve()
