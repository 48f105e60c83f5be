# SPDX-License-Identifier: MIT
"""Clocks that the rig can step: of the processes it starts, and of its own app."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from faults.records import machine_us

#: Names the file by which the clock of a process is ahead; see `clockwork/sitecustomize.py`.
CLOCK_VARIABLE: Final = "PACKHORSE_FAULTS_CLOCK"
#: Must be on the path of every Python whose clock is to be stepped.
CLOCKWORK: Final = Path(__file__).resolve().parent / "clockwork"


class ClockFile:
    """Eight bytes that say how many microseconds a clock is ahead of the machine's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8))

    @property
    def offset_us(self) -> int:
        return int.from_bytes(self.path.read_bytes(), "little", signed=True)

    def set(self, offset_us: int) -> None:
        """Step the clock of every process that has mapped the file: one write in place."""
        file = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(file, offset_us.to_bytes(8, "little", signed=True), 0)
        finally:
            os.close(file)


class SteppedClock:
    """For an app in the rig's own process."""

    def __init__(self, file: ClockFile) -> None:
        self._file = file

    def now_us(self) -> int:
        return machine_us() + self._file.offset_us

    def monotonic(self) -> float:
        return time.monotonic()
