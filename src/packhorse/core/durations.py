# SPDX-License-Identifier: MIT
"""Spans of time as people write them: `30`, `1.5`, `"30s"`, `"1h30m"`, `timedelta(...)`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from packhorse.errors import ConfigError

Duration = float | str | timedelta

_UNIT_SECONDS: Final = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001))
_WHOLE_UNITS: Final = 4  # those from a second up
_MINUTE_S: Final = 60
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
#: A number alone is seconds; `float` would also take "1_0", "1e9" and "nan".
_PLAIN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
#: Each unit once at most, the largest first; room between the parts, never inside a number.
_PATTERN: Final = re.compile(
    " ?".join(rf"(?:{_NUMBER} ?{unit}(?![a-z]))?" for unit, _ in _UNIT_SECONDS), re.ASCII
)
#: A century: longer spans are mistakes, and would overflow the stores' integers.
_SECONDS_MAX: Final = 100 * 366 * 86400.0


def microseconds(value: Duration, setting: str = "duration") -> int:
    """A span in whole microseconds, or an error that names the setting."""
    seconds = _seconds(value, setting)
    if not 0 <= seconds <= _SECONDS_MAX:  # also false of "not a number"
        raise ConfigError(f"{setting} is {value!r}; give a span from 0 to a hundred years")
    return round(seconds * 1_000_000)


def positive_microseconds(value: Duration, setting: str = "duration") -> int:
    """A span in whole microseconds, refused when it is zero."""
    span = microseconds(value, setting=setting)
    if span <= 0:
        raise ConfigError(f"{setting} is {value!r}; give a span longer than zero")
    return span


def _seconds(value: Duration, setting: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parse(value, setting)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(_unreadable(value, setting))
    return value


def _parse(text: str, setting: str) -> float:
    compact = " ".join(text.split()).lower()
    if _PLAIN.fullmatch(compact):
        return float(compact)
    match = _PATTERN.fullmatch(compact)
    if match is None or not compact:
        raise ConfigError(_unreadable(text, setting))
    sizes = (size for _, size in _UNIT_SECONDS)
    return sum(float(part or 0) * size for part, size in zip(match.groups(), sizes, strict=True))


def _unreadable(value: object, setting: str) -> str:
    return (
        f"{setting} is {value!r}; give seconds as a number, a text such as '30s', '5m' or "
        "'1h30m', or a timedelta"
    )


def span_text(span_us: float) -> str:
    """A span for messages: `250ms`, `1.5s`, `59m 55s`, `1d 2h`."""
    seconds = span_us / 1_000_000
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.3g}s"
    parts, left = [], round(seconds)
    for unit, size in _UNIT_SECONDS[:_WHOLE_UNITS]:
        number, left = divmod(left, int(size))
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts)
