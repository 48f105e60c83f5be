# SPDX-License-Identifier: MIT
"""What this worker may believe of its own lease, readable from any thread at any time."""

from __future__ import annotations

import threading

from packhorse.clock import SECOND_US, Clock
from packhorse.policies.lease import trusted_for_us
from packhorse.supervisor.page import Page

__all__ = ["ClaimGate", "OwnLease"]


class OwnLease:
    """Trusted for nine tenths of its length, counted from when its renewal was asked for.

    `epoch` rises whenever the lease was, or may have been, gone: jobs claimed in an earlier epoch
    may be somebody else's by now. A supervisor that has renewed it in this process's stead says so
    on the page they share.
    """

    def __init__(self, clock: Clock, lease_us: int, page: Page | None = None) -> None:
        self._clock = clock
        self._page = page
        self._kept_epoch = 0 if page is None else page.epoch
        self._ignored = 0.0  # what the page said when the store knew better
        self._span_s = trusted_for_us(lease_us) / SECOND_US
        self.trusted_until = float("-inf")  #: as the clock's `monotonic` counts
        self.epoch = 0

    @property
    def trusted(self) -> bool:
        """Whether the worker may begin new work."""
        now = self._clock.monotonic()
        if now >= self.trusted_until:
            self.look()
        return now < self.trusted_until

    @property
    def left_s(self) -> float:
        """How long it may be trusted yet, without another renewal."""
        self.look()
        return self.trusted_until - self._clock.monotonic()

    def lost_since(self, epoch: int) -> bool:
        """Whether what was claimed in that epoch may be somebody else's by now."""
        return not self.trusted or epoch != self.epoch

    def look(self) -> bool:
        """Take over what the supervisor did; says whether the lease may have been gone since."""
        page = self._page
        if page is None:
            return False
        # In this order: the supervisor says that it may have lapsed before it says it is renewed.
        kept_until = page.trusted_until
        epoch = page.epoch
        gone = epoch != self._kept_epoch
        if gone:
            self._kept_epoch = epoch
            self.epoch += 1
        if kept_until > self._ignored:
            self.trusted_until = max(self.trusted_until, kept_until)
        return gone

    def distrust(self) -> None:
        """The store does not know this lease any more."""
        if self._page is not None:
            self._ignored = self._page.trusted_until
        self.trusted_until = float("-inf")

    def renewed(self, asked_at: float, *, lapsed: bool) -> None:
        """A renewal that was asked for at `asked_at` has been granted."""
        self.look()
        if lapsed:
            self.epoch += 1
        if self._page is not None:
            self._page.lease_renewed(asked_at)
        self.trusted_until = max(self.trusted_until, asked_at + self._span_s)


class ClaimGate:
    """Keeps claims and told renewals apart.

    A renewal that tells what is held makes the store release the rest: a claim under way at that
    moment would lose the jobs it is just being given. Whoever comes second does without.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Go through, or be told that the other one is there."""
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        """Open the gate again, from whichever thread."""
        self._lock.release()
