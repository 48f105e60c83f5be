# SPDX-License-Identifier: MIT
"""Which jobs a filter means, as conditions of a statement."""

from __future__ import annotations

from typing import Any, Final

from packhorse.stores.requests import JobFilter
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.rows import CODE
from packhorse.stores.sql.steps import Rows

__all__ = ["chosen_finished", "search"]

_FIELDS: Final = ("queue", "task", "tenant", "tag", "created_by", "dead_reason", "dead_letter")


def search(dialect: Dialect, chosen: JobFilter, *, limit: int, below: int | None) -> Rows:
    """A page of jobs, newest first."""
    given = _given(dialect, chosen)
    if below is not None:
        given["below"] = below
    conditions = _conditions(dialect, given)
    text = dialect.sql("search", columns=dialect.record_columns, conditions=conditions)
    return Rows(text, {**given, "limit": limit})


def chosen_finished(dialect: Dialect, chosen: JobFilter, limit: int) -> Rows:
    """Finished jobs, oldest first."""
    given = _given(dialect, chosen)
    text = dialect.sql("chosen_finished", conditions=_conditions(dialect, given))
    return Rows(text, {**given, "limit": max(0, limit)})


def _given(dialect: Dialect, chosen: JobFilter) -> dict[str, Any]:
    fields = {name: getattr(chosen, name) for name in _FIELDS}
    given = {name: value for name, value in fields.items() if value is not None}
    if chosen.statuses:
        given["statuses"] = dialect.many([CODE[status] for status in chosen.statuses])
    return given


def _conditions(dialect: Dialect, given: dict[str, Any]) -> str:
    return " and ".join([dialect.conditions[name] for name in given]) or "true"
