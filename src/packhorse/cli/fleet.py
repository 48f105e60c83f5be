# SPDX-License-Identifier: MIT
"""As many worker processes as are wanted, more and fewer over time; no running job is stopped.

A process that is no longer wanted is told to stop once, and then has all the time its jobs need:
the processes run without a shutdown timeout, and this parent keeps it for them when everything is
to stop. One that ends by itself is replaced, unless it ended as soon as it had begun.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from packhorse.cli.exits import ExitCode
from packhorse.cli.render import note
from packhorse.clock import Clock

__all__ = ["ENDLESS", "Fleet", "Process", "run_fleet", "start_process"]

#: The shutdown timeout of the processes: none; see above.
ENDLESS: Final = "3650d"
#: How often the store is asked how much there is to do.
_LOOK_S: Final = 1.0
#: A process that ends sooner than this by itself would do so again.
_STILLBORN_S: Final = 5.0
#: How many signals ask a worker to stop, and to hurry.
_STOP, _HURRY = 1, 2
#: How a process ends that was hurried, when nobody but this parent hurried it.
_HURRIED: Final = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


class Process(Protocol):
    """A worker process, as far as it matters here; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...


def start_process(command: Sequence[str]) -> Process:
    """Start a worker in a session of its own: Ctrl-C reaches it through here alone."""
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program


@dataclass(slots=True)
class _Child:
    process: Process
    started_s: float
    told: int = 0  #: how many signals it has been sent
    retiring: bool = False


class Fleet:
    """The processes there are, and what they have been told."""

    def __init__(self, start: Callable[[], Process], clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._children: list[_Child] = []
        self._received: list[int] = []
        self._stopping_s: float | None = None
        self.quiet = False  #: nobody claims, and nobody is started
        self.exit_code = int(ExitCode.OK)

    @property
    def empty(self) -> bool:
        """Whether no process is left."""
        return not self._children

    @property
    def stopping(self) -> bool:
        """Whether everything is to stop."""
        return self._stopping_s is not None

    @property
    def working(self) -> int:
        """The processes that have not been told to stop."""
        return sum(not child.retiring for child in self._children)

    def stop(self, *signals: int) -> None:
        """Everything is to stop; a second signal hurries, a third leaves."""
        self._received += signals
        if self._stopping_s is None:
            self._stopping_s = self._clock.monotonic()

    def hand_on(self, number: int) -> None:
        """Tell all to stop claiming (SIGUSR1), or to go on (SIGUSR2)."""
        self.quiet = number == signal.SIGUSR1
        for child in self._children:
            child.process.send_signal(number)

    def resize(self, wanted: int) -> None:
        """Start processes until there are so many, or let the youngest drain."""
        if self.working != wanted:
            note(f"Worker processes: {self.working} running, {wanted} wanted")
        while self.working < wanted:
            self._children.append(_Child(self._start(), self._clock.monotonic()))
        # In the order they were started, so the youngest are the ones too many.
        for child in [child for child in self._children if not child.retiring][wanted:]:
            child.retiring = True
            self._tell(child, _STOP)

    def keep_time(self, shutdown_timeout_s: float) -> None:
        """Hand on what is to be told, and hurry those that take too long to stop."""
        if self._stopping_s is None:
            return
        late = self._clock.monotonic() - self._stopping_s >= shutdown_timeout_s
        asked = max(len(self._received), _STOP, _HURRY if late else 0)
        for child in self._children:
            self._tell(child, asked)

    def reap(self) -> None:
        """Let go of processes that have ended."""
        for child in list(self._children):
            status = child.process.poll()
            if status is not None:
                self._children.remove(child)
                self._note_end(child, status)

    def _tell(self, child: _Child, signals: int) -> None:
        """Send what it has not been sent; one that drains already needs no first signal."""
        for index in range(child.told, signals):
            heard = self._received[index : index + 1]
            child.process.send_signal(heard[0] if heard else signal.SIGTERM)
        child.told = max(child.told, signals)

    def _note_end(self, child: _Child, status: int) -> None:
        pid, code = child.process.pid, status if status >= 0 else int(ExitCode.FAILED)
        if child.told:
            # Told before it listened, it dies of the signal; hurried by us, it says so: no failure.
            hurried = status in _HURRIED and len(self._received) < _HURRY
            if -status not in (signal.SIGTERM, signal.SIGINT) and not hurried:
                self.exit_code = max(self.exit_code, code)
            return
        how = f"exit code {status}" if status >= 0 else f"signal {-status}"
        if code and self._clock.monotonic() - child.started_s < _STILLBORN_S:
            note(f"Worker process {pid} ended with {how} as soon as it had begun; leaving.")
            self.exit_code = max(self.exit_code, code)
            self.stop()
        elif not self.stopping:
            note(f"Worker process {pid} ended with {how}; another one takes its place.")


def run_fleet(
    start: Callable[[], Process],
    wanted: Callable[[], int],
    *,
    shutdown_timeout_s: float,
    clock: Clock,
) -> int:
    """Keep as many processes as are wanted until told to stop; the exit code."""
    fleet, changed = Fleet(start, clock), threading.Event()
    with _heard(fleet, changed):
        while not (fleet.stopping and fleet.empty):
            if not (fleet.stopping or fleet.quiet):
                fleet.resize(wanted())
            fleet.keep_time(shutdown_timeout_s)
            changed.wait(_LOOK_S)
            changed.clear()
            fleet.reap()
    return fleet.exit_code


@contextmanager
def _heard(fleet: Fleet, changed: threading.Event) -> Iterator[None]:
    """Hear signals to stop, and of processes that end."""

    def stop(number: int, _frame: object) -> None:
        fleet.stop(number)
        changed.set()

    def hand_on(number: int, _frame: object) -> None:
        fleet.hand_on(number)
        changed.set()

    def ended(_number: int, _frame: object) -> None:
        changed.set()

    handlers: dict[int, Callable[[int, Any], None]] = {
        signal.SIGTERM: stop,
        signal.SIGINT: stop,
        signal.SIGUSR1: hand_on,
        signal.SIGUSR2: hand_on,
        signal.SIGCHLD: ended,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
