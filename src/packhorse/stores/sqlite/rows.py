# SPDX-License-Identifier: MIT
"""The row of a job in SQLite: its columns, and how rows are inserted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from packhorse.core.job import JobRecord, NewJob
from packhorse.stores.plan import Steps
from packhorse.stores.sql.rows import (
    ATTACHED,
    Extra,
    QueueRow,
    json_text,
    payload_text,
    queue_settings,
    read_extra,
    record_of,
    trace_of,
)
from packhorse.stores.sql.statements import NOW, Change, ChangeMany, Rows
from packhorse.stores.sql.submit import due_us_of
from packhorse.stores.sqlite.statements import sql

_COLUMNS_AS_THEY_LIE: Final = (
    "seq, id, task, queue, status, priority, tenant, attempts, failures, crashes, lone_crashes, "
    "snoozes, releases, fence, created_us, updated_us, due_us, payload, trace_id, worker, "
    "timeout_us, deadline_us, started_us, finished_us, dead_reason, dead_letter, error, progress, "
    "result, result_until_us, extra, cancel_requested, parked_us, ordering_key, concurrency_key, "
    "rate_key, weight"
)
_RECORD_NAMES: Final = (*_COLUMNS_AS_THEY_LIE.split(", "), "attached")
RECORD_COLUMNS: Final = _COLUMNS_AS_THEY_LIE.replace(" payload,", " {payload},") + f", {ATTACHED}"


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


def read_record(row: Sequence[Any], now_us: int, *, bodies: bool = True) -> JobRecord:
    """Return a job from `RECORD_COLUMNS`; without `bodies`, leave out payload and result."""
    values = dict(zip(_RECORD_NAMES, row, strict=True))
    return record_of(values, read_extra(values["extra"]), now_us, bodies=bodies)


#: Characters of a payload that lies in its row; longer ones would be written again by each claim.
LARGE: Final = 2000
#: Rows in one insert: enough to spread the cost of a statement, below SQLite's parameter limit.
_ROWS_MAX: Final = 50
_COLUMNS: Final = 19


def queue_rows(queues: Iterable[str]) -> Steps[dict[str, QueueRow]]:
    """Return the queues of these names, declared or not."""
    rows = yield Rows(sql("queue_rows"), (json_text(list(queues)),))
    return {
        name: QueueRow(
            queue_settings(name, settings),
            closed=bool(closed),
            tenanted=bool(tenanted),
            shelf=bool(shelf),
            limited_tasks=bool(limited_tasks),
            last=last,
            store_bytes=queue_settings("", bounding).max_bytes,
        )
        for name, settings, closed, tenanted, shelf, last, limited_tasks, bounding in rows
    }


def insert_rows(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Insert the jobs whose id is new; return how many. `index_rare` adds large payloads."""
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


def index_rare(jobs: Sequence[NewJob]) -> Steps[None]:
    """Add deadlines and tags of jobs just stored, and move large payloads beside their rows."""
    with_deadline = [job.id for job in jobs if job.deadline_us is not None]
    if with_deadline:
        yield Change(sql("submit_deadlines"), (json_text(with_deadline),))
    with_tags = [job.id for job in jobs if job.tags]
    if with_tags:
        yield Change(sql("submit_tags"), (json_text(with_tags),))
    large = [job for job in jobs if len(job.payload) > LARGE]
    if large:  # the rows first: the pages they free are there for the bodies
        cut = {"ids": json_text([job.id for job in large]), "size": LARGE, "now": (yield NOW)}
        yield Change(sql("payloads_cut"), cut)
        yield ChangeMany(sql("body_keep"), [(payload_text(job), job.id) for job in large])
