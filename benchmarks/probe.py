# SPDX-License-Identifier: MIT
"""Counts and times jobs inside worker processes, alike for every contestant.

A shared-memory file holds a slot for each process. A handler's first line is `hit()`, which costs
well under a microsecond: it counts, and notes the instant of the first and of the newest job, and
the processor time used at the first job and at the last one. The run reads the file from outside.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Environment variables that name the files to the worker process; without them nothing is noted.
PROBE: Final = "BENCHMARK_PROBE"
STAMPS: Final = "BENCHMARK_STAMPS"

_WORD: Final = 8
_SLOTS_MAX: Final = 64
#: Words of a slot.
_PROCESS, _COUNT, _FIRST, _LAST, _CPU_FIRST, _CPU_LAST, _SLOT_WORDS = range(7)


@dataclass(frozen=True, slots=True)
class Reading:
    """What all processes together have done so far."""

    count: int
    first: float  #: instant of the first job, on the machine's monotonic clock
    last: float
    cpu_seconds: float  #: of the process that ran the last job, between its first and its last

    @property
    def rate(self) -> float:
        """Jobs a second, from the first to the last."""
        return (self.count - 1) / (self.last - self.first)

    @property
    def cpu_us_per_job(self) -> float:
        """Processor time for each job, in microseconds."""
        return self.cpu_seconds / (self.count - 1) * 1e6


def new_probe(path: Path, target: int) -> None:
    """Make an empty file that waits for `target` jobs."""
    words = memoryview(bytearray(_WORD * (1 + _SLOTS_MAX * _SLOT_WORDS))).cast("q")
    words[0] = target
    path.write_bytes(words.tobytes())


def hitter() -> Callable[[], None]:
    """What a handler calls first, in this process."""
    path = os.environ.get(PROBE)
    if path is None:
        return _ignore
    integers, reals, base = _own_slot(path)
    target = integers[0]
    lock = threading.Lock()
    monotonic = time.monotonic
    count_at, last_at = base + _COUNT, base + _LAST
    count = 0

    def hit() -> None:
        nonlocal count
        now = monotonic()
        with lock:
            count += 1
            if count == 1:
                reals[base + _FIRST] = now
                reals[base + _CPU_FIRST] = time.process_time()
            reals[last_at] = now
            integers[count_at] = count
            if count == target:
                reals[base + _CPU_LAST] = time.process_time()

    return hit


def read(path: Path) -> Reading:
    """Add up the slots."""
    data = path.read_bytes()
    integers, reals = memoryview(data).cast("q"), memoryview(data).cast("d")
    bases = range(1, len(integers), _SLOT_WORDS)
    used = [base for base in bases if integers[base + _COUNT]]
    return Reading(
        count=sum(integers[base + _COUNT] for base in used),
        first=min((reals[base + _FIRST] for base in used), default=0.0),
        last=max((reals[base + _LAST] for base in used), default=0.0),
        cpu_seconds=sum(
            reals[base + _CPU_LAST] - reals[base + _CPU_FIRST]
            for base in used
            if reals[base + _CPU_LAST]
        ),
    )


def reached(path: Path, count: int) -> Callable[[], bool]:
    """Asks whether so many jobs have begun."""
    return lambda: read(path).count >= count


def new_stamps(path: Path, count: int) -> None:
    """Make an empty file with a place for the instant of each of `count` jobs."""
    path.write_bytes(bytes(_WORD * count))


def stamper(path: str | None = None) -> Callable[[int], None]:
    """What a handler calls first to note the instant it began at, in the file that is named."""
    path = path or os.environ.get(STAMPS)
    if path is None:
        return _ignore_number
    reals = _shared(path).cast("d")

    def stamp(number: int) -> None:
        reals[number] = time.monotonic()

    return stamp


def read_stamps(path: Path) -> list[float]:
    """The instants noted; 0 where a job has not begun."""
    return list(memoryview(path.read_bytes()).cast("d"))


def _own_slot(path: str) -> tuple[memoryview[int], memoryview[float], int]:
    """Take the first free slot; a lock on the file keeps two processes apart."""
    view = _shared(path)
    integers, reals = view.cast("q"), view.cast("d")
    with Path(path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for base in range(1, len(integers), _SLOT_WORDS):
            if integers[base + _PROCESS] == 0:
                integers[base + _PROCESS] = os.getpid()
                return integers, reals, base
    raise RuntimeError(f"more than {_SLOTS_MAX} processes write to one probe")


def _shared(path: str) -> memoryview:
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0))


def _ignore() -> None:
    """Nothing is measured here."""


def _ignore_number(number: int) -> None:
    """Nothing is measured here."""
