# SPDX-License-Identifier: MIT
"""What a SQLite plan may ask for, and the `.sql` files its words come from."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from packhorse.stores.sql.steps import NOW, Change, ChangeMany, Now, Parameters, Rows

__all__ = ["NOW", "Change", "ChangeMany", "Now", "Rows", "Short", "sql"]


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
