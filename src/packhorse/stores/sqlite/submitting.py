# SPDX-License-Identifier: MIT
"""Submit: a batch of new jobs in a few multi-row statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Final

from packhorse.job import JobStatus, NewJob
from packhorse.stores.plan import Steps
from packhorse.stores.sql.queue_row import QueueRow, queue_settings
from packhorse.stores.sql.rows import STATUS, json_text, payload_text, trace_of
from packhorse.stores.sql.steps import Change, Rows
from packhorse.stores.sql.submitting import due_us_of
from packhorse.stores.sqlite.rows import extra_of
from packhorse.stores.sqlite.statements import sql

__all__ = ["index_rare", "insert_rows", "known_before", "queue_rows"]

#: Rows in one insert: enough to spread the cost of a statement, below SQLite's parameter limit.
_ROWS_MAX: Final = 50
_COLUMNS: Final = 19


def queue_rows(queues: Iterable[str]) -> Steps[dict[str, QueueRow]]:
    """The queues of these names, known or not."""
    rows = yield Rows(sql("queue_rows"), (json_text(list(queues)),))
    return {
        name: QueueRow(
            queue_settings(name, settings),
            closed=bool(closed),
            tenanted=bool(tenanted),
            shelf=bool(shelf),
            limited_tasks=bool(limited_tasks),
            last=last,
        )
        for name, settings, closed, tenanted, shelf, last, limited_tasks in rows
    }


def known_before(jobs: Sequence[NewJob], last: int) -> Steps[dict[str, JobStatus]]:
    """The status of those that were there, with numbers up to the last one then."""
    ids = json_text([job.id for job in jobs])
    rows = yield Rows(sql("submit_known"), {"ids": ids, "up_to": last})
    return {job_id: STATUS[status] for job_id, status in rows}


def insert_rows(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Add those whose id is new; says how many."""
    rows = [
        (
            *(seq, job.id, job.task, job.queue, *stands, seq, job.priority, due_us_of(job, now_us)),
            *(now_us, now_us, now_us, job.timeout_us, job.deadline_us, job.tenant),
            *(trace_of(job), extra_of(job), payload_text(job)),
        )
        for seq, job, stands in zip(seqs, jobs, where, strict=True)
    ]
    inserted = 0
    for start in range(0, len(rows), _ROWS_MAX):
        chunk = rows[start : start + _ROWS_MAX]
        inserted += yield Change(_insert(len(chunk)), tuple(chain.from_iterable(chunk)))
    return inserted


@cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _COLUMNS) + ")"
    return sql("submit").format(rows=", ".join([row] * rows))


def index_rare(jobs: Sequence[NewJob]) -> Steps[None]:
    """Deadlines and tags, of the jobs that have some."""
    with_deadline = [job.id for job in jobs if job.deadline_us is not None]
    if with_deadline:
        yield Change(sql("submit_deadlines"), (json_text(with_deadline),))
    with_tags = [job.id for job in jobs if job.tags]
    if with_tags:
        yield Change(sql("submit_tags"), (json_text(with_tags),))
