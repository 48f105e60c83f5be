# SPDX-License-Identifier: MIT
"""Who is measured: Packhorse, the bare loop and the peer, each at a durability."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from benchmarks.processes import python, run_to_end
from benchmarks.workloads import bare_sqlite
from benchmarks.workloads.producer import BARE_FILE, BARE_SYNCHRONOUS
from packhorse.core.job import JobStatus
from packhorse.stores import open_store
from packhorse.stores.protocol import Store

__all__ = [
    "BARE",
    "CONCURRENCY",
    "DURABILITIES",
    "HUEY",
    "PACKHORSE",
    "Contestant",
    "bare",
    "completed",
    "huey",
    "huey_synchronous",
    "ours_at",
    "packhorse",
    "packhorse_store",
]

#: Each against the like: FULL waits for the disk at every commit, NORMAL does not.
DURABILITIES: Final = ("FULL", "NORMAL")
#: Slots of a Packhorse worker: its default.
CONCURRENCY: Final = 100
_ANSWER_SECONDS_MAX: Final = 30
PACKHORSE, BARE, HUEY = "Packhorse", "bare loop", "Huey"


@dataclass(frozen=True, slots=True)
class Contestant:
    """How one contestant is set up in a folder, started, and asked what it has done."""

    label: str
    program: str  #: its name among the producers
    environment: Callable[[Path], Mapping[str, str]]
    worker: Callable[[Path], list[str]]
    finished: Callable[[Path], int]
    producer: Callable[[str], list[str]] | None = None  #: the command for a way; None: our own
    pace: float | None = None  #: of a peer: its rough speed, by which it is given fewer jobs
    several: bool = False  #: its jobs may run in several processes, so they are looked at as one

    @property
    def is_peer(self) -> bool:
        return self.pace is not None


def packhorse(synchronous: str, *, lines: str = "quiet", slots: int = CONCURRENCY) -> Contestant:
    """Packhorse, with a JSON log line at each start and end if `lines` is `lines`."""
    extra = " with log lines" if lines == "lines" else ""
    return Contestant(
        label=f"{PACKHORSE} {synchronous}{extra}",
        program="packhorse",
        environment=lambda folder: {"PACKHORSE_URL": _url(folder, synchronous)},
        worker=lambda _: python("benchmarks.workloads.packhorse_app", str(slots), lines),
        finished=lambda folder: completed(_url(folder, synchronous)),
    )


def bare(synchronous: str, batch: int) -> Contestant:
    """The bare loop, claiming `batch` jobs at a time."""
    return Contestant(
        label=f"{BARE} {synchronous}",
        program="bare",
        environment=lambda folder: {
            BARE_FILE: str(folder / "bare.db"),
            BARE_SYNCHRONOUS: synchronous,
        },
        worker=lambda folder: python(
            "benchmarks.workloads.bare_sqlite", str(folder / "bare.db"), synchronous, str(batch)
        ),
        finished=_bare_finished,
    )


def huey() -> Contestant:
    """The peer, as it comes: one worker thread, its fastest setting on SQLite, durable commits."""
    return Contestant(
        label=f"{HUEY} FULL",
        program="huey",
        environment=lambda folder: {"BENCHMARK_HUEY_FILE": str(folder / "huey.db")},
        worker=lambda _: [
            *(str(Path(sys.executable).with_name("huey_consumer")), "--quiet", "--workers", "1"),
            "benchmarks.workloads.huey_app.huey",
        ],
        finished=_huey_finished,
        pace=1.0,
    )


def huey_synchronous(folder: Path) -> str:
    """The durability of the peer's own connections, as they say."""
    printed = run_to_end(
        python("benchmarks.workloads.huey_app"),
        environment=huey().environment(folder),
        seconds_max=_ANSWER_SECONDS_MAX,
    )
    return printed.decode().strip()


def packhorse_store(folder: Path, synchronous: str = "FULL") -> Store:
    """The store that Packhorse uses in a folder, to be closed by the caller."""
    return open_store(_url(folder, synchronous))


def _url(folder: Path, synchronous: str) -> str:
    return f"sqlite:///{quote(str(folder / 'packhorse.db'))}?synchronous={synchronous}"


def ours_at(ours: Contestant, url: str) -> Contestant:
    """Packhorse as it is, at one URL whatever the folder."""
    return replace(
        ours,
        environment=lambda _: {"PACKHORSE_URL": url},
        finished=lambda _: completed(url),
    )


def completed(url: str) -> int:
    """How many jobs of a store of Packhorse are completed."""
    store = open_store(url)
    try:
        counts = store.run(store.inspection.counts())
    finally:
        store.close()
    return sum(one.by_status.get(JobStatus.COMPLETED, 0) for one in counts)


def _bare_finished(folder: Path) -> int:
    return bare_sqlite.finished(folder / "bare.db")


def _huey_finished(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "huey.db")) as connection:
        count: int = connection.execute("select count(*) from kv").fetchone()[0]
    return count
