# SPDX-License-Identifier: MIT
"""One worker process, as its supervisor sees it: started, told, heard, and reaped."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from packhorse.supervisor.link import VARIABLE
from packhorse.supervisor.messages import (
    FromChild,
    Hello,
    Left,
    Quiet,
    Report,
    Retire,
    ToChild,
    encode,
    read_from_child,
)
from packhorse.supervisor.page import Page, Running
from packhorse.supervisor.stacks import readable_stacks

__all__ = ["ChildProcess", "Death", "memory_kills", "reap_strangers"]

_CHUNK: Final = 65_536
#: How much is read of what a dying process wrote about itself, and how much of that is kept.
_FAULT_BYTES: Final = 200_000
_STACKS_MAX: Final = 8_000
#: What `ru_maxrss` counts in: kibibytes, on macOS bytes.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
_MIB: Final = 1024 * 1024
#: Left-behind processes let go of at one look.
_STRANGERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended, and what is known about why."""

    exit_code: int | None  #: None: a signal ended it
    signal: int | None
    memory_mib: float  #: the most it ever had
    last_log: str = ""
    stacks: str = ""  #: what it wrote about its threads as it died
    running: tuple[Running, ...] = ()  #: what it ran
    unsettled: tuple[Running, ...] = ()  #: what had ended in it, unknown to the store
    at: float = 0.0
    out_of_memory: bool | None = None  #: the kernel killed for memory meanwhile; None: unknown

    @property
    def from_outside(self) -> bool:
        """Whether somebody else killed it: that proves nothing against what it ran."""
        return self.signal == signal.SIGKILL and self.out_of_memory is False

    @property
    def how(self) -> str:
        """In words."""
        if self.signal is None:
            return f"exit code {self.exit_code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"

    @property
    def evidence(self) -> str:
        """All that is known, in one line."""
        last = f"; last log line: {self.last_log}" if self.last_log else ""
        memory = ", out of memory" if self.out_of_memory else ""
        return f"{self.how}{memory}, {self.memory_mib:.0f} MiB at most{last}"


def memory_kills() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def reap_strangers(own: Collection[int]) -> None:
    """As process 1 of a container, let go of what dead processes have left behind."""
    if os.getpid() != 1:
        return
    for _ in range(_STRANGERS_MAX):
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return  # its own are reaped with their evidence
        os.waitpid(ended.si_pid, os.WNOHANG)


class ChildProcess:
    """A started process, the pipes to it, and the page it shares."""

    def __init__(self, command: Sequence[str]) -> None:
        self.page, page = Page.create()
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is reaped
        self.reading, up = os.pipe()
        down, self._writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self._writing, False)
        theirs = (up, down, page, self._faults.fileno())
        # A session of its own: Ctrl-C reaches it through the supervisor alone, and so counts once.
        self._process = subprocess.Popen(  # noqa: S603 - this program
            command,
            pass_fds=theirs,
            start_new_session=True,
            env={**os.environ, VARIABLE: ",".join(map(str, theirs))},
        )
        for descriptor in (up, down, page):
            os.close(descriptor)
        self.pid = self._process.pid
        self._memory_kills = memory_kills()
        self.hello: Hello | None = None
        self.report = Report()
        self.retire: str | None = None
        self.left = False
        self.quiet = False  #: it was told to claim nothing, by its supervisor or by somebody else
        self.death: Death | None = None
        self.silent = False  #: it has closed its end of the pipe
        self.told = 0  #: how many signals to stop it has been sent
        self.started_at = 0.0
        self._heard = b""

    def hear(self) -> Iterator[FromChild]:
        """Read what it has said since."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.reading, _CHUNK):
                *lines, self._heard = (self._heard + chunk).split(b"\n")
                for line in lines:
                    yield from self._understood(line)
            self.silent = True

    def tell(self, command: ToChild) -> None:
        """Give it a command; one that does not read its pipe goes without."""
        self.quiet = command.on
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._writing, encode(command))

    def signal(self, number: int) -> None:
        """Send a signal, if it still lives."""
        if self.death is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def abort(self) -> None:
        """Have it die at once, writing down where its threads are; works while it is blocked."""
        with contextlib.suppress(AttributeError, OSError):  # Linux only; and it may be gone
            hard = resource.prlimit(self.pid, resource.RLIMIT_CORE)[1]
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, hard))  # no image of its memory
        self.signal(signal.SIGABRT)

    def reap(self, now: float) -> Death | None:
        """How it ended, once it has; asked again, None."""
        if self.death is not None:
            return None
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        for _ in self.hear():  # its last words
            pass
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.death = Death(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            memory_mib=usage.ru_maxrss * _RSS_UNIT / _MIB,
            last_log=self.page.last_log,
            stacks=readable_stacks(self._fault_text())[-_STACKS_MAX:],
            running=tuple(self.page.running()),
            unsettled=tuple(self.page.unsettled()),
            at=now,
            out_of_memory=self._out_of_memory(code),
        )
        return self.death

    def _out_of_memory(self, code: int) -> bool | None:
        if code != -signal.SIGKILL or self._memory_kills is None:
            return None
        return memory_kills() != self._memory_kills

    def _fault_text(self) -> str:
        """What it wrote as it died."""
        self._faults.seek(0)
        return self._faults.read(_FAULT_BYTES).decode("utf-8", "replace").strip()

    def _understood(self, line: bytes) -> Iterator[FromChild]:
        try:
            message = read_from_child(line)
        except msgspec.DecodeError:
            return
        match message:
            case Hello():
                self.hello = message
            case Report():
                self.report = message
            case Retire(reason):
                self.retire = reason
            case Left():
                self.left = True
            case Quiet(on):
                self.quiet = on
        yield message

    def close(self) -> None:
        """Let go of the pipes of a process that has ended."""
        os.close(self.reading)
        os.close(self._writing)
        self._faults.close()
