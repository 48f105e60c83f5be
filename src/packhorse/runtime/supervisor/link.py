# SPDX-License-Identifier: MIT
"""The link from a worker process to its supervisor: pipes and shared memory."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, MutableMapping
from typing import Final

import msgspec

from packhorse.runtime.supervisor.messages import (
    READ_TO_CHILD,
    FromChild,
    NoSuspects,
    Quiet,
    Report,
    encode,
)
from packhorse.runtime.supervisor.posix import die_with_parent
from packhorse.runtime.supervisor.shared_memory import SharedMemory

#: Names the descriptors in a process's environment; removed once read.
VARIABLE: Final = "PACKHORSE_SUPERVISOR"
#: Is in the environment where counts by queue and task are read.
COUNTING: Final = "PACKHORSE_COUNTING"
_CHUNK: Final = 65_536


class SupervisorLink:
    """Send messages to the supervisor, receive its commands, and end with it."""

    def __init__(self, *, up: int, down: int, memory: int, faults: int) -> None:
        for descriptor in (up, down, memory, faults):
            os.set_inheritable(descriptor, False)
        os.set_blocking(up, False)
        self.memory = SharedMemory(memory)
        self.url: str | None = None  #: of the store, if the supervisor can open it too
        self.app = ""  #: the name of the app
        self.counting = False  #: counts by queue and task are wanted
        self.takes_suspects = True  #: suspects may have crashed a worker, and run alone
        self._up = up
        self._down = down
        self._faults = faults
        self._unsent = b""
        self._lock = threading.Lock()
        self._hear_quiet: Callable[[bool], None] = lambda _on: None
        self._quiet = False

    def begin(self) -> None:
        """End with the supervisor, write stacks for it on a crash, and receive its commands."""
        die_with_parent()
        faulthandler.enable(file=self._faults)
        threading.Thread(target=self._listen, name="packhorse-supervisor", daemon=True).start()

    def keep_log(self) -> None:
        """Copy each log line to shared memory, for the supervisor."""
        handler = _LastLine(self.memory)
        logging.getLogger("packhorse").addHandler(handler)
        root = logging.getLogger()
        if root.handlers:  # a first one would silence Python's last resort
            root.addHandler(handler)

    def on_quiet(self, call: Callable[[bool], None]) -> None:
        """Call this, from another thread, when claiming is to pause or to go on."""
        self._hear_quiet = call
        if self._quiet:
            call(True)

    def send(self, message: FromChild) -> bool:
        """Send a message without waiting; drop a report if the pipe is full, and say so."""
        with self._lock:
            if self._unsent and isinstance(message, Report):
                self._flush()
                if self._unsent:
                    return False
            self._unsent += encode(message)
            self._flush()
            return True

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                written = os.write(self._up, self._unsent)
                self._unsent = self._unsent[written:]

    def _listen(self) -> None:
        """Receive commands until the pipe ends, which is when the supervisor has gone."""
        heard = b""
        while chunk := os.read(self._down, _CHUNK):
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                self._obey(line)
        # End with the supervisor, which kept the lease, where the kernel (PDEATHSIG) does not.
        os.kill(os.getpid(), signal.SIGKILL)

    def _obey(self, line: bytes) -> None:
        try:
            command = READ_TO_CHILD.decode(line)
        except msgspec.DecodeError:  # of a release that knew other commands
            return
        match command:
            case Quiet(on):
                self._quiet = on
                self._hear_quiet(on)
            case NoSuspects():
                self.takes_suspects = False


class _LastLine(logging.Handler):
    """Keep the last line of the log in shared memory."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__()
        self._memory = memory

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        with contextlib.suppress(Exception):  # a line that cannot be formatted is no reason to fail
            self._memory.logged(record.getMessage())


def link_from_environment(environment: MutableMapping[str, str]) -> SupervisorLink | None:
    """Open the link to the supervisor that started this process, if one did."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    up, down, memory, faults = map(int, text.split(","))
    link = SupervisorLink(up=up, down=down, memory=memory, faults=faults)
    link.counting = environment.pop(COUNTING, None) is not None
    return link
