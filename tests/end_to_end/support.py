# SPDX-License-Identifier: MIT
"""For tests with real processes: a world whose workers run the app of `tasks`, one process each.

Nothing here sleeps and hopes: `until` looks at what is there, and gives up by name.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from faults import worlds
from faults.processes import PATIENCE_S, until
from faults.worlds import IN_PROCESS_VARIABLE, ROOT, all_jobs, ended
from packhorse import Packhorse
from packhorse.core.job import JobRecord
from tests.end_to_end.tasks import create_app
from tests.support.folders import root
from tests.support.twins import STORES

__all__ = [
    "APP",
    "PATIENCE_S",
    "ROOT",
    "World",
    "all_jobs",
    "ended",
    "here_and_in_process",
    "until",
]


def here_and_in_process(task: str, server: str) -> list[Any]:
    """Cases of a task whose twin runs in a process, which is the same for every store.

    So an ordinary run tries the task on SQLite and one server, the twin on SQLite, and
    `make test-slow` the rest.
    """
    slow = pytest.mark.slow
    twin = f"{task}_in_process"
    return [
        pytest.param(name, store, id=f"{name}-{store}", marks=() if store in ordinary else slow)
        for name, ordinary in ((task, ("sqlite", server)), (twin, ("sqlite",)))
        for store in STORES
    ]


APP: Final = "tests.end_to_end.tasks:create_app"


class World(worlds.World):
    """A store, a SQLite file unless a URL is given, a folder of records, and who shares them."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        # A short path, so that the sockets for wake-ups find room beside the file.
        self.file = Path(tempfile.mkdtemp(prefix="ph-", dir=root())) / "jobs.db"
        super().__init__(folder, url or f"sqlite:///{self.file}")

    def worker(
        self, *options: str, app: str = APP, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `packhorse worker`; what it logs goes to a file, as JSON lines."""
        return self.start_worker(app, *options, environment=environment)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, IN_PROCESS_VARIABLE: "1"}

    @contextlib.contextmanager
    def app(self) -> Iterator[Packhorse]:
        """The app that the workers run, for submitting and looking."""
        opened = create_app(self.url)
        try:
            yield opened
        finally:
            opened.close()

    def jobs(self) -> dict[str, JobRecord]:
        """Every job there is, by id."""
        with self.app() as app:
            return all_jobs(app)

    @contextlib.contextmanager
    def locked_store(self) -> Iterator[None]:
        """No other process can write to the store meanwhile."""
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=PATIENCE_S)
        try:
            connection.execute("begin immediate")
            yield
            connection.execute("rollback")
        finally:
            connection.close()

    def end(self) -> None:
        """End what still runs, and put the store to the records."""
        super().end()
        shutil.rmtree(f"{self.file}-wake", ignore_errors=True)
        # Kept as long as pytest keeps the folder.
        shutil.move(self.file.parent, self.folder / "store")
