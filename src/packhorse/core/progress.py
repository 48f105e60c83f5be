# SPDX-License-Identifier: MIT
"""How far a handler says its job is: what every store keeps as it is."""

from __future__ import annotations

from typing import Final

from packhorse.core.job import Progress
from packhorse.errors import PayloadError

#: A longer note of progress is cut.
NOTE_LENGTH_MAX: Final = 1_000
#: The largest number of progress: larger ones are not exact.
PROGRESS_MAX: Final = 2**53


def checked_progress(done: float, total: float | None, note: str) -> Progress:
    """Progress as a handler told it; what no store could keep is a `PayloadError`."""
    if total is not None:
        total = _measure(total, "total")
    return Progress(done=_measure(done, "done"), total=total, note=_note_text(note))


def _measure(value: object, name: str) -> float:
    """A number that every store keeps as it is."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        told = f"of type {type(value).__name__}"
    elif 0 <= value <= PROGRESS_MAX:  # so it is neither NaN nor infinite
        return float(value)
    else:
        told = "out of bounds"
    raise PayloadError(
        f"ctx.progress(): {name} is {told}; give a number from 0 to {PROGRESS_MAX:g}", field=name
    )


def _note_text(note: object) -> str:
    if not isinstance(note, str):
        kind = type(note).__name__
        raise PayloadError(f"ctx.progress(): note is of type {kind}; give a text", field="note")
    # Half characters, as names of files may have, are no text that a store could keep.
    return note[:NOTE_LENGTH_MAX].encode("utf-8", "replace").decode()
