# SPDX-License-Identifier: MIT
"""How answers look: plain tables and texts for people, one JSON document for programs."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from packhorse.cli.output import require_output
from packhorse.printable import printable

__all__ = [
    "age",
    "ages",
    "counted",
    "note",
    "one_line",
    "print_fields",
    "print_json",
    "print_table",
    "print_text",
    "span_ms",
]

#: Columns are never cut below this.
_CELL_MIN: Final = 8
_GAP: Final = "  "
#: The priority of jobs of which nothing is said.
_USUAL: Final = "normal"
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "queued": "cyan",
        "processing": "blue",
        "completed": "green",
        "failed": "yellow",
        "timeout": "yellow",
        "warning": "yellow",
        "paused": "yellow",
        "dead": "red",
        "problem": "red",
        "gone": "red",
        "ok": "green",
        "live": "green",
    }
)


def print_json(document: object) -> None:
    """Write one document to stdout."""
    import msgspec

    print_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_text(text: str) -> None:
    """Write data to stdout."""
    require_output()
    click.echo(text)


def note(text: str) -> None:
    """Say something that is no data, on stderr."""
    click.echo(text, err=True)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, wrapped: bool = False
) -> None:
    """Write a table to stdout, cut to the terminal's width where there is one.

    The last column gives way first, then the widest of the others. With `wrapped` it goes on below
    instead: advice that is cut helps nobody.
    """
    lines = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    _narrow(widths, _terminal_width())
    if wrapped:
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
        # What cannot be parted, such as a name somebody will copy, may stick out.
        widths[-1] = max(len(line[-1]) for line in (headers, *lines))
    print_text(_padded(headers, widths))
    for line in lines:
        print_text(_padded(line, widths, colored=True))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write names and values below each other; what has no value is left out."""
    shown = [(name, one_line(value)) for name, value in fields if value not in (None, "", ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_text(f"{name:<{width}}{_GAP}{_colored(value, value)}")


def one_line(value: object) -> str:
    """A value as text that cannot break a table, nor write to a terminal what we did not mean."""
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return ", ".join(one_line(item) for item in value) or "-"
    return printable(str(value))


def counted(number: int, noun: str) -> str:
    """A number of things: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def age(seconds: float | None) -> str:
    """A span as its two largest units: `3m 20s`."""
    if seconds is None:
        return "-"
    parts: list[str] = []
    left = int(max(0, seconds))
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or (parts and len(parts) < 2):  # noqa: PLR2004 - two units, as said above
            parts.append(f"{number}{unit}")
    return " ".join(parts[:2]) or "0s"


def ages(seconds: Mapping[str, float]) -> str:
    """The spans of several, by name; one of the usual kind alone needs no name."""
    if set(seconds) <= {_USUAL}:
        return age(seconds.get(_USUAL))
    return ", ".join(f"{name} {age(span)}" for name, span in seconds.items())


def span_ms(milliseconds: float) -> str:
    """A short span: `12.3 ms`."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"  # noqa: PLR2004 - a second


def _terminal_width() -> int | None:
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        return shutil.get_terminal_size().columns
    return None


def _narrow(widths: list[int], limit: int | None) -> None:
    if limit is None:
        return
    last = len(widths) - 1
    # The first column is what a person copies, an id or a name: it is never cut.
    for index in (last, *sorted(range(1, last), key=lambda i: -widths[i])):
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
        if excess <= 0:
            return
        widths[index] = max(min(widths[index], _CELL_MIN), widths[index] - excess)


def _wrapped(line: Sequence[str], width: int) -> Iterator[list[str]]:
    """A row as several, of which only the first has more than the last column."""
    *others, last = line
    parts = textwrap.wrap(last, width, break_long_words=False, break_on_hyphens=False) or [""]
    yield [*others, parts[0]]
    yield from ([*("" for _ in others), part] for part in parts[1:])


def _padded(cells: Sequence[str], widths: Sequence[int], *, colored: bool = False) -> str:
    shown = []
    for cell, width in zip(cells, widths, strict=True):
        text = f"{cell if len(cell) <= width else cell[: width - 1] + '…':<{width}}"
        shown.append(_colored(text, cell) if colored else text)
    return _GAP.join(shown).rstrip()


def _colored(text: str, word: str) -> str:
    color = _COLORS.get(word)
    return text if color is None else click.style(text, fg=color)
