# SPDX-License-Identifier: MIT
"""For tests with real processes: start them, hear what their handlers wrote down, end them.

Handlers append to a record file of their own process (see `recording`), so that what happened can
be read afterwards however the process ended. Nothing here sleeps and hopes: `until` looks at what
is there, and gives up by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import packhorse
from packhorse import Packhorse
from packhorse.job import JobRecord
from packhorse.stores.requests import JobFilter
from tests.end_to_end.recording import RECORDS_VARIABLE, Line, read_lines
from tests.end_to_end.tasks import create_app

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[2]
APP: Final = "tests.end_to_end.tasks:create_app"
#: The longest a test waits for anything that should happen soon; a slow machine takes its time.
PATIENCE_S: Final = 50.0
#: Between two looks of `until`.
LOOK_S: Final = 0.01
#: Jobs read in one page.
PAGE: Final = 1_000
#: Pages read at most.
PAGES_MAX: Final = 100


def until(what: str, look: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """What `look` returns once that is neither None nor False nor empty."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {within_s} s in vain for {what}"
        time.sleep(LOOK_S)
    return found


class World:
    """A store, a SQLite file unless a URL is given, a folder of records, and who shares them."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        # A short path, so that the sockets for wake-ups find room beside the file.
        self.file = Path(tempfile.mkdtemp(prefix="packhorse-test-")) / "jobs.db"
        self.url = url or f"sqlite:///{self.file}"
        self.records = folder / "records"
        self.records.mkdir(parents=True)
        self._processes: list[subprocess.Popen[str]] = []

    def worker(
        self, *options: str, app: str = APP, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `packhorse worker`; it logs JSON lines to a file named after its pid."""
        return self.start(
            *("-m", "packhorse", "worker", app, "--log-format", "json", *options),
            environment=environment,
        )

    def start(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start Python with these arguments; its output goes to a file."""
        output = self.folder / f"output-{len(self._processes)}.txt"
        with output.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, **self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
            )
        self._processes.append(process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        """What every process of this world must know."""
        path = os.pathsep.join(map(str, (Path(packhorse.__file__).parents[1], ROOT)))
        return {
            "PACKHORSE_URL": self.url,
            # One process each, so that its pid is the one that handlers write down.
            "PACKHORSE_IN_PROCESS": "1",
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            RECORDS_VARIABLE: str(self.records),
        }

    def output(self, process: subprocess.Popen[str]) -> str:
        """What a process has written so far."""
        number = self._processes.index(process)
        return (self.folder / f"output-{number}.txt").read_text(encoding="utf-8")

    def lines(self, event: str | None = None, job_id: str | None = None) -> list[Line]:
        """What handlers have written down, in the order of time."""
        return [
            line
            for line in read_lines(self.records)
            if event in (None, line.event) and job_id in (None, line.job_id)
        ]

    def heard(
        self, event: str, job_id: str | None = None, *, times: int = 1, within_s: float = PATIENCE_S
    ) -> list[Line]:
        """Wait until an event was written down so often."""

        def look() -> list[Line] | None:
            lines = self.lines(event, job_id)
            return lines if len(lines) >= times else None

        return until(f"{times} × {event} of {job_id or 'any job'}", look, within_s)

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
        """Nobody else can write to the store meanwhile."""
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=PATIENCE_S)
        try:
            connection.execute("begin immediate")
            yield
            connection.execute("rollback")
        finally:
            connection.close()

    def end(self) -> None:
        """End what still runs, each process by its own id, and put the store to the records."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # one that is stopped could not be waited for
                process.kill()
            process.wait(PATIENCE_S)
        place = self.file.parent
        shutil.rmtree(f"{self.file}-wake", ignore_errors=True)
        shutil.move(place, self.folder / "store")  # kept as long as pytest keeps the folder


def all_jobs(app: Packhorse) -> dict[str, JobRecord]:
    """Every job in the app's store, by id."""
    found: dict[str, JobRecord] = {}
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = app.store.run(app.store.inspection.search(JobFilter(), limit=PAGE, after=after))
        found.update((record.id, record) for record in page.jobs)
        after = page.after
        if after is None:
            return found
    raise AssertionError(f"more than {PAGE * PAGES_MAX} jobs")


def ended(process: subprocess.Popen[str], within_s: float = PATIENCE_S) -> int:
    """The exit code of a process that ends by itself."""
    return process.wait(within_s)
