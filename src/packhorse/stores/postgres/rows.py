# SPDX-License-Identifier: MIT
"""A job's row in PostgreSQL: its columns, and how rows are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.core.job import NewJob
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.statements import Again, sql
from packhorse.stores.sql.new_jobs import due_us_of, is_keyed
from packhorse.stores.sql.rows import (
    Extra,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sql.statements import Rows

#: The columns of a claimed job, in the order of `packhorse.core.job.Job`.
HANDED_COLUMNS: Final = (
    "job.id, job.task, job.queue, job.fence, job.payload, job.priority, job.tenant, job.attempts, "
    "job.failures, job.crashes, job.lone_crashes, job.snoozes, job.timeout_us, job.deadline_us, "
    "coalesce(job.trace_id, replace(job.id, '-', '')), job.upstream_request_id, job.options, "
    "job.ready_us, job.rate_key, job.concurrency_key"
)

#: Columns that hold a field of `NewJob` as it is.
_UNCHANGED: Final = (
    *("id", "task", "queue", "timeout_us", "deadline_us", "tenant"),
    *("upstream_request_id", "created_by"),
)


def extra_of(job: NewJob) -> str | None:
    """The column for what few jobs have; None for most."""
    if not (job.tags or job.unique or job.idempotency):
        return None
    return json_text(Extra(job.tags, unique=job.unique, idempotency=job.idempotency))


def options_of(job: NewJob) -> str | None:
    """The column for what a call decided for its job alone."""
    return None if job.options is None else json_text(job.options)


def take_places(count: int) -> Steps[list[int]]:
    """Take `count` numbers behind all that were ever given out, as sequence or as place."""
    if count == 0:
        return []
    rows = yield Rows(sql("numbers"), (count,))
    return [number for (number,) in rows]


def insert_new(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Add jobs whose ids were new when that was asked. A job's number is also its place."""
    places = zip(("status", "lane", "rank"), zip(*where, strict=True), strict=True)
    columns: dict[str, Any] = {
        **{name: [getattr(job, name) for job in jobs] for name in _UNCHANGED},
        **{name: list(values) for name, values in places},
        "seq": list(seqs),
        "priority": [int(job.priority) for job in jobs],
        "due_us": [due_us_of(job, now_us) for job in jobs],
        "trace_id": [trace_of(job) for job in jobs],
        "options": [options_of(job) for job in jobs],
        "extra": [extra_of(job) for job in jobs],
        "keyed": [is_keyed(job) for job in jobs],
        "payload": [payload_text(job) for job in jobs],
    }
    rows = yield Rows(sql("submit_rows"), {**columns, "now": now_us})
    if len(rows) < len(jobs):
        raise Again("a job of the same id was stored meanwhile, in another queue")
    return len(rows)
