# SPDX-License-Identifier: MIT
"""Where tests keep their files: in memory where there is room, on the disk otherwise.

Most of the time of a test on a SQLite file would be spent waiting for the disk, and no test pulls
the plug. `TMPDIR` names another place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
#: Many times what the tests that run at once need.
_ROOM: Final = 2 << 30


@cache
def root() -> Path:
    """The folder that the folders of tests lie in."""
    usual = Path(tempfile.gettempdir())
    if "TMPDIR" in os.environ or not _MEMORY.exists():
        return usual
    found = os.statvfs(_MEMORY)
    has_room = found.f_bavail * found.f_frsize >= _ROOM
    return _MEMORY if has_room and not found.f_flag & os.ST_NOEXEC else usual


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is so short that sockets for wake-ups find room in it."""
    with tempfile.TemporaryDirectory(prefix="ph-", dir=root()) as name:
        yield Path(name)
