# SPDX-License-Identifier: MIT
"""A worker process as its supervisor sees it, and how it ended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from packhorse.core.job import AttemptError
from packhorse.logs.lines import follow
from packhorse.runtime.supervisor.link import VARIABLE
from packhorse.runtime.supervisor.liveness import restart_delay_s
from packhorse.runtime.supervisor.messages import (
    READ_FROM_CHILD,
    FromChild,
    Hello,
    Left,
    Quiet,
    Report,
    Retire,
    ToChild,
    encode,
)
from packhorse.runtime.supervisor.shared_memory import Running, SharedMemory

_CHUNK: Final = 65_536
#: Bytes read of what a dying process wrote about itself, and characters kept.
_FAULT_BYTES: Final = 200_000
_STACKS_MAX: Final = 8_000
_MESSAGE_MAX: Final = 2_000
#: The unit of `ru_maxrss`: a kibibyte, on macOS a byte.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
_MIB: Final = 1024 * 1024
#: A process that lived this long did not die early.
_LONG_LIFE_S: Final = 10.0
#: Frames from here outward are not the user's.
_OWN: Final = ("/packhorse/runtime/worker/", "/packhorse/cli/", "/packhorse/runtime/supervisor/")
#: Frames of threads that wait for work.
_IDLE: Final = ("/packhorse/stores/", "/concurrent/futures/thread.py", "/threading.py")
_FRAME: Final = "  File "


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended, and what is known about why."""

    exit_code: int | None  #: None: a signal ended it
    signal: int | None
    memory_mib: float  #: the most it ever had
    last_log: str = ""
    stacks: str = ""  #: of its threads, written as it died
    running: tuple[Running, ...] = ()  #: jobs it ran
    unsettled: tuple[Running, ...] = ()  #: jobs that had ended in it, unknown to the store
    at: float = 0.0
    out_of_memory: bool | None = None  #: the kernel killed for memory meanwhile; None: unknown
    words: str = ""  #: how it ended, where neither code nor signal says it

    @classmethod
    def reaped(
        cls, status: int, usage: resource.struct_rusage, faults: IO[bytes], **more: Any
    ) -> Death:
        """Describe a process from what `os.wait4` returned and what it wrote as it died."""
        code = os.waitstatus_to_exitcode(status)
        faults.seek(0)
        text = faults.read(_FAULT_BYTES).decode("utf-8", "replace").strip()
        return cls(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            memory_mib=usage.ru_maxrss * _RSS_UNIT / _MIB,
            stacks=readable_stacks(text)[-_STACKS_MAX:],
            **more,
        )

    def attempt_error(self, pid: int) -> AttemptError:
        """Describe the end of an attempt that ran in the process."""
        message = f"its process {pid} ended while it ran: {self.evidence}"
        return AttemptError(
            type="WorkerLost",
            message=message[:_MESSAGE_MAX],
            code="WORKER_LOST",
            reason="worker_lost",
            stack=self.stacks or None,
        )

    @property
    def from_outside(self) -> bool:
        """Whether it was killed from outside: that proves nothing against its jobs."""
        return self.signal == signal.SIGKILL and self.out_of_memory is False

    @property
    def how(self) -> str:
        """The exit code or signal in words."""
        if self.words:
            return self.words
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
    """Return how many processes the kernel has killed for memory; None if it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


class ChildProcess:
    """A started process, the pipes to it, and the memory it shares."""

    def __init__(self, command: Sequence[str]) -> None:
        self.memory, memory = SharedMemory.create()
        try:
            self._start(command, memory)
        except BaseException:
            self.memory.close()
            raise
        finally:
            os.close(memory)
        self._ours.callback(follow(self.memory.lines))
        self.pid = self._process.pid
        self._memory_kills = memory_kills()
        self.hello: Hello | None = None
        self.report = Report()
        self.retire: str | None = None
        self.left = False
        self.finished = False  #: it has done all that it was started for
        self.quiet = False  #: it was told to claim nothing, by its supervisor or by a signal
        self.death: Death | None = None
        self.silent = False  #: it has closed its end of the pipe
        self.told = 0  #: stop signals it has been sent
        self.started_at = 0.0
        self._heard = b""

    def _start(self, command: Sequence[str], memory: int) -> None:
        """Start it. Whatever fails: their ends are closed in any case, ours if there is none."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._faults = ours.enter_context(tempfile.TemporaryFile())
            self.reading, up = os.pipe()
            ours.callback(os.close, self.reading)
            theirs.callback(os.close, up)
            down, self._writing = os.pipe()
            ours.callback(os.close, self._writing)
            theirs.callback(os.close, down)
            os.set_blocking(self.reading, False)
            os.set_blocking(self._writing, False)
            descriptors = (up, down, memory, self._faults.fileno())
            # In its own session, so that Ctrl-C reaches it only once, through the supervisor.
            self._process = subprocess.Popen(  # noqa: S603 - this program
                command,
                pass_fds=descriptors,
                start_new_session=True,
                env={**os.environ, VARIABLE: ",".join(map(str, descriptors))},
            )
            self._ours = ours.pop_all()

    def hear(self) -> Iterator[FromChild]:
        """Read its new messages."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.reading, _CHUNK):
                *lines, self._heard = (self._heard + chunk).split(b"\n")
                for line in lines:
                    yield from self._understood(line)
            self.silent = True

    def tell(self, command: ToChild) -> None:
        """Send a command; it is lost if the process does not read its pipe."""
        if isinstance(command, Quiet):
            self.quiet = command.on
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._writing, encode(command))

    def signal(self, number: int) -> None:
        """Send a signal if the process still lives."""
        if self.death is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def abort(self) -> None:
        """Abort the process, so that it writes its stacks; this works while it is blocked."""
        with contextlib.suppress(AttributeError, OSError):  # Linux only; and it may be gone
            hard = resource.prlimit(self.pid, resource.RLIMIT_CORE)[1]
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, hard))  # no image of its memory
        self.signal(signal.SIGABRT)

    def reap(self, now: float) -> Death | None:
        """Return how it ended, once; None before and after."""
        if self.death is not None:
            return None
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        for _ in self.hear():  # its last messages
            pass
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.death = Death.reaped(
            status,
            usage,
            self._faults,
            last_log=self.memory.last_log,
            running=tuple(self.memory.running()),
            unsettled=tuple(self.memory.unsettled()),
            at=now,
            out_of_memory=self._out_of_memory(code),
        )
        return self.death

    def _out_of_memory(self, code: int) -> bool | None:
        if code != -signal.SIGKILL or self._memory_kills is None:
            return None
        return memory_kills() != self._memory_kills

    def _understood(self, line: bytes) -> Iterator[FromChild]:
        try:
            message = READ_FROM_CHILD.decode(line)
        except msgspec.DecodeError:
            return
        match message:
            case Hello():
                self.hello = message
            case Report():
                self.report = message.heard_after(self.report)
            case Retire(reason):
                self.retire = reason
            case Left(finished):
                self.left, self.finished = True, finished
            case Quiet(on):
                self.quiet = on
        yield message

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self._ours.close()


def readable_stacks(text: str) -> str:
    """Keep the threads that were in user code, each down to the frame that called the handler."""
    sections = [_cut(section) for section in text.split("\n\n")]
    return "\n\n".join(section for section in sections if section)


def _cut(section: str) -> str:
    lines = section.splitlines()
    frames = [line for line in lines if line.startswith(_FRAME)]
    if not frames:
        # The first line says what happened; the last ones list modules.
        return section if section.startswith("Fatal") else ""
    kept = []
    for line in lines:
        if line.startswith(_FRAME) and any(own in line for own in _OWN):
            break
        kept.append(line)
    of_users = [
        line for line in kept if line.startswith(_FRAME) and not any(own in line for own in _IDLE)
    ]
    return "\n".join(kept) if of_users else ""


@dataclass(slots=True, eq=False)
class ProcessSlot:
    """A place for one process of a supervisor, and what outlives the process."""

    number: int
    child: ChildProcess | None = None
    start_at: float = 0.0
    quick_deaths: int = 0
    restarts: int = 0
    closed: bool = False  #: its process has done all it was started for
    quiet: bool = False  #: its process claims nothing, and its successor will not either

    def wait_s(self, lived_s: float, *, begun: bool) -> float:
        """Return how long it stays empty after a process that lived so long."""
        self.quick_deaths = 0 if lived_s >= _LONG_LIFE_S else self.quick_deaths + 1
        return restart_delay_s(self.quick_deaths, begun=begun)
