# SPDX-License-Identifier: MIT
"""How many jobs to hold beyond the free slots: enough to hide the store's time, no more.

Look-ahead is at most 50 ms of work, by the measured time a job keeps a slot, and at most one claim
batch, so that priorities, pauses and other workers are overtaken by 50 ms at most.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLAIM_BATCH_MAX", "LookAhead"]

#: Jobs asked for in one claim.
CLAIM_BATCH_MAX: Final = 500
_WORK_S: Final = 0.05
#: Weight of the newest duration in the moving average.
_NEWEST: Final = 0.05
#: The next claim goes when this part of the look-ahead is used up: early enough to overlap with
#: the work that is left, late enough to be worth a round trip.
_REFILL: Final = 4


class LookAhead:
    """The moving average of how long a job keeps its slot, and what follows from it."""

    __slots__ = ("_concurrency", "_suspended", "average_s")

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._suspended = False
        self.average_s = 0.0  #: 0 until the first job has ended

    def measured(self, duration_s: float) -> None:
        """A job has ended after so long."""
        average = self.average_s
        self._suspended = False
        if average:
            self.average_s = average + (duration_s - average) * _NEWEST
        else:
            self.average_s = max(duration_s, 1e-6)

    def suspend(self) -> None:
        """What was held ahead grew old: hold nothing ahead until a job has ended again."""
        self._suspended = True

    @property
    def size(self) -> int:
        """How many jobs may be held beyond those running."""
        if self._suspended or not self.average_s:
            return 0
        return min(int(self._concurrency * _WORK_S / self.average_s), CLAIM_BATCH_MAX)

    def wanted(self, running: int, waiting: int, *, ahead: bool = True) -> int:
        """How many to claim now, 0 while a claim would not be worth it; not ahead, free slots."""
        size = self.size if ahead else 0
        missing = self._concurrency - running + size - waiting
        if waiting and missing < max(1, size // _REFILL):
            return 0
        return max(0, min(missing, CLAIM_BATCH_MAX))
