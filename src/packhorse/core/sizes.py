# SPDX-License-Identifier: MIT
"""Numbers of bytes as people write them: `500_000`, `"500MB"`, `"1.5 GiB"`."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from packhorse.errors import ConfigError

Size = int | str

#: The name under which settings of the store itself are kept among those of queues, which all have
#: longer ones: its `max_bytes` bounds all jobs together.
THE_STORE: Final = ""

_UNITS: Final = MappingProxyType(
    {
        "": 1,
        "b": 1,
        **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
        **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    }
)
_PATTERN: Final = re.compile(r"(\d{1,18}(?:\.\d+)?) ?([a-z]*)", re.ASCII)


def size_in_bytes(value: Size, setting: str) -> int:
    """A number of bytes, or an error that names the setting."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _PATTERN.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if found is None or found[2] not in _UNITS:
        raise ConfigError(
            f"{setting} is {value!r}; give bytes as a whole number, or a text such as '500MB' or "
            "'2GiB'"
        )
    return int(float(found[1]) * _UNITS[found[2]])


def size_text(size: int) -> str:
    """Bytes for messages: `999 B`, `1.5 kB`, `500 MB`."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.3g} {unit}"
    return f"{size} B"


def fill_text(held: int, limit: int) -> str:
    """How full something is: `400 MB of 500 MB (80%)`; never 100% before it is full."""
    return f"{size_text(held)} of {size_text(limit)} ({held * 100 // limit}%)"
