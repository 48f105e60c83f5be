# SPDX-License-Identifier: MIT
"""Submit: one at a time from sync and from async code, many at once, and concurrently.

Those who are compared take turns within a round, a fraction of a second each: the disk has moods
that last for seconds, and at FULL they would decide.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.bench import Bench, Producer, producing, rotated
from benchmarks.contestants import BARE, DURABILITIES, Contestant, bare, huey, packhorse
from benchmarks.workloads import producer

__all__ = ["ASYNC_ONE", "CONCURRENT", "MANY", "ONE", "measure_round"]

ONE: Final = "submit one, sync"
ASYNC_ONE: Final = "submit one, async"
CONCURRENT: Final = "submit concurrently, async"
MANY: Final = "submit many"

#: Turns of each contestant in one round, after the one that warms it up.
_TURNS: Final = 8
_WARM_UP: Final = 100


@dataclass(frozen=True, slots=True)
class _Entry:
    """One contestant in one measure."""

    measure: str
    way: str  #: as the producer calls it
    contestant: Contestant
    label: str


def measure_round(bench: Bench, number: int) -> None:
    """Every way of every contestant once, in another order each round."""
    for group in rotated(list(_groups()), number):
        _measure_group(bench, rotated(group, number), random.Random(number))


def _groups() -> Iterator[list[_Entry]]:
    """Those who are compared with each other, together."""
    for synchronous in DURABILITIES:
        ours, bare_loop = packhorse(synchronous), bare(synchronous, 1)
        peers = [huey()] if synchronous == "FULL" else []
        named = f"{BARE} with ids {synchronous}"
        yield [
            _Entry(ONE, "one", ours, ours.label),
            _Entry(ONE, "one", bare_loop, bare_loop.label),
            _Entry(ONE, "one, named", bare_loop, named),
            *(_Entry(ONE, "one", peer, peer.label) for peer in peers),
        ]
        yield [
            _Entry(ASYNC_ONE, "async one", ours, ours.label),
            _Entry(ASYNC_ONE, "async one", bare_loop, bare_loop.label),
            _Entry(CONCURRENT, "concurrent", ours, ours.label),
        ]
        yield [
            _Entry(MANY, "many", ours, ours.label),
            _Entry(MANY, "many", bare_loop, bare_loop.label),
            _Entry(MANY, "many, named", bare_loop, named),
            *(_Entry(MANY, "one", peer, peer.label) for peer in peers),  # it has no bulk submit
        ]


def _measure_group(bench: Bench, group: Sequence[_Entry], chance: random.Random) -> None:
    with ExitStack() as stack:
        producers: list[tuple[_Entry, Producer, list[producer.Timing]]] = []
        for entry in group:
            folder = stack.enter_context(bench.folder())
            asked = stack.enter_context(producing(entry.contestant, folder, entry.way))
            asked.submit(_WARM_UP)
            producers.append((entry, asked, []))
        for _ in range(_TURNS):
            # Shuffled, so that nobody always comes after the same neighbour.
            for entry, asked, timings in chance.sample(producers, len(producers)):
                timings.append(asked.submit(_turn_size(bench, entry)))
        for entry, _, timings in producers:
            _record(bench, entry, timings)


def _turn_size(bench: Bench, entry: _Entry) -> int:
    if entry.way.startswith("many"):
        return max(producer.MANY, bench.settings.many // _TURNS // producer.MANY * producer.MANY)
    return max(1, bench.settings.singles // _TURNS)


def _record(bench: Bench, entry: _Entry, timings: Sequence[producer.Timing]) -> None:
    rate = median(one.rate for one in timings)  # one turn that met a busy disk does not decide
    bench.ledger.record(entry.measure, entry.label, rate, "jobs/s")
    bench.say(f"  {entry.measure:<27} {entry.label:<27} {rate:>9,.0f} jobs/s")
