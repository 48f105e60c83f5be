# SPDX-License-Identifier: MIT
"""Append-only records: every process writes its own file, one JSON line per event.

A line is one `write` to a file opened for appending. It survives the death of the process that
wrote it, and needs no lock, since nobody else writes there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from packhorse import Context

RECORDS_VARIABLE: Final = "PACKHORSE_TEST_RECORDS"
#: Where the steady clock begins, so that its instants look like dates.
_STEADY_EPOCH_US: Final = 1_700_000_000_000_000


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened in a handler, by the clock the store uses too."""

    event: str  #: `start`, `end`, or a word of the handler's own
    job_id: str
    attempt: int
    fence: int
    pid: int
    at_us: int
    note: str = ""


def system_us() -> int:
    """The machine's clock, which stores judge by unless they are given another."""
    return time.time_ns() // 1000


class SteadyClock:
    """The same in every process of the machine, and never set: for what is judged by microseconds.

    Somebody may set the machine's clock back while a test runs; then what came later would seem to
    have come first.
    """

    def now_us(self) -> int:
        return _STEADY_EPOCH_US + time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class Recorder:
    """The record file of this process; a forked child gets its own."""

    def __init__(self, now_us: Callable[[], int] = system_us) -> None:
        self._now_us = now_us
        self._pid = 0
        self._file = -1

    def write(self, event: str, context: Context, note: str = "") -> None:
        job = context.job
        self.write_line(event, job.id, job.attempt, job.fence, note=note)

    def write_line(
        self, event: str, job_id: str, attempt: int = 0, fence: int = 0, *, note: str = ""
    ) -> None:
        line = Line(event, job_id, attempt, fence, os.getpid(), self._now_us(), note)
        os.write(self._opened(), msgspec.json.encode(line) + b"\n")

    def _opened(self) -> int:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = Path(os.environ[RECORDS_VARIABLE]) / f"{self._pid}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return self._file


def read_lines(folder: Path) -> list[Line]:
    """Every line written so far, by time."""
    return sorted(_lines(folder), key=lambda line: line.at_us)


def _lines(folder: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for path in folder.glob("*.jsonl"):
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]  # a write may be under way
        yield from map(decoder.decode, whole.splitlines())
