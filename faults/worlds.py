# SPDX-License-Identifier: MIT
"""A folder of records, a store, and the processes that share them; none outlives its world.

Handlers append to record files of their own process (see `records`), so that what happened can be
read afterwards however the process ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import packhorse
from faults.processes import PATIENCE_S, send, tree_of, until
from faults.records import RECORDS_VARIABLE, Line, read_lines
from packhorse import Packhorse
from packhorse.core.job import JobRecord
from packhorse.stores.requests import JobFilter

ROOT: Final = Path(__file__).resolve().parents[1]
#: One process each, so that its pid is the one that handlers write down.
IN_PROCESS_VARIABLE: Final = "PACKHORSE_IN_PROCESS"
#: Jobs read in one page.
PAGE: Final = 1_000
#: Pages read at most.
_PAGES_MAX: Final = 100


class World:
    """Starts processes, and reads what they have written down."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.records = folder / "records"
        self.records.mkdir(parents=True)
        self._processes: list[subprocess.Popen[str]] = []

    def start_worker(
        self, app: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `packhorse worker`; what it logs goes to a file, as JSON lines."""
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
        return {
            "PACKHORSE_URL": self.url,
            "PYTHONPATH": os.pathsep.join(map(str, (Path(packhorse.__file__).parents[1], ROOT))),
            "PYTHONUNBUFFERED": "1",
            RECORDS_VARIABLE: str(self.records),
        }

    def output(self, process: subprocess.Popen[str]) -> str:
        """What a process has written so far."""
        number = self._processes.index(process)
        return (self.folder / f"output-{number}.txt").read_text(encoding="utf-8")

    def lines(self, event: str | None = None, job_id: str | None = None) -> list[Line]:
        """What has been written down, in the order of time."""
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

    def end(self) -> None:
        """End what still runs, each process by its own id."""
        for process in self._processes:
            if process.poll() is None:
                pids = tree_of(process.pid)
                send(pids, signal.SIGCONT)  # one that is stopped could not be waited for
                send(pids, signal.SIGKILL)
            process.wait(PATIENCE_S)


def all_jobs(app: Packhorse) -> dict[str, JobRecord]:
    """Every job in the app's store, by id."""
    found: dict[str, JobRecord] = {}
    after: str | None = None
    for _ in range(_PAGES_MAX):
        page = app.store.run(app.store.inspection.search(JobFilter(), limit=PAGE, after=after))
        found.update((record.id, record) for record in page.jobs)
        after = page.after
        if after is None:
            return found
    raise AssertionError(f"more than {PAGE * _PAGES_MAX} jobs")


def ended(process: subprocess.Popen[str], within_s: float = PATIENCE_S) -> int:
    """The exit code of a process that ends by itself."""
    return process.wait(within_s)
