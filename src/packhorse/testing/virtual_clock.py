# SPDX-License-Identifier: MIT
"""A clock that stands still until it is told to move."""

from __future__ import annotations

import threading
from typing import Final

from packhorse.clock import SECOND_US

__all__ = ["VirtualClock"]

#: The first instant of 2030 in UTC: far from 0, so that nothing works by accident.
_START_US: Final = 1_893_456_000 * SECOND_US


class VirtualClock:
    """Time for tests and the simulator; the instant and the monotonic seconds move together."""

    def __init__(self, start_us: int = _START_US) -> None:
        self._lock = threading.Lock()
        self._start_us = start_us
        self._passed_us = 0
        self._stepped_us = 0

    def now_us(self) -> int:
        with self._lock:
            return self._start_us + self._passed_us + self._stepped_us

    def monotonic(self) -> float:
        with self._lock:
            return self._passed_us / SECOND_US

    def advance(self, seconds: float) -> None:
        """Let time pass, which it only ever does forwards."""
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards by {seconds} s; use step()")
        with self._lock:
            self._passed_us += round(seconds * SECOND_US)

    def step(self, seconds: float) -> None:
        """Set the instant forwards or back, as an operator might; no time passes."""
        with self._lock:
            self._stepped_us += round(seconds * SECOND_US)
