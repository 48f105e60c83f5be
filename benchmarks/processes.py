# SPDX-License-Identifier: MIT
"""Programs that a run starts, watches, and ends by their own ids."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psutil

#: Where every program runs: our own modules are found from here.
ROOT: Final = Path(__file__).resolve().parent.parent
#: How long a program may take to end when told to; then it is killed.
STOP_SECONDS_MAX: Final = 15
#: How long a program may take for one answer; then it is killed.
ANSWER_SECONDS_MAX: Final = 300
#: How much of a failed program's output is shown.
_TAIL_CHARACTERS: Final = 2000


class Program:
    """One running program with its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def cpu_seconds(self) -> float:
        """Processor time used so far by it and its living children."""
        times = [one.cpu_times() for one in self._family()]
        return float(sum(one.user + one.system for one in times))

    def resident_bytes(self) -> int:
        """Memory held by it and its children."""
        return int(sum(one.memory_info().rss for one in self._family()))

    def output(self) -> str:
        """The end of what it wrote, for an error message."""
        with suppress(OSError):
            return self._log.read_text(errors="replace")[-_TAIL_CHARACTERS:]
        return ""

    def stop(self) -> None:
        """Ask it to end; kill it, and what it left behind, when it does not."""
        family = self._family()
        if not self.ended:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        _kill_rest(family)
        self._process.wait()

    def kill(self) -> None:
        """End it and its children at once."""
        _kill_rest(self._family())
        self._process.wait()

    def _family(self) -> list[psutil.Process]:
        import psutil  # only where programs run: the statistics do without

        try:
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _kill_rest(family: Sequence[psutil.Process]) -> None:
    """End what is left; each knows its start time, so that a reused id is left alone."""
    import psutil

    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, gently: bool = True
) -> Iterator[Program]:
    """Run a program in the background, and end it: it is asked to, or killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt of the run is passed on by us, once
        )
    program = Program(process, log)
    try:
        yield program
    finally:
        if gently:
            program.stop()
        else:
            program.kill()


class Conversation:
    """A program that answers each line it is given with one of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def ask(self, line: str) -> bytes:
        """Give it a line, wait for the answer."""
        assert self._process.stdin is not None, "started with pipes"
        assert self._process.stdout is not None, "started with pipes"
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; what it said last is below
        patience = threading.Timer(ANSWER_SECONDS_MAX, self._process.kill)
        patience.start()
        answer = self._process.stdout.readline()
        patience.cancel()
        if not answer:
            text = self._log.read_text(errors="replace")[-_TAIL_CHARACTERS:]
            raise RuntimeError(f"a program ended instead of answering:\n{text}")
        return answer


@contextmanager
def conversing(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[Conversation]:
    """Start a program to talk with; it ends with its input, or is killed when it does not."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield Conversation(process, log)
    finally:
        assert process.stdin is not None, "started with pipes"
        assert process.stdout is not None, "started with pipes"
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def run_to_end(
    command: Sequence[str], *, environment: Mapping[str, str], seconds_max: float
) -> bytes:
    """Run a program and return what it printed."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds_max,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace")[-_TAIL_CHARACTERS:]
        raise RuntimeError(f"{' '.join(command)} failed:\n{text}") from error
    return done.stdout
