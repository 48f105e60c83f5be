# SPDX-License-Identifier: MIT
"""The row of a job in SQLite: its columns, and how rows are inserted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final

from packhorse.core.job import NewJob
from packhorse.stores.plan import Steps
from packhorse.stores.sql.new_jobs import due_us_of
from packhorse.stores.sql.rows import (
    Extra,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sql.statements import NOW, Change, Rows, SendMany
from packhorse.stores.sqlite.statements import sql


def extra_of(job: NewJob) -> str | None:
    """Return the column for rare fields; None for most jobs."""
    if not (
        job.tags
        or job.options
        or job.upstream_request_id
        or job.created_by
        or job.unique
        or job.idempotency
    ):
        return None
    wishes = (job.tags, job.options, job.upstream_request_id, job.created_by)
    return json_text(Extra(*wishes, job.unique, job.idempotency))


#: Characters of a payload that lies in its row; longer ones would be written again by each claim.
LARGE: Final = 2000
#: Rows in one insert: enough to spread the cost of a statement, below SQLite's parameter limit.
_ROWS_MAX: Final = 50
_COLUMNS: Final = 19


def insert_rows(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Insert the jobs whose id is new; return how many. `keep_bodies` adds large payloads."""
    apart = any(len(job.payload) > LARGE for job in jobs)
    if apart:
        [(apart,)] = yield Rows(sql("bodies_known"), (now_us,))
    rows = [
        (
            *(seq, job.id, job.task, job.queue, *stands, seq, job.priority, due_us_of(job, now_us)),
            *(now_us, now_us, now_us, job.timeout_us, job.deadline_us, job.tenant),
            *(trace_of(job), extra_of(job)),
            "" if apart and len(job.payload) > LARGE else payload_text(job),
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
    return sql("submit", rows=", ".join([row] * rows))


def keep_bodies(jobs: Sequence[NewJob]) -> Steps[None]:
    """Move the large payloads of jobs just stored beside their rows."""
    large = [job for job in jobs if len(job.payload) > LARGE]
    if large:  # the rows first: the pages they free are there for the bodies
        cut = {"ids": json_text([job.id for job in large]), "size": LARGE, "now": (yield NOW)}
        yield Change(sql("payloads_cut"), cut)
        yield SendMany(sql("body_keep"), [(payload_text(job), job.id) for job in large])
