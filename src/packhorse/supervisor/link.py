# SPDX-License-Identifier: MIT
"""A worker process's end of what ties it to its supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from typing import Final

import msgspec

from packhorse.supervisor.messages import FromChild, Quiet, Report, encode, read_to_child
from packhorse.supervisor.page import Page

__all__ = ["VARIABLE", "Link", "die_with_parent", "link_from_environment"]

#: Tells a process the descriptors of its supervisor; taken out of the environment once read.
VARIABLE: Final = "PACKHORSE_SUPERVISOR"
#: Read at once from the pipe of commands.
_CHUNK: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1


class Link:
    """Says things to the supervisor, hears from it, and ends with it."""

    def __init__(self, *, up: int, down: int, page: int, faults: int) -> None:
        for descriptor in (up, down, page, faults):
            os.set_inheritable(descriptor, False)
        os.set_blocking(up, False)
        self.page = Page(page)
        self.url: str | None = None  #: of the store, if the supervisor can open it too
        self.app = ""  #: what the app is called
        self._up = up
        self._down = down
        self._faults = faults
        self._unsent = b""
        self._lock = threading.Lock()
        self._hear_quiet: Callable[[bool], None] = lambda _on: None
        self._quiet = False

    def begin(self) -> None:
        """End when the supervisor does, show it where this process died, and hear commands."""
        die_with_parent()
        faulthandler.enable(file=self._faults)
        threading.Thread(target=self._listen, name="packhorse-supervisor", daemon=True).start()

    def keep_log(self) -> None:
        """From now on the last line of the log is where the supervisor finds it."""
        handler = _LastLine(self.page)
        logging.getLogger("packhorse").addHandler(handler)
        root = logging.getLogger()
        if root.handlers:  # one more where there are none would silence Python's last resort
            root.addHandler(handler)

    def on_quiet(self, call: Callable[[bool], None]) -> None:
        """Call this, from another thread, when claims are to stop or to go on."""
        self._hear_quiet = call
        if self._quiet:
            call(True)

    def send(self, message: FromChild) -> None:
        """Tell the supervisor. Never waits: a report it is too slow for is left out."""
        with self._lock:
            if self._unsent and isinstance(message, Report):
                self._flush()
                if self._unsent:
                    return
            self._unsent += encode(message)
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                written = os.write(self._up, self._unsent)
                self._unsent = self._unsent[written:]

    def _listen(self) -> None:
        """Hear commands until the pipe ends: that is when the supervisor has gone."""
        heard = b""
        while chunk := os.read(self._down, _CHUNK):
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                self._obey(line)
        # Whoever supervised this process is gone, and with it whoever kept its lease. Where the
        # kernel does not end it (PDEATHSIG), this does.
        os.kill(os.getpid(), signal.SIGKILL)

    def _obey(self, line: bytes) -> None:
        try:
            command = read_to_child(line)
        except msgspec.DecodeError:  # of a release that knew other commands
            return
        match command:
            case Quiet(on):
                self._quiet = on
                self._hear_quiet(on)


class _LastLine(logging.Handler):
    """Keeps the last line of the log where it outlives this process."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page

    def emit(self, record: logging.LogRecord) -> None:
        """Write it down."""
        with contextlib.suppress(Exception):  # a line that cannot be shown is no reason to fail
            self._page.logged(record.getMessage())


def link_from_environment(environment: MutableMapping[str, str]) -> Link | None:
    """The link to the supervisor that started this process, if one did."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    up, down, page, faults = map(int, text.split(","))
    return Link(up=up, down=down, page=page, faults=faults)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; only Linux can."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended just before
        os.kill(os.getpid(), signal.SIGKILL)
