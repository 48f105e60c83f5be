# SPDX-License-Identifier: MIT
"""Kinds of values on the command line."""

from __future__ import annotations

from typing import Final

import click

from packhorse.durations import microseconds
from packhorse.errors import ConfigError

__all__ = ["Bounds", "bounds", "duration", "queue_names"]

#: The fewest and the most worker processes.
Bounds = tuple[int, int]
#: More on one machine are a mistyped number.
_WORKERS_MAX: Final = 256


def duration(text: str) -> str:
    """A span such as `30`, `30s` or `1h30m`; handed on as it was written."""
    try:
        microseconds(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


def queue_names(text: str) -> tuple[str, ...]:
    """Names of queues with commas between them."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise click.BadParameter("a name is missing beside a comma")
    for name in names:
        bare, colon, cap = name.rpartition(":")
        if colon and cap.isdecimal():
            raise click.BadParameter(
                f"a cap per worker, as in {name!r}, is not supported by this release; write "
                f"{bare!r}, and limit the whole worker with --concurrency"
            )
    return names


def bounds(text: str) -> Bounds:
    """`1..4`: at least one worker process, at most four."""
    least, dots, most = text.partition("..")
    if not (dots and least.strip().isdecimal() and most.strip().isdecimal()):
        raise click.BadParameter("write the fewest and the most workers, such as 1..4")
    found = int(least), int(most)
    if not 1 <= found[0] <= found[1] <= _WORKERS_MAX:
        raise click.BadParameter(f"give 1 to {_WORKERS_MAX} workers, the fewest first")
    return found
