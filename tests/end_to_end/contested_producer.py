# SPDX-License-Identifier: MIT
"""One of the producers of the contested test: python -m tests.end_to_end.contested_producer N.

Submits whatever fits, by chance of seed N, until it is told that this is enough; writes down each
submit and its answer. It begins with some of every kind, so that each limit is met however slow
the machine is.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse import Call, Packhorse, QueueFull
from tests.end_to_end.contested_app import CLOCK, LIMITS, create_app, record
from tests.end_to_end.recording import RECORDS_VARIABLE

#: A file of this name beside the records tells producers to stop.
ENOUGH: Final = "enough"
#: The longest one goes on when nobody tells it so.
SECONDS_MAX: Final = 600.0
#: Between two submits of one producer, on average.
PAUSE_S: Final = 0.02
#: No more is submitted to a queue with so many waiting: it is to be drained when time is up.
DEPTH_MAX: Final = 25
KEYS: Final = 4
#: The shortest and the longest a job takes, in seconds, and what a few take.
JOB_S: Final = (0.002, 0.05)
LONG_JOB_S: Final = 0.4
#: Jobs submitted in one call: one, mostly; to the narrow queue as many as will often not fit.
COUNTS: Final = (1, 1, 1, 5)
NARROW_COUNTS: Final = (1, 2, 3)
NARROW_JOB_S: Final = 0.08

#: A call and the key it is unique by, if it is.
Made = tuple[Call[Any], str]


class Answer(msgspec.Struct, frozen=True):
    """What is written down of a submit, beside the job it came to."""

    task: str
    asked_us: int
    key: str = ""
    deduplicated: bool = False
    count: int = 1  #: how many were refused together


class Maker:
    """Makes calls of each kind by chance."""

    def __init__(self, app: Packhorse, seed: int) -> None:
        self._tasks = app.tasks
        self._chance = random.Random(seed)
        self._orders = 0

    def make(self, kind: str) -> Made:
        return KINDS[kind](self)

    def kind(self) -> str:
        return self._chance.choice(tuple(KINDS))

    def count(self, kind: str) -> int:
        return self._chance.choice(NARROW_COUNTS if kind == "narrow" else COUNTS)

    def pause_s(self) -> float:
        return self._chance.expovariate(1 / PAUSE_S)

    def capped(self) -> Made:
        return self._tasks["capped"].call(self._seconds()), ""

    def narrow(self) -> Made:
        return self._tasks["narrow"].call(NARROW_JOB_S), ""

    def rated(self) -> Made:
        weight = self._chance.choice((1, 1, 1, 4))
        return self._tasks["rated"].call(self._seconds()).using(weight=weight), ""

    def tenants(self) -> Made:
        return self._tasks["tenants"].call(self._seconds()).using(tenant=self._key()), ""

    def keyed(self) -> Made:
        return self._tasks["keyed"].call(self._key(), self._seconds()), ""

    def called(self) -> Made:
        return self._called(refusals=int(self._chance.random() < 0.1))

    def refused(self) -> Made:
        return self._called(refusals=1)

    def _called(self, *, refusals: int) -> Made:
        return self._tasks["called"].call(self._key(), self._seconds(), refusals), ""

    def ordered(self) -> Made:
        failures = int(self._chance.random() < 0.15)
        call = self._tasks["ordered"].call(self._seconds(), failures)
        return call.using(ordering_key=self._key()), ""

    def charged(self) -> Made:
        self._orders += self._chance.random() < 0.3
        order = f"order-{self._orders}"  # the same in every producer
        call = self._tasks["charged"].call(order, 0.01)
        return call.using(idempotency_key=order), order

    def unique(self, task: str) -> Made:
        key = self._key()
        return self._tasks[task].call(key, self._seconds()), key

    def _key(self) -> str:
        return f"key-{self._chance.randrange(KEYS)}"

    def _seconds(self) -> float:
        if self._chance.random() < 0.05:
            return LONG_JOB_S
        return round(self._chance.uniform(*JOB_S), 4)


KINDS: Final[Mapping[str, Callable[[Maker], Made]]] = MappingProxyType(
    {
        "capped": Maker.capped,
        "narrow": Maker.narrow,
        "rated": Maker.rated,
        "tenants": Maker.tenants,
        "keyed": Maker.keyed,
        "called": Maker.called,
        "ordered": Maker.ordered,
        "charged": Maker.charged,
        "single": lambda maker: maker.unique("single"),
        "throttled": lambda maker: maker.unique("throttled"),
    }
)
#: Those whose queue has another name.
_QUEUES: Final[Mapping[str, str]] = MappingProxyType({"single": "once", "throttled": "once"})


def produce(app: Packhorse, seed: int, enough: Path) -> None:
    """Submit until that is enough."""
    maker = Maker(app, seed)
    _open(app, maker)
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until and not enough.exists():
        kind = maker.kind()
        if kind == "narrow" or app.depth(_QUEUES.get(kind, kind)) < DEPTH_MAX:
            _submit(app, kind, [maker.make(kind) for _ in range(maker.count(kind))])
        time.sleep(maker.pause_s())


def _open(app: Packhorse, maker: Maker) -> None:
    """Some of every kind; of the narrow one more than may ever wait, which is refused."""
    for kind in KINDS:
        count = LIMITS.max_depth[kind] + 1 if kind == "narrow" else COUNTS[-1]
        _submit(app, kind, [maker.make(kind) for _ in range(count)])
    _submit(app, "called", [maker.refused() for _ in range(COUNTS[-1])])


def _submit(app: Packhorse, task: str, made: list[Made]) -> None:
    asked_us = CLOCK.now_us()
    try:
        jobs = app.enqueue_many(call for call, _ in made)
    except QueueFull:
        record.write_line("full", "", note=_note(Answer(task, asked_us, count=len(made))))
        return
    for job, key in zip(jobs, _keys(made), strict=True):
        answer = Answer(task, asked_us, key, job.deduplicated)
        record.write_line("submitted", job.id, note=_note(answer))


def _keys(made: list[Made]) -> Iterator[str]:
    return (key for _, key in made)


def _note(answer: Answer) -> str:
    return msgspec.json.encode(answer).decode()


if __name__ == "__main__":
    opened = create_app()
    produce(opened, int(sys.argv[1]), Path(os.environ[RECORDS_VARIABLE]) / ENOUGH)
    opened.close()
