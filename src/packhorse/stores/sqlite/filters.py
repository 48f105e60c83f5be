# SPDX-License-Identifier: MIT
"""Which jobs a filter means, as conditions of a statement."""

from __future__ import annotations

from typing import Any, Final

from packhorse.stores.requests import JobFilter
from packhorse.stores.sqlite.rows import CODE, RECORD_COLUMNS, json_text
from packhorse.stores.sqlite.statements import Rows, sql

__all__ = ["chosen_finished", "search"]

_CONDITIONS: Final = (
    ("queue", "job.queue = :queue"),
    ("task", "job.task = :task"),
    ("tenant", "job.tenant = :tenant"),
    ("tag", "job.seq in (select seq from packhorse_tags where tag = :tag)"),
    ("created_by", "json_extract(job.extra, '$.created_by') = :created_by"),
    ("dead_reason", "job.dead_reason = :dead_reason"),
    ("dead_letter", "job.dead_letter = :dead_letter"),
)


def search(chosen: JobFilter, *, limit: int, below: int | None) -> Rows:
    """A page of jobs, newest first."""
    conditions, values = _conditions(chosen)
    if below is not None:
        conditions.append("job.seq < :below")
    text = sql("search").format(columns=RECORD_COLUMNS, conditions=" and ".join(conditions))
    return Rows(text, {**values, "limit": limit, "below": below})


def chosen_finished(chosen: JobFilter, limit: int) -> Rows:
    """Finished jobs, oldest first."""
    conditions, values = _conditions(chosen)
    text = sql("chosen_finished").format(conditions=" and ".join(conditions))
    return Rows(text, {**values, "limit": max(0, limit)})


def _conditions(chosen: JobFilter) -> tuple[list[str], dict[str, Any]]:
    given = {name: getattr(chosen, name) for name, _ in _CONDITIONS}
    conditions = [text for name, text in _CONDITIONS if given[name] is not None]
    if chosen.statuses:
        conditions.append("job.status in (select value from json_each(:statuses))")
        given["statuses"] = json_text([CODE[status] for status in chosen.statuses])
    return conditions or ["true"], given
