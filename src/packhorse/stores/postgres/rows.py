# SPDX-License-Identifier: MIT
"""A job's row in PostgreSQL: its columns, and those for what few jobs have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import JobRecord, NewJob
from packhorse.stores.postgres.statements import sql
from packhorse.stores.sql.rows import Extra, json_text, read_extra, read_options, record_of

__all__ = [
    "HANDED_COLUMNS",
    "RECORD_COLUMNS",
    "extra_of",
    "options_of",
    "read_record",
    "worded",
]

#: What a worker is handed, in the order of `packhorse.job.Job`, once its row is claimed.
HANDED_COLUMNS: Final = (
    "job.id, job.task, job.queue, job.fence, job.payload, job.priority, job.tenant, job.attempts, "
    "job.failures, job.crashes, job.lone_crashes, job.snoozes, job.timeout_us, job.deadline_us, "
    "coalesce(job.trace_id, replace(job.id, '-', '')), job.upstream_request_id, job.options, "
    "job.ready_us, job.rate_key, job.concurrency_key"
)

RECORD_COLUMNS: Final = (
    "seq, id, task, queue, status, priority, tenant, attempts, failures, crashes, lone_crashes, "
    "snoozes, releases, fence, created_us, updated_us, due_us, payload, trace_id, worker, "
    "timeout_us, deadline_us, started_us, finished_us, dead_reason, dead_letter, error, progress, "
    "result, result_until_us, options, upstream_request_id, created_by, extra, cancel_requested, "
    "parked_us, ordering_key, concurrency_key, rate_key, weight"
)
_RECORD_NAMES: Final = tuple(RECORD_COLUMNS.split(", "))


def worded(name: str, **parts: str) -> str:
    """The statement in `sql/<name>.sql`, with parts of its text filled in."""
    text = sql(name)
    for part, words in parts.items():
        text = text.replace(f"{{{part}}}", words)
    return text


def extra_of(job: NewJob) -> str | None:
    """The column for what few jobs have; None for most."""
    if not (job.tags or job.unique or job.idempotency):
        return None
    return json_text(Extra(job.tags, unique=job.unique, idempotency=job.idempotency))


def options_of(job: NewJob) -> str | None:
    """The column for what a call decided for its job alone."""
    return None if job.options is None else json_text(job.options)


def read_record(row: Sequence[Any], now_us: int, *, bodies: bool = True) -> JobRecord:
    """A job from `RECORD_COLUMNS`; without `bodies`, payload and result stay out."""
    values = dict(zip(_RECORD_NAMES, row, strict=True))
    extra = msgspec.structs.replace(
        read_extra(values["extra"]),
        options=read_options(values["options"]),
        upstream_request_id=values["upstream_request_id"],
        created_by=values["created_by"],
    )
    return record_of(values, extra, now_us, bodies=bodies)
