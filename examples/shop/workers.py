# SPDX-License-Identifier: MIT
"""Real worker processes: started, killed and stopped by their own ids, and never left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
APP: Final = "examples.shop.jobs:app"
#: How long the jobs of a killed worker stay its own. In production 30 s; here you are watching.
LEASE: Final = "2s"
CONCURRENCY: Final = 6
#: How long a worker may take to stop when asked to, before it is killed.
STOP_S: Final = 10.0


@dataclass(frozen=True)
class WorkerProcess:
    """One `packhorse worker`."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no goodbye, no clean-up, as when the machine loses power."""
        self.process.kill()
        self.process.wait()


class Workers:
    """The processes this demo has started."""

    def __init__(self, folder: Path, url: str) -> None:
        self.all: list[WorkerProcess] = []
        self._folder = folder
        self._url = url

    def start(self) -> WorkerProcess:
        number = len(self.all) + 1
        log = self._folder / f"worker-{number}.log"
        # One process each: with a parent that outlives it, a killed one would be back at once.
        options = ("--in-process", "--lease", LEASE, "--concurrency", str(CONCURRENCY))
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "packhorse",
                    "worker",
                    APP,
                    *options,
                    "--log-format",
                    "json",
                ],
                cwd=ROOT,
                env={**os.environ, "PACKHORSE_URL": self._url},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
            )
        worker = WorkerProcess(number, process, log)
        self.all.append(worker)
        return worker

    def stop(self) -> None:
        """Ask each to stop, wait, and kill those that do not."""
        running = [worker for worker in self.all if worker.running]
        for worker in running:
            worker.process.terminate()
        for worker in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(STOP_S)
        for worker in running:
            if worker.running:
                worker.kill()


@contextlib.contextmanager
def workers(folder: Path, url: str) -> Iterator[Workers]:
    """Workers that end with this block, however it ends."""
    crew = Workers(folder, url)
    try:
        yield crew
    finally:
        crew.stop()
