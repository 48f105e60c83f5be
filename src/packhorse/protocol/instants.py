# SPDX-License-Identifier: MIT
"""Instants on the wire: datetime strings that end in `Z`, and microseconds since the epoch.

The pattern alone decides what is accepted, leap years included, so that `parse`, the exported JSON
Schema and `instant_us` cannot disagree. It is the grammar of the upstream schema: a calendar date,
`T`, hours and minutes, optional seconds, any number of sub-second digits, and a `Z`.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from packhorse.errors import ShapeError

__all__ = ["DATETIME_EXPECTED", "DATETIME_PATTERN", "instant_us", "wire_datetime"]

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
