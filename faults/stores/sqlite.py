# SPDX-License-Identifier: MIT
"""SQLite: every process of the machine judges by the same clock, which is the machine's."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from faults.clocks import ClockFile
from faults.stores.ground import Door, door_folder

#: How long the lock is waited for; the rig has others to let go meanwhile.
_LOCK_S: Final = 0.2


class SqliteGround:
    """A file in a folder of its own."""

    name = "sqlite"
    can_restart = False
    can_step = True

    def __init__(self, folder: Path) -> None:
        # A short path, so that the sockets for wake-ups find room beside the file.
        self.file = Path(tempfile.mkdtemp(prefix="packhorse-faults-")) / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self.clock = ClockFile(door_folder(folder) / "machine")
        self._folder = folder
        self._lock: sqlite3.Connection | None = None

    def door(self, name: str) -> Door:
        return Door(self.url, self.clock)

    def restart(self) -> None:
        raise NotImplementedError("a file has no server")

    def pause(self) -> bool:
        """Hold the lock that every writer needs; a worker that is stopped may have it already."""
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=_LOCK_S)
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            connection.close()
            return False
        self._lock = connection
        return True

    def resume(self) -> None:
        if self._lock is not None:
            self._lock.rollback()
            self._lock.close()
            self._lock = None

    def step(self, offset_us: int) -> None:
        self.clock.set(offset_us)

    def facts(self) -> dict[str, str]:
        return {"store": f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL"}

    def close(self) -> None:
        """Keep the file with the records."""
        self.resume()
        shutil.rmtree(f"{self.file}-wake", ignore_errors=True)
        shutil.move(self.file.parent, self._folder / "store")
