# SPDX-License-Identifier: MIT
"""Time and chance. The only module that reads either, so that everything else can be replayed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from types import MappingProxyType
from typing import Final, Protocol

__all__ = [
    "MICROSECOND",
    "SECOND_US",
    "Chance",
    "Clock",
    "SystemChance",
    "SystemClock",
    "from_datetime",
    "moments",
    "new_id",
    "new_ids",
    "to_datetime",
]

#: Microseconds in a second.
SECOND_US: Final = 1_000_000
MICROSECOND: Final = timedelta(microseconds=1)
_NOISE_BYTES: Final = 10  #: of chance in an id
_TAIL_BYTES: Final = 6  #: of these at the end of an id
_COUNTED: Final = 4096  #: ids of one moment that are told apart by a number
_VARIANT: Final = 0x8000  #: the bits of an id that say how the rest is to be read
#: The same for their first digit.
_VARIANT_DIGIT: Final = MappingProxyType({f"{each:x}": f"{8 | each & 3:x}" for each in range(16)})
_BURST: Final = 16  #: ids for which chance is asked for at once
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where time comes from."""

    def now_us(self) -> int:
        """The instant, in microseconds since the epoch. Stores judge by it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back. Workers measure spans with it."""
        ...


class Chance(Protocol):
    """Where chance comes from."""

    def roll(self) -> float:
        """A number from 0 up to, not including, 1."""
        ...


class SystemClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)  # asked at every submit, so without a step between

    def now_us(self) -> int:
        return time.time_ns() // 1000


def moments(clock: Clock | None = None) -> Callable[[], datetime]:
    """What tells the instant as a date: by a clock, or the machine's own, which costs less."""
    if clock is None:
        return partial(datetime.now, UTC)
    return lambda: to_datetime(clock.now_us())


class SystemChance:
    """The machine's own chance, or a repeatable one when given a seed."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - spreads retries, guards nothing

    def roll(self) -> float:
        return self._random.random()


def new_id() -> str:
    """A new UUIDv7 as text: sorted by time of making, unique without asking anybody.

    Only uniqueness is relied upon; order always comes from the store's own sequence.
    """
    moment = time.time_ns() // 1_000_000
    known, head, tails = _burst.now
    if moment != known:
        head = _head_of(moment)
        _burst.now = (moment, head, [])
        return head + _tail_of(os.urandom(_NOISE_BYTES).hex())
    try:
        return head + tails.pop()
    except IndexError:  # also when another thread was faster
        return head + _burst.draw(tails)


def _tail_of(noise: str) -> str:
    """What an id ends with that has this chance in it."""
    return f"{noise[:3]}-{_VARIANT_DIGIT[noise[3]]}{noise[4:7]}-{noise[8:]}"


class _Burst:
    """What the ids of one millisecond share: how they begin, and chance that was asked for at once.

    Chance is never kept for longer than that, nor over a fork: a copy of this process, or of the
    machine, must not use it again.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: tuple[int, str, list[str]] = (0, "", [])

    def draw(self, tails: list[str]) -> str:
        """The end of one id, and some for those that will follow."""
        noises = os.urandom(_NOISE_BYTES * _BURST).hex(" ", _NOISE_BYTES).split()
        drawn = [_tail_of(noise) for noise in noises]
        tail = drawn.pop()
        tails += drawn
        return tail

    def forget(self) -> None:
        self.now = (0, "", [])


_burst: Final = _Burst()
os.register_at_fork(after_in_child=_burst.forget)


def _head_of(moment: int) -> str:
    """What an id begins with that is made in this millisecond."""
    text = f"{moment:012x}"
    return f"{text[:8]}-{text[8:]}-7"


def new_ids(count: int) -> list[str]:
    """So many new ids, in their order: what is sorted is stored faster.

    They count where others have chance, so that those of one moment differ from each other; from
    those that somebody else makes then, they differ by what is left to chance.
    """
    if count == 1:
        return [new_id()]
    first = time.time_ns() // 1_000_000
    group = f"{_VARIANT | int.from_bytes(os.urandom(2), 'big') & 0x3FFF:04x}"
    ids: list[str] = []
    for start in range(0, count, _COUNTED):
        head = _head_of(first + start // _COUNTED)
        noise = os.urandom(_TAIL_BYTES * min(_COUNTED, count - start)).hex(" ", _TAIL_BYTES)
        ids += [
            f"{head}{number}-{group}-{tail}"
            for number, tail in zip(_numbers(), noise.split(), strict=False)
        ]
    return ids


@cache
def _numbers() -> tuple[str, ...]:
    return tuple([f"{number:03x}" for number in range(_COUNTED)])


def to_datetime(instant_us: int) -> datetime:
    """An instant as an aware datetime in UTC."""
    return _EPOCH + instant_us * MICROSECOND


def from_datetime(moment: datetime) -> int:
    """An aware datetime as an instant; the caller has refused naive ones."""
    return (moment - _EPOCH) // MICROSECOND
