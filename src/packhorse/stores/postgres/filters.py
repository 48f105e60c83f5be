# SPDX-License-Identifier: MIT
"""Which jobs a filter means, as conditions of a statement."""

from __future__ import annotations

from typing import Any, Final

from packhorse.stores.postgres.rows import CODE, RECORD_COLUMNS, worded
from packhorse.stores.postgres.statements import Rows
from packhorse.stores.requests import JobFilter

__all__ = ["chosen_finished", "search"]

_CONDITIONS: Final = (
    ("queue", "job.queue = %(queue)s"),
    ("task", "job.task = %(task)s"),
    ("tenant", "job.tenant = %(tenant)s"),
    ("tag", "job.seq in (select seq from {tags} where tag = %(tag)s)"),
    ("created_by", "job.created_by = %(created_by)s"),
    ("dead_reason", "job.dead_reason = %(dead_reason)s"),
    ("dead_letter", "job.dead_letter = %(dead_letter)s"),
)


def search(chosen: JobFilter, *, limit: int, below: int | None) -> Rows:
    """A page of jobs, newest first."""
    conditions, values = _conditions(chosen)
    if below is not None:
        conditions.append("job.seq < %(below)s")
    text = worded("search", columns=RECORD_COLUMNS, conditions=" and ".join(conditions))
    return Rows(text, {**values, "limit": limit, "below": below})


def chosen_finished(chosen: JobFilter, limit: int) -> Rows:
    """Finished jobs, oldest first."""
    conditions, values = _conditions(chosen)
    text = worded("chosen_finished", conditions=" and ".join(conditions))
    return Rows(text, {**values, "limit": max(0, limit)})


def _conditions(chosen: JobFilter) -> tuple[list[str], dict[str, Any]]:
    given = {name: getattr(chosen, name) for name, _ in _CONDITIONS}
    conditions = [text for name, text in _CONDITIONS if given[name] is not None]
    if chosen.statuses:
        conditions.append("job.status = any(%(statuses)s::bigint[])")
        given["statuses"] = [CODE[status] for status in chosen.statuses]
    return conditions or ["true"], given
