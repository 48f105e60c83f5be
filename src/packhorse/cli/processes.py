# SPDX-License-Identifier: MIT
"""Several worker processes under one: started together, signalled together, waited for.

This parent is deliberately small. It restarts nothing, and does not notice a process that hangs;
what a process leaves behind when it dies is rescued by the others through the store.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from packhorse.cli.exits import ExitCode
from packhorse.cli.render import note

__all__ = ["run_processes", "worker_command"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Of `packhorse worker`, each with one value.
_VALUES: Final = (
    *("concurrency", "max_jobs", "lease", "shutdown_timeout", "default_timeout"),
    *("log_level", "log_format"),
)


def worker_command(app_name: str | None, flags: Mapping[str, Any]) -> list[str]:
    """The command line of one process, with every choice written out."""
    command = [sys.executable, "-m", "packhorse", "worker", "--processes", "1"]
    for names in flags["queues"]:
        command += ["--queues", ",".join(names)]
    for name in _VALUES:
        if flags[name] is not None:
            command += [f"--{name.replace('_', '-')}", str(flags[name])]
    if flags["burst"]:
        command.append("--burst")
    command.append("--banner" if flags["banner"] else "--no-banner")
    return command if app_name is None else [*command, app_name]


def run_processes(commands: Sequence[Sequence[str]]) -> int:
    """Start a process per command, hand on signals, and return when all have ended."""
    children = _Children()
    with children.signals_handed_on():
        for command in commands:
            if not children.stopping:
                children.start(command)
        note(f"Started {children.count} worker processes: {children.pids}")
        codes = [_told(pid, status, children) for pid, status in children.ends()]
    return max(codes, default=ExitCode.OK)


class _Children:
    """The processes, and the signals that were meant for them."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._received: list[int] = []
        self._handed_on: dict[int, int] = {}  #: how many of the received each has been sent

    @property
    def stopping(self) -> bool:
        return bool(self._received)

    @property
    def count(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> str:
        return ", ".join(map(str, self._processes))

    def start(self, command: Sequence[str]) -> None:
        # A session of its own: Ctrl-C reaches it through here alone, and so counts once.
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program
        self._processes[process.pid] = process
        self._hand_on()  # a signal may have come while it was being started

    def ends(self) -> Iterator[tuple[int, int]]:
        """The process and its exit status, one by one as they end."""
        for _ in range(self.count):
            pid, status = os.wait()
            self._processes[pid].returncode = os.waitstatus_to_exitcode(status)
            yield pid, self._processes[pid].returncode

    def was_asked_for(self, number: int) -> bool:
        return number in self._received

    @contextmanager
    def signals_handed_on(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, _frame: object) -> None:
        self._received.append(number)
        self._hand_on()

    def _hand_on(self) -> None:
        for pid, process in list(self._processes.items()):
            sent = self._handed_on.get(pid, 0)
            self._handed_on[pid] = len(self._received)
            for number in self._received[sent:]:
                process.send_signal(number)


def _told(pid: int, status: int, children: _Children) -> int:
    """Say how a process ended; the exit code that stands for it."""
    if status >= 0:
        if status:
            note(f"Worker process {pid} ended with exit code {status}.")
        return status
    if children.was_asked_for(-status):
        return ExitCode.OK  # it was told to stop before it had begun to listen
    note(f"Worker process {pid} was killed by signal {-status}; the others go on without it.")
    return ExitCode.FAILED
