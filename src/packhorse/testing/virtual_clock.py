# SPDX-License-Identifier: MIT
"""A clock that moves only when a test moves it."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Final

from packhorse.core.clock import SECOND_US, from_datetime

#: The first instant of 2030 in UTC: far from 0, so that nothing works by accident.
_START_US: Final = 1_893_456_000 * SECOND_US


class VirtualClock:
    """A clock for tests; its instant and its monotonic seconds move together.

    A burst that waits for a retry or a limit, and an idle wait, move it as well.
    """

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
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards by {seconds} s; use step()")
        with self._lock:
            self._passed_us += round(seconds * SECOND_US)

    def pass_idle(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self.advance(seconds)

    def set(self, moment: datetime) -> None:
        """Let time pass until this instant; step back to an earlier one."""
        seconds = (from_datetime(moment) - self.now_us()) / SECOND_US
        (self.advance if seconds > 0 else self.step)(seconds)

    def step(self, seconds: float) -> None:
        """Set the clock forwards or back, as an operator might; no time passes."""
        with self._lock:
            self._stepped_us += round(seconds * SECOND_US)
