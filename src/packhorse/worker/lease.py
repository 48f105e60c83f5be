# SPDX-License-Identifier: MIT
"""What this worker may believe of its own lease, readable from any thread at any time."""

from __future__ import annotations

import threading

from packhorse.clock import SECOND_US, Clock
from packhorse.policies.lease import trusted_for_us

__all__ = ["ClaimGate", "OwnLease"]


class OwnLease:
    """Trusted for nine tenths of its length, counted from when its renewal was asked for.

    `epoch` rises whenever the lease was, or may have been, gone: jobs claimed in an earlier epoch
    may be somebody else's by now.
    """

    def __init__(self, clock: Clock, lease_us: int) -> None:
        self._clock = clock
        self._span_s = trusted_for_us(lease_us) / SECOND_US
        self.trusted_until = float("-inf")  #: as the clock's `monotonic` counts
        self.epoch = 0

    @property
    def trusted(self) -> bool:
        """Whether the worker may begin new work."""
        return self._clock.monotonic() < self.trusted_until

    @property
    def left_s(self) -> float:
        """How long it may be trusted yet, without another renewal."""
        return self.trusted_until - self._clock.monotonic()

    def lost_since(self, epoch: int) -> bool:
        """Whether what was claimed in that epoch may be somebody else's by now."""
        return epoch != self.epoch or not self.trusted

    def distrust(self) -> None:
        """The store does not know this lease any more."""
        self.trusted_until = float("-inf")

    def renewed(self, asked_at: float, *, lapsed: bool) -> None:
        """A renewal that was asked for at `asked_at` has been granted."""
        if lapsed:
            self.epoch += 1
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
