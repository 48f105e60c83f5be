# SPDX-License-Identifier: MIT
"""Write answers and ask questions.

Data goes to stdout, as tables and texts for people or as one JSON document for programs; the rest
goes to stderr.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import click

from packhorse.core.durations import span_text
from packhorse.core.text import counted, nearest, printable
from packhorse.errors import PackhorseError

#: Columns are cut to the first of these, and only if that is not enough to the second.
_CELLS_MIN: Final = (8, 3)
_GAP: Final = "  "
_DEFAULT_PRIORITY: Final = "normal"
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
        "quiet": "yellow",
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


def print_struct(value: Any, **more: object) -> None:
    """Write a struct, and further fields, as one JSON document to stdout."""
    from packhorse.client.documents import document_of

    print_json({**document_of(value), **more})


def print_answer(text: str, *, as_json: bool, **document: object) -> None:
    """Write an answer to stdout: as a JSON document for programs, as text for people."""
    if as_json:
        print_json(document)
    else:
        print_text(text)


def print_list(
    name: str,
    found: Iterable[Any],
    headers: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    *,
    none: str,
    as_json: bool,
    document: Callable[[Any], object] | None = None,
) -> None:
    """Write a list to stdout: under `name` in a JSON document, or as a table.

    `document` describes one element, by default with all its fields. `none` goes to stderr instead
    of an empty table.
    """
    if as_json:
        from packhorse.client.documents import document_of

        print_json({name: list(map(document or document_of, found))})
    elif rows := list(map(row, found)):
        print_table(headers, rows)
    else:
        note(none)


def print_text(text: str) -> None:
    """Write data to stdout."""
    if sys.stdout is None:  # closed before the start: click would write nothing, silently
        raise OutputFailed("stdout is closed, so the answer cannot be told; let it go somewhere")
    click.echo(text)


def tell_numbers(numbers: Mapping[str, int], *, as_json: bool) -> None:
    """Write the number of jobs per outcome."""
    if as_json:
        print_json(dict(numbers))
    else:
        print_text(", ".join(f"{name} {number}" for name, number in numbers.items()))


def decoded_json(text: str) -> Any:
    """Decode an argument that is JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f"{text!r} is not JSON: {error}; a text has quotes: '\"text\"'"
        ) from None


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the known name most like a mistyped one, or say something else."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near!r}?"


def the_one(part: str, known: Iterable[str], *, least: int = 4) -> str:
    """Complete the beginning or end of an id, if one alone fits; else return the text as given."""
    ids = list(dict.fromkeys(known))
    if part in ids or len(part) < least:
        return part
    found = [each for each in ids if each.startswith(part) or each.endswith(part)]
    if len(found) > 1:
        raise click.UsageError(f"{part!r} is part of several ids: {', '.join(found[:5])}")
    return found[0] if found else part


def note(text: str) -> None:
    """Write to stderr what is not data."""
    click.echo(text, err=True)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, wrapped: bool = False
) -> None:
    """Write a table to stdout, cut to the terminal's width where there is one.

    The last column is cut first, then the widest of the others. `wrapped` continues the last column
    on the next line instead.
    """
    lines, widths = _laid_out(headers, rows, _terminal_width())
    if wrapped:
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
        # A long word, such as an id to be copied, is not broken.
        widths[-1] = max(len(line[-1]) for line in (headers, *lines))
    print_text(_padded(headers, widths))
    for line in lines:
        print_text(_padded(line, widths, colored=True))


def fitted(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    limit: int | None,
    *,
    colored: bool = False,
) -> list[str]:
    """Lay out a table in at most so many columns; return its lines."""
    lines, widths = _laid_out(headers, rows, limit)
    shown = [_padded(line, widths, colored=colored) for line in lines]
    return [_padded(headers, widths), *shown]


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write one name and value per line; leave out those without a value."""
    shown = [(name, one_line(value)) for name, value in fields if value not in (None, "", ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_text(f"{name:<{width}}{_GAP}{_colored(value, value)}")


def one_line(value: object) -> str:
    """Format a value as one line without control characters."""
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return ", ".join(one_line(item) for item in value) or "-"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    return printable(str(value))


def age(seconds: float | None) -> str:
    """Format a span as its two largest units: `3m 20s`."""
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
    """Format spans by priority; the default priority alone is not named."""
    if set(seconds) <= {_DEFAULT_PRIORITY}:
        return age(seconds.get(_DEFAULT_PRIORITY))
    return ", ".join(f"{name} {age(span)}" for name, span in seconds.items())


def span_ms(milliseconds: float) -> str:
    """Format a short span: `12.3ms`."""
    return span_text(milliseconds * 1000)


def _terminal_width() -> int | None:
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        return shutil.get_terminal_size().columns
    return None


def _laid_out(
    headers: Sequence[str], rows: Iterable[Sequence[object]], limit: int | None
) -> tuple[list[list[str]], list[int]]:
    """Return the cells as texts, and the widths of the columns."""
    lines = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    _narrow(widths, limit)
    return lines, widths


def _narrow(widths: list[int], limit: int | None) -> None:
    if limit is None:
        return
    last = len(widths) - 1
    # Never cut the first column: it is the id or name that people copy.
    for least in _CELLS_MIN:
        for index in (last, *sorted(range(1, last), key=lambda i: -widths[i])):
            excess = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
            if excess <= 0:
                return
            widths[index] = max(min(widths[index], least), widths[index] - excess)


def _wrapped(line: Sequence[str], width: int) -> Iterator[list[str]]:
    """Split a row into several; only the first has more than the last column."""
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


class OutputFailed(PackhorseError):
    """The command was carried out, but stdout cannot be written."""

    code = "OUTPUT_FAILED"


def lost_output(error: OSError) -> OutputFailed | None:
    """Return the error to show if `click.echo`, which writes everything, failed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not click.echo.__code__:
        return None
    _discard_output()
    return OutputFailed(f"stdout cannot be written: {error.strerror}; let it go somewhere else")


def _discard_output() -> None:
    """Discard what stdout has buffered: flushing it at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def confirm(question: str, *, yes: bool) -> None:
    """Continue only with the user's consent: an answer on a terminal, or --yes."""
    if yes:
        return
    if not _can_ask():
        raise click.UsageError(f"{question} There is no terminal to ask on: add --yes to do it.")
    if not _answered(question):
        note("Nothing was changed.")
        raise click.exceptions.Exit(1)


def _answered(question: str) -> bool:
    """Ask; raise `KeyboardInterrupt` where click would turn Ctrl-C into an answer of no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        note("")  # the question has no end of line yet
        if not isinstance(abort.__context__, KeyboardInterrupt):
            return False
        note("Nothing was changed.")
        raise KeyboardInterrupt from None


def _can_ask() -> bool:
    return sys.stdin.isatty()


def show_looks(looked: int, found: int, *, ended: bool = False) -> None:
    """Show on a terminal how many jobs were looked at, where one look was not enough."""
    if looked and sys.stderr.isatty():
        click.echo(f"\rLooked at {looked:,} jobs, found {found}", err=True, nl=ended)


def show_progress(done: int, expected: int) -> None:
    """Show on a terminal how many jobs are done."""
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {counted(expected, 'job')}", err=True, nl=done >= expected)
