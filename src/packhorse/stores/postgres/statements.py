# SPDX-License-Identifier: MIT
"""What a PostgreSQL plan may ask for, and the `.sql` files its words come from.

A round trip costs more than most statements, so whatever needs no answer (`Send`, `Lock`) is kept
until something does, and travels with it, or with the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Generic, NamedTuple, TypeVar

from packhorse.stores.sql.steps import NOW, Change, ChangeMany, Now, Parameters, Rows

__all__ = [
    "GIVEN",
    "NOW",
    "Again",
    "Change",
    "ChangeMany",
    "Given",
    "Like",
    "Lock",
    "Now",
    "Once",
    "Parameters",
    "Rows",
    "Send",
    "Short",
    "Together",
    "sql",
]

T = TypeVar("T")


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


class Like(NamedTuple):
    """Parameters by name of which most are those of the last call: these need no binding again."""

    shared: Mapping[str, Any]  #: the very object of the last call
    own: Mapping[str, bytes]  #: texts, in UTF-8


class Short(Generic[T]):
    """A verb that is one statement, mostly; it may share its commit with others.

    It is tried once. If it does not come to an answer, nothing was written, and the plan's other
    steps follow.
    """

    __slots__ = ("answer", "counts", "parameters", "text", "topics", "tried")

    def __init__(
        self,
        text: str,
        parameters: Parameters | Like,
        topics: Sequence[str],
        answer: Callable[[Any], T | None],
        *,
        counts: bool,
    ) -> None:
        self.text = text
        self.parameters = parameters
        self.topics = topics  #: to wake once it is committed
        self.answer = answer  #: the verb's, or None, from the rows
        self.counts = counts  #: from the number of rows changed instead
        self.tried = False


class Lock:
    """Waits for the right to go on alone about these keys, until the plan ends.

    Answered with None at once, sent with what comes next. Taken in one order by everybody, so that
    plans that want the same keys cannot wait for each other.
    """

    __slots__ = ("keys", "shared")

    def __init__(self, *keys: str, shared: bool = False) -> None:
        self.keys = keys
        self.shared = shared


class Given(NamedTuple):
    """Answered with the clock given to the store, or None when the server's own judges."""


GIVEN: Final = Given()


class Again(Exception):
    """Raised by a plan that has lost a race: it is undone, and run anew from its beginning."""


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (files("packhorse.stores.postgres") / "sql" / f"{name}.sql").read_text("utf-8")
