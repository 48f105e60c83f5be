# SPDX-License-Identifier: MIT
"""What a consumer holds: the fetches that are open, as its heartbeat tells them to the store."""

from __future__ import annotations

import asyncio

from packhorse.clock import SECOND_US, Clock
from packhorse.lifecycle import hold_until_us
from packhorse.worker.attempt import Attempt, Stage
from packhorse.worker.slots import Slots

__all__ = ["Custody"]


class Custody:
    """Every open fetch, from its claim until its settlement is accepted or its hold is over."""

    def __init__(self, clock: Clock, default_timeout_us: int) -> None:
        #: Only their ledger is used: what is held runs in somebody else's runtime.
        self.slots = Slots(asyncio.get_running_loop(), clock, concurrency=1)
        self._monotonic = clock.monotonic
        self._default_timeout_us = default_timeout_us

    @property
    def busy(self) -> bool:
        """Whether any fetch is open."""
        return bool(self.slots.held)

    @property
    def open(self) -> list[Attempt]:
        """The fetches that nobody has settled, or is just settling."""
        return [each for each in self.slots.held if each.stage is Stage.RUNNING]

    def of(self, job_id: str) -> list[Attempt]:
        """The open fetches of one job; more than one after the first was lost in between."""
        return [each for each in self.open if each.job.id == job_id]

    def hold(self, attempt: Attempt, asked_at: float) -> None:
        """Take a job into custody, for as long as the store lets it be held."""
        job = attempt.job
        timeout_us = self._default_timeout_us if job.timeout_us is None else job.timeout_us
        attempt.expires = hold_until_us(int(asked_at * SECOND_US), timeout_us) / SECOND_US
        attempt.started = self._monotonic()
        attempt.stage = Stage.RUNNING
        self.slots.held.add(attempt)
        self.slots.running = len(self.slots.held)

    def allowed_s(self, attempt: Attempt) -> float:
        """How long an attempt may take: its timeout, or what the deadline leaves of it."""
        own_us, deadline_us = attempt.job.timeout_us, attempt.job.deadline_us
        timeout_s = attempt.plan.timeout_s if own_us is None else own_us / SECOND_US
        if deadline_us is None:
            return timeout_s
        return min(timeout_s, max(0.0, (deadline_us - self._store_now_us(attempt)) / SECOND_US))

    def deadline_passed(self, attempt: Attempt) -> bool:
        """Whether the whole job's time is over, by the store's clock as far as it is known here."""
        deadline_us = attempt.job.deadline_us
        return deadline_us is not None and self._store_now_us(attempt) >= deadline_us

    def let_go(self, attempt: Attempt) -> None:
        """Hold it no longer; what the store still thinks held goes back with the next renewal."""
        attempt.stage = Stage.ENDED
        self.slots.held.discard(attempt)
        self.slots.running = len(self.slots.held)

    def let_go_overdue(self) -> None:
        """Hold nothing beyond its limit: a fetch that was forgotten must not strand its job."""
        now = self._monotonic()
        for attempt in [each for each in self.slots.held if each.expires <= now]:
            self.let_go(attempt)

    def _store_now_us(self, attempt: Attempt) -> int:
        return int(self._monotonic() * SECOND_US) + attempt.offset_us
