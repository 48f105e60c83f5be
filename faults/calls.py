# SPDX-License-Identifier: MIT
"""The calls that producers make, of each kind, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from faults.tasks import PROCESS_QUEUE
from packhorse import Call, Packhorse

#: Between two submits of one producer, on average.
PAUSE_S: Final = 0.05
KEYS: Final = 4
#: The shortest and the longest a job takes, in seconds, and what a few take.
JOB_S: Final = (0.002, 0.08)
LONG_JOB_S: Final = 0.4
SLOW_JOB_S: Final = (1.0, 3.0)
#: Jobs submitted in one call: one, mostly; to the narrow queue as many as will often not fit.
COUNTS: Final = (1, 1, 1, 3)
NARROW_COUNTS: Final = (1, 2, 3)
NARROW_JOB_S: Final = 0.08
#: How many of those that wait to be cancelled are.
CANCELLED: Final = 0.8

#: A call and the key it is unique by, if it is.
Made = tuple[Call[Any], str]


class Maker:
    """Makes calls of each kind by chance."""

    def __init__(self, app: Packhorse, seed: int) -> None:
        self._tasks = app.tasks
        self._chance = random.Random(seed)
        self._orders = 0

    def make(self, kind: str) -> Made:
        return _MADE[kind][1](self)

    def kind(self) -> str:
        return self._chance.choices(KINDS, _WEIGHTS)[0]

    def count(self, kind: str) -> int:
        return self._chance.choice(NARROW_COUNTS if kind == "narrow" else COUNTS)

    def pause_s(self) -> float:
        return self._chance.expovariate(1 / PAUSE_S)

    def narrow(self) -> Made:
        return self._tasks["narrow"].call(NARROW_JOB_S), ""

    def rated(self) -> Made:
        weight = self._chance.choice((1, 1, 1, 3))  # a heavy one uses the rate up alone
        return self._tasks["rated"].call(self._seconds()).using(weight=weight), ""

    def plain(self, task: str) -> Made:
        return self._tasks[task].call(self._seconds()), ""

    def slow(self) -> Made:
        return self._tasks["slow"].call(round(self._chance.uniform(*SLOW_JOB_S), 2)), ""

    def flaky(self) -> Made:
        return self._tasks["flaky"].call(self._seconds(), self._chance.randrange(3)), ""

    def patient(self) -> Made:
        return self._tasks["patient"].call(), ""

    def cancels(self) -> bool:
        return self._chance.random() < CANCELLED

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


#: How each kind is made, and how often it is among the others.
_MADE: Final[Mapping[str, tuple[int, Callable[[Maker], Made]]]] = MappingProxyType(
    {
        "quick": (6, lambda maker: maker.plain("quick")),
        "doze": (3, lambda maker: maker.plain("doze")),
        "block_loop": (1, lambda maker: maker.plain("block_loop")),
        "crunch": (3, lambda maker: maker.plain("crunch")),
        "slow": (1, Maker.slow),
        "flaky": (2, Maker.flaky),
        "patient": (1, Maker.patient),
        "capped": (2, lambda maker: maker.plain("capped")),
        "narrow": (2, Maker.narrow),
        "rated": (2, Maker.rated),
        "tenants": (2, Maker.tenants),
        "keyed": (2, Maker.keyed),
        "called": (2, Maker.called),
        "ordered": (3, Maker.ordered),
        "charged": (2, Maker.charged),
        "single": (2, lambda maker: maker.unique("single")),
        "throttled": (2, lambda maker: maker.unique("throttled")),
    }
)
KINDS: Final = tuple(_MADE)
_WEIGHTS: Final = tuple(weight for weight, _ in _MADE.values())
#: Those whose queue has another name.
_QUEUES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("single", "throttled"), "once"),
        **dict.fromkeys(("quick", "doze", "block_loop", "slow", "flaky", "patient"), "default"),
        "crunch": PROCESS_QUEUE,
    }
)


def queue_of(kind: str) -> str:
    """Where jobs of a kind wait."""
    return _QUEUES.get(kind, kind)
