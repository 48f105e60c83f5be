# SPDX-License-Identifier: MIT
"""The store's clock as seen from here, so that the age of what it granted can be told."""

from __future__ import annotations

from packhorse.clock import SECOND_US

__all__ = ["StoreTime"]


class StoreTime:
    """How far the store's clock is ahead of this process's monotonic one.

    An answer that says what time it was there leaves the difference open by as long as it took. So
    what was known before is kept where the newest answer allows it: one that came late, because
    this process was stopped or the store was busy, is judged by those that came promptly.
    """

    def __init__(self) -> None:
        self._offset_us: int | None = None

    def offset_us(self, now_us: int, asked_at: float, answered_at: float) -> int:
        """The difference, after an answer that gives the store's time as `now_us`."""
        least_us = now_us - int(answered_at * SECOND_US)
        most_us = now_us - int(asked_at * SECOND_US)
        known_us = least_us if self._offset_us is None else self._offset_us
        self._offset_us = max(least_us, min(known_us, most_us))
        return self._offset_us
