# SPDX-License-Identifier: MIT
"""What a SQLite plan may ask for, and the `.sql` files its words come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["NOW", "Change", "ChangeMany", "Now", "Rows", "Short", "sql"]

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


class Now(NamedTuple):
    """Answered with the store's clock, the same throughout a plan."""


NOW: Final = Now()


class Short(Protocol):
    """A verb's common case: one statement, which is a transaction by itself.

    It changes one row, or none: then this is not the common case, and the plan's steps are taken.
    """

    text: str
    topic: str  #: to be woken

    def parameters(self, now_us: int) -> Parameters:
        """What is put into the text."""
        ...

    def answer(self, now_us: int) -> Any:
        """The answer of the verb, when a row was changed."""
        ...


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (files("packhorse.stores.sqlite") / "sql" / f"{name}.sql").read_text("utf-8")
