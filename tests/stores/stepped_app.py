# SPDX-License-Identifier: MIT
"""The app of worker processes on a store whose clock their test sets."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

from packhorse import Packhorse
from tests.end_to_end.tasks import wait_for_file

CLOCK_VARIABLE: Final = "PACKHORSE_TEST_CLOCK"
_AHEAD: Final = struct.Struct("<q")


class SetClock:
    """The machine's clock and what it was set ahead by, which all processes read from one file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_AHEAD.pack(0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _AHEAD.size)

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        _AHEAD.pack_into(self._shared, 0, self._ahead_us() + round(seconds * 1_000_000))

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_us()

    def monotonic(self) -> float:
        return time.monotonic()

    def _ahead_us(self) -> int:
        ahead_us: int = _AHEAD.unpack_from(self._shared)[0]
        return ahead_us


def create_app() -> Packhorse:
    """On the store that the environment names."""
    app = Packhorse(clock=SetClock(Path(os.environ[CLOCK_VARIABLE])))
    app.task(timeout="60s")(wait_for_file)
    return app
