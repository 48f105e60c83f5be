# SPDX-License-Identifier: MIT
"""Time and chance. The only module that reads either, so that everything else can be replayed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Final, Protocol

#: Microseconds in a second.
SECOND_US: Final = 1_000_000
MICROSECOND: Final = timedelta(microseconds=1)
_NOISE_BYTES: Final = 10  #: random bytes in an id
_TAIL_BYTES: Final = 6  #: of these at its end
_COUNTED: Final = 4096  #: ids of one millisecond that differ by a number
_VARIANT: Final = 0x8000  #: the bits of an id that say how the rest is to be read
#: The same for their first digit.
_VARIANT_DIGIT: Final = MappingProxyType({f"{each:x}": f"{8 | each & 3:x}" for each in range(16)})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where time comes from."""

    def now_us(self) -> int:
        """The instant, in microseconds since the epoch. Stores judge by it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back. Workers measure spans with it."""
        ...


def pass_idle(clock: Clock, seconds: float) -> bool:
    """Move a clock that does not move by itself, as nothing happens for so long; whether it did."""
    move: Callable[[float], None] | None = getattr(clock, "pass_idle", None)
    if move is not None:
        move(seconds)
    return move is not None


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
    """Return a new UUIDv7 as text: sorted by time of making, unique without a registry.

    Only uniqueness is relied upon; order always comes from the store's own sequence.
    """
    head, noise = _head_of(time.time_ns() // 1_000_000), os.urandom(_NOISE_BYTES).hex()
    return f"{head}{noise[:3]}-{_VARIANT_DIGIT[noise[3]]}{noise[4:7]}-{noise[8:]}"


def new_trace_id() -> str:
    """Return a new trace id: a UUIDv7 without dashes."""
    return new_id().replace("-", "")


def new_ids(count: int) -> list[str]:
    """Return new ids in their order: what is sorted is stored faster.

    They count where single ids are random, so that those of one call differ from each other; the
    rest is random, so that they differ from those of other processes.
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


@lru_cache(maxsize=1)  # shared by the ids of a millisecond
def _head_of(moment_ms: int) -> str:
    text = f"{moment_ms:012x}"
    return f"{text[:8]}-{text[8:]}-7"


@cache
def _numbers() -> tuple[str, ...]:
    return tuple([f"{number:03x}" for number in range(_COUNTED)])


def new_secret(count: int) -> str:
    """Return so many bytes that no one can guess, as text."""
    return os.urandom(count).hex()


def to_datetime(instant_us: int) -> datetime:
    """An instant as an aware datetime in UTC; one beyond all dates is the last or first of them."""
    return _EPOCH + max(_FIRST_US, min(instant_us, _LAST_US)) * MICROSECOND


def optional_datetime(instant_us: int | None) -> datetime | None:
    """As `to_datetime`, where there may be no instant."""
    return None if instant_us is None else to_datetime(instant_us)


def from_datetime(moment: datetime) -> int:
    """An aware datetime as an instant; the caller has refused naive ones."""
    return (moment - _EPOCH) // MICROSECOND


#: A store whose numbers are rounded may answer with an instant just beyond the last date.
_FIRST_US: Final = from_datetime(datetime.min.replace(tzinfo=UTC))
_LAST_US: Final = from_datetime(datetime.max.replace(tzinfo=UTC))
