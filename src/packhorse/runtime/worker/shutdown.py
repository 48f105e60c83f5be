# SPDX-License-Identifier: MIT
"""Turn stop signals into phases of shutdown, and end waits when the phase changes.

running ──first signal──▶ draining ──second, or time is up──▶ hurrying ──third──▶ leaving

draining   claim nothing more, give look-ahead back, let running jobs finish
hurrying   cancel what still runs and give it back
leaving    wait for nothing any more
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from packhorse.core.durations import span_text
from packhorse.runtime.supervisor.posix import stop_signals

#: Claim nothing more; claim again.
_QUIET: Final = MappingProxyType({signal.SIGUSR1: True, signal.SIGUSR2: False})
#: The reason of a shutdown that a person at the terminal asked for.
CTRL_C: Final = f"signal {signal.SIGINT.name}"


def what_ctrl_c_does(timeout_us: int) -> str:
    """What it does, for the person who may press it, or has."""
    finish = f"lets running jobs finish ({span_text(timeout_us)})"
    return f"{finish}; twice gives them back, three times leaves"


class Phase(IntEnum):
    """How far a worker is on its way out."""

    RUNNING = 0
    DRAINING = 1
    HURRYING = 2
    LEAVING = 3


class Shutdown:
    """The phase of one worker; it only ever rises."""

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.begun = False  #: claim nothing more
        self.reason = ""
        self.quiet = False  #: claiming is paused; running jobs go on
        self.patient = False  #: running jobs have all the time they may take: a successor works
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this at every change of phase."""
        self._watchers.append(changed)

    def request(self, reason: str) -> None:
        """Stop; asked again, hurry; asked a third time, leave."""
        self.advance(Phase(min(self.phase + 1, Phase.LEAVING)), reason)

    def advance(self, phase: Phase, reason: str = "") -> None:
        """Enter this phase, unless it is reached or passed already."""
        if phase <= self.phase:
            return
        self.phase, self.begun = phase, True
        self.reason = self.reason or reason
        self._changed.set()
        self._changed = asyncio.Event()
        for changed in self._watchers:
            changed()

    async def reached(self, phase: Phase) -> None:
        """Wait until this phase has come."""
        while self.phase < phase:
            await self._changed.wait()

    async def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the next change of phase."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    @contextlib.contextmanager
    def signals(self, set_quiet: Callable[[bool], None]) -> Iterator[None]:
        """Let TERM, INT and HUP ask for a stop, USR1 for quiet, USR2 for work; main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        stopping = stop_signals()
        before = {number: signal.getsignal(number) for number in (*stopping, *_QUIET)}
        for number in stopping:
            loop.add_signal_handler(number, self.request, f"signal {number.name}")
        for number, on in _QUIET.items():
            loop.add_signal_handler(number, set_quiet, on)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # None: set by something other than Python
                    signal.signal(number, handler)
