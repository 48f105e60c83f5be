# SPDX-License-Identifier: MIT
"""Ends attempts that go on too long: one timer for all of them, set to the next to expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from packhorse.clock import SECOND_US, Clock
from packhorse.worker.attempt import Attempt, Ending, Stage

__all__ = ["Watchdog"]


class Watchdog:
    """Watches every running attempt's `expires`.

    An attempt that expires is told to stop and given a grace; one that expires again is abandoned.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        running: Callable[[], Iterable[Attempt]],
        expired: Callable[[Attempt], None],
    ) -> None:
        self._loop = loop
        self._monotonic = clock.monotonic
        self._running = running
        self._expired = expired
        self._alarm = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, attempt: Attempt, now: float) -> None:
        """The attempt's handler begins: note when it must have ended. Once per job."""
        job = attempt.job
        attempt.stage = Stage.RUNNING
        attempt.started = now
        own_us = job.timeout_us
        timeout_s = attempt.plan.timeout_s if own_us is None else own_us / SECOND_US
        if job.deadline_us is not None:
            left_s = (job.deadline_us - attempt.offset_us) / SECOND_US - now
            if left_s < timeout_s:
                timeout_s, attempt.bound = max(0.0, left_s), Ending.DEADLINE
        attempt.timeout_s = timeout_s
        attempt.expires = now + timeout_s
        if attempt.expires < self._alarm:
            self._set(attempt.expires, now)

    def extend(self, attempt: Attempt, seconds: float) -> None:
        """The attempt was told to stop, and may take so long to do it."""
        now = self._monotonic()
        attempt.expires = now + seconds
        if attempt.expires < self._alarm:
            self._set(attempt.expires, now)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, when: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._alarm = when
        self._timer = self._loop.call_later(max(0.0, when - now), self._bark)

    def _bark(self) -> None:
        self._alarm, self._timer = float("inf"), None
        now = self._monotonic()
        running = [each for each in self._running() if each.stage is Stage.RUNNING]
        for attempt in running:
            if attempt.expires <= now:
                self._expired(attempt)
        ends = [each.expires for each in running if each.stage is Stage.RUNNING]
        if ends and min(ends) < self._alarm:
            self._set(min(ends), now)
