# SPDX-License-Identifier: MIT
"""What both stores on servers compare with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.contestants import BARE, CONCURRENCY, PACKHORSE, Contestant, completed
from benchmarks.measures import drain, submit
from benchmarks.peers.catalogue import Peers
from benchmarks.peers.server import SERVER
from benchmarks.processes import python
from benchmarks.stage import Entry

OURS: Final = PACKHORSE
OURS_WITH_LINES: Final = f"{PACKHORSE} with log lines"
CHARTED: Final = (drain.RATE, submit.ONE, submit.ASYNC_ONE, submit.MANY)


@dataclass(frozen=True, slots=True)
class Lines:
    """Packhorse, the bare loop and the peers on one server."""

    url: Callable[[Path], str]  #: of Packhorse's store in the database of a folder
    server: Callable[[Path], str]  #: of that database
    bare_module: str
    bare_finished: Callable[[str], int]
    peers: Peers

    def ours(self, *, lines: str = "quiet", slots: int = CONCURRENCY) -> Contestant:
        """Packhorse, with a JSON log line at each start and end if `lines` is `lines`."""
        return Contestant(
            label=OURS_WITH_LINES if lines == "lines" else OURS,
            program="packhorse",
            environment=lambda folder: {"PACKHORSE_URL": self.url(folder)},
            worker=lambda _: python("benchmarks.workloads.packhorse_app", str(slots), lines),
            finished=lambda folder: completed(self.url(folder)),
        )

    def bare(self) -> Contestant:
        """The bare loop, claiming as many at a time as a Packhorse worker does at most."""
        return Contestant(
            label=BARE,
            program="bare",
            environment=lambda folder: {SERVER: self.server(folder)},
            worker=lambda _: python(self.bare_module, str(drain.BARE_BATCH)),
            finished=lambda folder: self.bare_finished(self.server(folder)),
            producer=lambda way: python("benchmarks.peers.submitting", self.bare_module, way),
        )

    def drains(self) -> list[Contestant]:
        """All contestants."""
        everybody = self.peers.chosen(lambda _: True)
        return [self.ours(), self.bare(), self.ours(lines="lines"), *everybody]

    def submits(self) -> Iterator[Sequence[Entry]]:
        """Sync against sync, async against async, bulk against bulk."""
        ours, bare, chosen = self.ours(), self.bare(), self.peers.chosen
        one = [ours, bare, *chosen(lambda peer: peer.one)]
        yield [Entry(submit.ONE, "one", each, each.label) for each in one]
        async_one = [ours, bare, *chosen(lambda peer: peer.async_one)]
        yield [
            *(Entry(submit.ASYNC_ONE, "async one", each, each.label) for each in async_one),
            Entry(submit.CONCURRENT, "concurrent", ours, ours.label),
        ]
        many = [ours, bare, *chosen(lambda peer: peer.many)]
        yield [Entry(submit.MANY, "many", each, each.label) for each in many]
