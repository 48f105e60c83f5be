# SPDX-License-Identifier: MIT
"""The values that shapes are made of: enums, bounded numbers and texts, and datetime strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Self

from msgspec import Meta

from packhorse.errors import ShapeError
from packhorse.protocol.reading import parse, parse_json

_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_MONTH_AND_DAY: Final = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = rf"(?:{_LEAP_YEAR}-02-29|[0-9]{{4}}-{_MONTH_AND_DAY})"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?"

DATETIME_PATTERN: Final = rf"^{_DATE}T{_TIME}Z$"
DATETIME_EXPECTED: Final = (
    "a UTC date and time that ends in Z, such as 2026-01-31T09:30:00Z "
    "(no offset such as +00:00, no impossible date)"
)

_SECOND_US: Final = 1_000_000
_MINUTE_US: Final = 60 * _SECOND_US
_DAY_US: Final = 24 * 60 * _MINUTE_US
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

# The calendar repeats every 400 years. `date` has no year 0, which the wire allows, so the
# conversion happens one cycle later and is shifted back.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097

_FRACTION_DIGITS: Final = 6
_LAST_YEAR: Final = 9999


def instant_us(text: str) -> int:
    """Return the microseconds since the epoch of a wire datetime; finer digits are cut off."""
    if re.fullmatch(DATETIME_PATTERN, text) is None:
        raise ShapeError(f"expected {DATETIME_EXPECTED}, got {text!r}")
    clock, _, fraction = text[11:-1].partition(".")
    hour, minute, second = int(clock[0:2]), int(clock[3:5]), int(clock[6:8] or 0)
    fraction_us = int(fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))
    minutes = (_days_since_epoch(text[:10]) * 24 + hour) * 60 + minute
    return minutes * _MINUTE_US + second * _SECOND_US + fraction_us


def wire_datetime(us: int) -> str:
    """Return the wire datetime of an instant in microseconds since the epoch.

    It always has six sub-second digits, so that sorting the strings sorts the instants.
    """
    days, within_day = divmod(us, _DAY_US)
    minutes, within_minute = divmod(within_day, _MINUTE_US)
    seconds, fraction = divmod(within_minute, _SECOND_US)
    hour, minute = divmod(minutes, 60)
    day = _date_text(days)
    return f"{day}T{hour:02}:{minute:02}:{seconds:02}.{fraction:06}Z"


def _days_since_epoch(text: str) -> int:
    cycles, year = divmod(int(text[0:4]), _CYCLE_YEARS)
    later = date(year + _CYCLE_YEARS, int(text[5:7]), int(text[8:10]))
    return later.toordinal() + (cycles - 1) * _CYCLE_DAYS - _EPOCH_DAY


def _date_text(days_since_epoch: int) -> str:
    cycles, days = divmod(days_since_epoch + _EPOCH_DAY, _CYCLE_DAYS)
    later = date.fromordinal(days + _CYCLE_DAYS)
    year = later.year + (cycles - 1) * _CYCLE_YEARS
    if not 0 <= year <= _LAST_YEAR:
        raise ShapeError("the wire can write instants of the years 0000 to 9999 only")
    return f"{year:04}-{later.month:02}-{later.day:02}"


class WireEnum(StrEnum):
    """A closed, case-sensitive set of words."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the member written as `value`, or raise ShapeError naming the allowed words."""
        return parse(cls, value)

    @classmethod
    def parse_json(cls, data: str | bytes) -> Self:
        """Return the member that the JSON text `data` holds, or raise ShapeError."""
        return parse_json(cls, data)


class TaskPriority(WireEnum):
    """How urgent a task is; `TASK_PRIORITY_VALUES` gives the order."""

    CRITICAL = "critical"  # must execute immediately
    HIGH = "high"  # execute soon
    NORMAL = "normal"  # the default
    LOW = "low"  # execute when resources are available
    BACKGROUND = "background"  # execute during low-traffic periods


#: Lower runs first.
TASK_PRIORITY_VALUES: Final[Mapping[str, int]] = MappingProxyType(
    {
        TaskPriority.CRITICAL: 0,
        TaskPriority.HIGH: 1,
        TaskPriority.NORMAL: 2,
        TaskPriority.LOW: 3,
        TaskPriority.BACKGROUND: 4,
    }
)


class TaskStatus(WireEnum):
    """Where a task is in its life."""

    PENDING = "pending"  # waiting to be processed
    QUEUED = "queued"  # in its queue, ready for a worker
    PROCESSING = "processing"  # being executed
    COMPLETED = "completed"  # finished successfully
    FAILED = "failed"  # failed, may be retried
    CANCELLED = "cancelled"  # cancelled by hand
    TIMEOUT = "timeout"  # exceeded its execution timeout
    DEAD = "dead"  # moved to the dead letters


class BatchStatus(WireEnum):
    """Where a batch is in its life; `running` exists here and not among the task statuses."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BackoffStrategy(WireEnum):
    """How the delay grows from one retry to the next."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


# Beyond this, a JSON reader that keeps numbers as doubles would read another integer.
_MAX_SAFE_INTEGER: Final = 2**53 - 1

AnyInteger = Annotated[int, Meta(ge=-_MAX_SAFE_INTEGER, le=_MAX_SAFE_INTEGER)]
Count = Annotated[int, Meta(ge=0, le=_MAX_SAFE_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=_MAX_SAFE_INTEGER)]

TypeName = Annotated[
    str,
    Meta(
        pattern="^[a-z_][a-z0-9_]*$",
        extra={
            "expected": "lower-case letters, digits and underscores, not beginning with a digit "
            "(^[a-z_][a-z0-9_]*$)"
        },
    ),
]

#: Kept as the text it came in, whatever its precision; `instant_us` reads it.
Instant = Annotated[
    str,
    Meta(
        pattern=DATETIME_PATTERN,
        extra={"expected": DATETIME_EXPECTED},
        extra_json_schema={"format": "date-time"},
    ),
]
