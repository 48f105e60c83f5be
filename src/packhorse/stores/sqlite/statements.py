# SPDX-License-Identifier: MIT
"""What a SQLite plan may ask for, and the `.sql` files its words come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

__all__ = ["NOW", "Change", "ChangeMany", "Now", "Rows", "sql"]

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


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (files("packhorse.stores.sqlite") / "sql" / f"{name}.sql").read_text("utf-8")
