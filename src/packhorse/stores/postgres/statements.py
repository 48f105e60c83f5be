# SPDX-License-Identifier: MIT
"""What a PostgreSQL plan may ask for, and the `.sql` files its words come from.

A round trip costs more than most statements, so whatever needs no answer (`Send`, `Lock`) is kept
until something does, and travels with it, or with the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

__all__ = [
    "GIVEN",
    "NOW",
    "Again",
    "Change",
    "ChangeMany",
    "Given",
    "Lock",
    "Now",
    "Once",
    "Parameters",
    "Rows",
    "Send",
    "Together",
    "sql",
]

Parameters = Sequence[Any] | Mapping[str, Any]


class Rows(NamedTuple):
    """Answered with all rows."""

    text: str
    parameters: Parameters = ()


class Change(NamedTuple):
    """Answered with the number of rows changed."""

    text: str
    parameters: Parameters = ()


class ChangeMany(NamedTuple):
    """The same change for many parameters; answered with the number of rows changed."""

    text: str
    parameters: Sequence[Parameters]


class Send(NamedTuple):
    """A change nobody counts: answered with None at once, sent with what comes next."""

    text: str
    parameters: Parameters = ()


class Together(NamedTuple):
    """Several `Rows` and `Change` in one round trip; answered with a tuple of their answers."""

    steps: Sequence[Rows | Change]


class Once(NamedTuple):
    """The only statement of its plan: answered with all rows, committed in the same round trip.

    What the plan wants woken by that commit it says before.
    """

    text: str
    parameters: Parameters = ()


class Lock:
    """Waits for the right to go on alone about these keys, until the plan ends.

    Answered with None at once, sent with what comes next. Taken in one order by everybody, so that
    plans that want the same keys cannot wait for each other.
    """

    __slots__ = ("keys", "shared")

    def __init__(self, *keys: str, shared: bool = False) -> None:
        self.keys = keys
        self.shared = shared


class Now(NamedTuple):
    """Answered with the store's clock, the same throughout a plan."""


class Given(NamedTuple):
    """Answered with the clock given to the store, or None when the server's own judges."""


NOW: Final = Now()
GIVEN: Final = Given()


class Again(Exception):
    """Raised by a plan that has lost a race: it is undone, and run anew from its beginning."""


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (files("packhorse.stores.postgres") / "sql" / f"{name}.sql").read_text("utf-8")
