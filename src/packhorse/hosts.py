# SPDX-License-Identifier: MIT
"""Who runs an attempt, as its context sees it: a worker, a process of it, or a direct call."""

from __future__ import annotations

from typing import Protocol

from packhorse.breaker import BreakerBook
from packhorse.core.clock import SystemClock
from packhorse.core.job import JobRecord, Progress
from packhorse.core.policies.attachments import Attachments

__all__ = ["AttemptHost", "DetachedHost"]


class AttemptHost(Protocol):
    """What a context asks of the worker that runs its job."""

    def note_progress(self, progress: Progress) -> None:
        """Store it soon; callable from any thread."""
        ...

    def still_mine(self) -> bool:
        """Ask the store, in the caller's thread."""
        ...

    async def astill_mine(self) -> bool:
        """Ask the store without blocking the event loop."""
        ...

    def stored(self) -> JobRecord | None:
        """What the store knows of the job, read in the caller's thread."""
        ...

    async def astored(self) -> JobRecord | None:
        """What the store knows of the job."""
        ...

    @property
    def breakers(self) -> BreakerBook | None:
        """The circuit breakers of the store; None: there is no store."""
        ...

    @property
    def suspends(self) -> bool:
        """Whether the attempt can end and come back; a function that is called directly cannot."""
        ...

    def now_us(self) -> int:
        """The store's time, nearly."""
        ...

    def lease_lost(self) -> bool:
        """Whether others may hold the job by now."""
        ...

    def attachments(self) -> Attachments:
        """What is kept with the job, read in the caller's thread."""
        ...

    async def aattachments(self) -> Attachments:
        """What is kept with the job."""
        ...

    def attach(self, values: dict[str, bytes]) -> bool:
        """Keep values with the job, if this attempt still holds it; says whether it does."""
        ...

    async def aattach(self, values: dict[str, bytes]) -> bool:
        """As `attach`, without blocking the event loop."""
        ...


class DetachedHost:
    """The `AttemptHost` of a context that belongs to no job; steps are kept in memory."""

    suspends = False
    breakers: BreakerBook | None = None

    def __init__(self) -> None:
        self.attached: dict[str, bytes] = {}
        self.signals: dict[str, tuple[bytes, ...]] = {}

    def note_progress(self, progress: Progress) -> None:
        """There is nowhere to store it."""

    def lease_lost(self) -> bool:
        return False

    def still_mine(self) -> bool:
        return not self.lease_lost()

    async def astill_mine(self) -> bool:
        return self.still_mine()

    def stored(self) -> JobRecord | None:
        return None

    async def astored(self) -> JobRecord | None:
        return None

    def now_us(self) -> int:
        return SystemClock().now_us()

    def attachments(self) -> Attachments:
        return Attachments(dict(self.attached), self.signals)

    async def aattachments(self) -> Attachments:
        return self.attachments()

    def attach(self, values: dict[str, bytes]) -> bool:
        self.attached |= values
        return self.still_mine()

    async def aattach(self, values: dict[str, bytes]) -> bool:
        return self.attach(values)
