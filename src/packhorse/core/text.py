# SPDX-License-Identifier: MIT
"""Texts of others: exceptions, ids and messages, bounded and safe to print or to store."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

#: An id as `clock.new_id` makes them (7), or one derived from another (8). The first begins with
#: the time, so that only its end tells apart jobs that were submitted together.
_MADE_HERE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT: Final = 8


def short_id(whole: str) -> str:
    """The end of an id that was made here; one that a caller chose is left as it is."""
    return whole[-_SHORT:] if _MADE_HERE.fullmatch(whole) else whole


def counted(number: int, noun: str) -> str:
    """A number of things: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def declared_twice(what: str, places: tuple[str, str], modules: Sequence[str]) -> str:
    """Say where two things of one name are declared, or how one line of code came to run twice."""
    before, now = places
    if before != now:
        return f"{what} is declared twice: at {before} and at {now}; give one of them another name"
    why = (
        "a cell or a function ran again, or a loop went on; run it once, or give each its own name"
    )
    if modules[0] != modules[1]:
        why = f"its module was imported as {modules[0]} and as {modules[1]}; import it under one"
    return f"{what} is declared twice: at {now}, a line that ran twice: {why}"


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The known name most like a mistyped one; None: no other is `alike`, of 1."""
    others = sorted({*known} - {name})
    return next(iter(difflib.get_close_matches(name, others, n=1, cutoff=alike)), None)


def printable(text: str) -> str:
    """A text that stays on its line, and writes to a terminal nothing that was not meant."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " for sign in text)


def printable_lines(text: str) -> str:
    """The same of a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


#: Of a longer stack the end is kept, where the error happened.
STACK_LENGTH_MAX: Final = 8_000
_FRAMES_MAX: Final = 50
_OWN_CODE: Final = "packhorse."


def text_of(value: object) -> str:
    """A value as text; one that cannot be shown says so."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ is user code like any other
        return f"<unprintable {type(value).__name__}>"


def stack_of(error: BaseException) -> str | None:
    """The traceback from the first frame of user code on; None if there is none."""
    frames = error.__traceback__
    while frames is not None and _is_own(frames):
        frames = frames.tb_next
    if frames is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, frames, limit=-_FRAMES_MAX)
    except Exception:  # noqa: BLE001 - an exception that cannot be shown must not hide the failure
        return None
    return bounded_stack("".join(lines))


def bounded_stack(stack: str) -> str:
    """As much of a stack as is kept: its end."""
    if len(stack) > STACK_LENGTH_MAX:
        stack = "…" + stack[1 - STACK_LENGTH_MAX :]
    return storable(stack)


def storable(text: str) -> str:
    """The text without what no store can write: lone surrogates and NUL."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def _is_own(frames: TracebackType) -> bool:
    module = frames.tb_frame.f_globals.get("__name__", "")
    return isinstance(module, str) and module.startswith(_OWN_CODE)
