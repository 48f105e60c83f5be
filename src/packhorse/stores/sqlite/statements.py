# SPDX-License-Identifier: MIT
"""What a SQLite plan may ask for, and the `.sql` files its words come from."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Protocol

from packhorse.job import NewJob
from packhorse.stores.sql.steps import NOW, Change, ChangeMany, Now, Parameters, Rows

__all__ = ["NOW", "Change", "ChangeMany", "Now", "Rows", "Short", "sql"]


class Short(Protocol):
    """A verb's common case: one statement, which is a transaction by itself.

    It changes one row, or none: then this is not the common case, and the plan's steps are taken.
    """

    taken_in: ClassVar[bool]  #: the row goes to the intake

    @property
    def text(self) -> str:
        """The statement."""
        ...

    @property
    def job(self) -> NewJob:
        """The job it is about."""
        ...

    def at(self, now_us: int) -> tuple[Parameters, Any]:
        """What is put into the text, and the answer of the verb when a row was changed."""
        ...


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (files("packhorse.stores.sqlite") / "sql" / f"{name}.sql").read_text("utf-8")
