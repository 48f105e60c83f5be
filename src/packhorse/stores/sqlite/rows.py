# SPDX-License-Identifier: MIT
"""A job's row in SQLite: its columns, and what few jobs have in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.job import JobRecord, NewJob
from packhorse.stores.sql.rows import Extra, json_text, read_extra, record_of

__all__ = ["RECORD_COLUMNS", "extra_of", "read_record"]

RECORD_COLUMNS: Final = (
    "seq, id, task, queue, status, priority, tenant, attempts, failures, crashes, lone_crashes, "
    "snoozes, releases, fence, created_us, updated_us, due_us, payload, trace_id, worker, "
    "timeout_us, deadline_us, started_us, finished_us, dead_reason, dead_letter, error, progress, "
    "result, result_until_us, extra, cancel_requested, parked_us, ordering_key, concurrency_key, "
    "rate_key, weight"
)
_RECORD_NAMES: Final = tuple(RECORD_COLUMNS.split(", "))


def extra_of(job: NewJob) -> str | None:
    """The column for what few jobs have; None for most."""
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
    """A job from `RECORD_COLUMNS`; without `bodies`, payload and result stay out."""
    values = dict(zip(_RECORD_NAMES, row, strict=True))
    return record_of(values, read_extra(values["extra"]), now_us, bodies=bodies)
