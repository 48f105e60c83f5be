# SPDX-License-Identifier: MIT
"""Append-only records: every process writes its own files, one JSON line per event.

A line is one `write` to a file opened for appending. It survives the death of the process that
wrote it, and needs no lock, since no other process writes there. Files may be kept small, so that a
process that may write no large file any more (as on a full disk) can still write these.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from packhorse import Context

RECORDS_VARIABLE: Final = "PACKHORSE_TEST_RECORDS"
#: Lines in one file of those that may meet a full disk: at most 32 KiB or so.
SMALL_FILE_LINES: Final = 150


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, by the machine's clock, which no fault steps."""

    event: str  #: `start`, `end`, or a word of the handler's own
    job_id: str
    attempt: int
    fence: int
    pid: int
    at_us: int
    note: str = ""


def machine_us() -> int:
    """The machine's own clock, even where `clockwork` has put another in front of it."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000


class Recorder:
    """The record files of this process; a forked child gets its own.

    The file is opened for each line: nothing has to be closed, and threads share nothing.
    """

    def __init__(self, *, lines_max: int | None = None) -> None:
        self._lines_max = lines_max
        self._written = itertools.count()

    def write(self, event: str, context: Context, note: str = "") -> None:
        job = context.job
        self.write_line(event, job.id, job.attempt, job.fence, note=note)

    def write_line(
        self, event: str, job_id: str, attempt: int = 0, fence: int = 0, *, note: str = ""
    ) -> None:
        line = Line(event, job_id, attempt, fence, os.getpid(), machine_us(), note)
        file = os.open(self._path(line.pid), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(file)

    def _path(self, pid: int) -> Path:
        number = 0 if self._lines_max is None else next(self._written) // self._lines_max
        return Path(os.environ[RECORDS_VARIABLE]) / f"{pid}-{number}.jsonl"


def read_lines(folder: Path) -> list[Line]:
    """Every line written so far, by time."""
    return sorted(_lines(folder), key=lambda line: line.at_us)


def recorded_pids(folder: Path) -> set[int]:
    """The processes that have written anything."""
    return {int(path.name.partition("-")[0]) for path in folder.glob("*.jsonl")}


def _lines(folder: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for path in folder.glob("*.jsonl"):
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]  # a write may be under way
        yield from map(decoder.decode, whole.splitlines())
