# SPDX-License-Identifier: MIT
"""Real worker processes, ended and paused with all their children, as a machine that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from benchmarks.processes import ROOT
from comparison.record import note

#: How often children are looked for until no new ones are found.
_LOOKS_MAX: Final = 20


class Worker:
    """One worker of a contestant: a program, or several that count as one."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        copies: int,
        environment: Mapping[str, str],
        folder: Path,
        name: str,
    ) -> None:
        self._command = command
        self._copies = copies
        self._environment = {**os.environ, **environment}
        self._log = folder / f"{name}.log"
        self._record = str(folder / "record")
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, again after `kill`."""
        with self._log.open("ab") as log:
            self._running = [
                subprocess.Popen(
                    self._command,
                    env=self._environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt of the run is passed on by us
                )
                for _ in range(self._copies)
            ]

    @property
    def ended(self) -> bool:
        """Whether it has left by itself."""
        return any(one.poll() is not None for one in self._running)

    def kill(self) -> None:
        """End all its processes at one moment, without a word to any of them."""
        for pid in self._end():
            note(self._record, "killed", pid)

    def stop(self) -> None:
        """End it when the run is over, which is no fault and not recorded."""
        self._end()

    def pause(self) -> list[psutil.Process]:
        """Let all its processes stand still."""
        family = self._freeze()
        for one in family:
            note(self._record, "paused", one.pid)
        return family

    def resume(self, family: Sequence[psutil.Process]) -> None:
        """Let them go on."""
        for one in family:
            note(self._record, "resumed", one.pid)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)

    def _end(self) -> list[int]:
        """Kill what there is without stopping it first: until then none holds back an answer.

        Whatever was started between the look and the kill still belongs to the same session.
        """
        sessions = {process.pid for process in self._running}
        family = self._family()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        ended = [one.pid for one in family]
        for _ in range(_LOOKS_MAX):
            left = [pid for pid in psutil.pids() if pid not in ended and _session(pid) in sessions]
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended += left
        for process in self._running:
            process.wait()
        self._running = []
        return ended

    def _freeze(self) -> list[psutil.Process]:
        """Stop parents before children, until no process is left that could start another."""
        frozen: dict[int, psutil.Process] = {}
        for _ in range(_LOOKS_MAX):
            new = [one for one in self._family() if one.pid not in frozen]
            if not new:
                break
            for one in new:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGSTOP)
                    frozen[one.pid] = one
        return list(frozen.values())

    def _family(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in self._running:
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(process.pid)
                found += [first, *first.children(recursive=True)]
        return found

    def output(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def _session(pid: int) -> int | None:
    """The session of a process, whose id is that of the program that was started for it."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
