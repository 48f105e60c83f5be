# SPDX-License-Identifier: MIT
"""Time and chance. The only module that reads either, so that everything else can be replayed."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
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
    "new_id",
    "new_ids",
    "to_datetime",
]

#: Microseconds in a second.
SECOND_US: Final = 1_000_000
MICROSECOND: Final = timedelta(microseconds=1)
_NOISE_BYTES: Final = 10  #: of chance in an id
#: The digit of an id that says how the rest is to be read, and two bits of chance.
_VARIANTS: Final = MappingProxyType(dict(zip("0123456789abcdef", "89ab" * 4, strict=True)))
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

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


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
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """So many new ids, in their order: what is sorted is stored faster."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    head = f"{moment[:8]}-{moment[8:]}-7"
    noise = os.urandom(_NOISE_BYTES * count).hex()
    ids = [
        f"{head}{noise[at + 1 : at + 4]}-"
        f"{_VARIANTS[noise[at]]}{noise[at + 4 : at + 7]}-{noise[at + 7 : at + 19]}"
        for at in range(0, len(noise), 2 * _NOISE_BYTES)
    ]
    ids.sort()
    return ids


def to_datetime(instant_us: int) -> datetime:
    """An instant as an aware datetime in UTC."""
    return _EPOCH + instant_us * MICROSECOND


def from_datetime(moment: datetime) -> int:
    """An aware datetime as an instant; the caller has refused naive ones."""
    return (moment - _EPOCH) // MICROSECOND
