# SPDX-License-Identifier: MIT
"""Found by every Python of the rig as it starts: lets the rig step the clock of a running process.

The clock is ahead of the machine's by as many microseconds as eight bytes of a shared file say.
Only `time.time_ns`, which is where Packhorse reads the time of day; spans are measured otherwise.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_path = os.environ.get("PACKHORSE_FAULTS_CLOCK")
if _path is not None:
    with Path(_path).open("rb") as _file:
        _shared = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _machine_ns = time.time_ns

    def _time_ns() -> int:
        return _machine_ns() + 1000 * int.from_bytes(_shared[:8], "little", signed=True)

    time.time_ns = _time_ns
