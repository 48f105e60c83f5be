# SPDX-License-Identifier: MIT
"""Submit: one at a time from sync and from async code, many at once, and concurrently.

Those who are compared take turns within a round, a fraction of a second each: the disk has moods
that last for seconds, and at FULL they would decide. A turn is long enough to hold what a store
does only now and then, since that is part of the price.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Final

from benchmarks.bench import Bench, Producer, producing, rotated
from benchmarks.stage import Entry
from benchmarks.workloads import producer

ONE: Final = "submit one, sync"
ASYNC_ONE: Final = "submit one, async"
CONCURRENT: Final = "submit concurrently, async"
MANY: Final = "submit many"

#: Submitted before the first turn.
_WARM_UP: Final = 100


def measure_round(bench: Bench, number: int) -> None:
    """Every way of every contestant once, in another order each round."""
    for group in rotated(bench.stage.submits, number):
        members = [entry for entry in group if bench.takes_part(entry.contestant)]
        _measure_group(bench, rotated(members, number), random.Random(number))


def _measure_group(bench: Bench, group: Sequence[Entry], chance: random.Random) -> None:
    with ExitStack() as stack:
        producers: list[tuple[Entry, Producer, list[producer.Timing]]] = []
        for entry in group:
            with bench.forgiving(entry.contestant):
                folder = stack.enter_context(bench.folder())
                asked = stack.enter_context(producing(entry.contestant, folder, entry.way))
                asked.submit(_WARM_UP)
                producers.append((entry, asked, []))
        for _ in range(bench.stage.turns):
            # Shuffled, so that no contestant always follows the same one.
            for entry, asked, timings in chance.sample(producers, len(producers)):
                if bench.takes_part(entry.contestant):
                    with bench.forgiving(entry.contestant):
                        timings.append(asked.submit(_turn_size(bench, entry)))
        for entry, _, timings in producers:
            if bench.takes_part(entry.contestant):
                _record(bench, entry, timings)


def _turn_size(bench: Bench, entry: Entry) -> int:
    turns = bench.stage.turns
    if entry.way.startswith("many"):
        return max(producer.MANY, bench.settings.many // turns // producer.MANY * producer.MANY)
    return max(1, bench.settings.singles // turns)


def _record(bench: Bench, entry: Entry, timings: Sequence[producer.Timing]) -> None:
    rate = median(one.rate for one in timings)  # one turn that met a busy disk does not decide
    bench.ledger.record(entry.measure, entry.label, rate, "jobs/s")
    bench.say(f"  {entry.measure:<27} {entry.label:<27} {rate:>9,.0f} jobs/s")
