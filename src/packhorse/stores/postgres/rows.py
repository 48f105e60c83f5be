# SPDX-License-Identifier: MIT
"""A job's row in PostgreSQL: its columns, and how rows are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import JobRecord, NewJob
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.statements import Again, Send, sql
from packhorse.stores.sql.rows import (
    ATTACHED,
    Extra,
    QueueRow,
    json_text,
    payload_text,
    queue_settings,
    read_extra,
    read_options,
    record_of,
    trace_of,
)
from packhorse.stores.sql.statements import Rows
from packhorse.stores.sql.submit import due_us_of, is_keyed

#: The columns of a claimed job, in the order of `packhorse.core.job.Job`.
HANDED_COLUMNS: Final = (
    "job.id, job.task, job.queue, job.fence, job.payload, job.priority, job.tenant, job.attempts, "
    "job.failures, job.crashes, job.lone_crashes, job.snoozes, job.timeout_us, job.deadline_us, "
    "coalesce(job.trace_id, replace(job.id, '-', '')), job.upstream_request_id, job.options, "
    "job.ready_us, job.rate_key, job.concurrency_key"
)

_COLUMNS: Final = (
    "seq, id, task, queue, status, priority, tenant, attempts, failures, crashes, lone_crashes, "
    "snoozes, releases, fence, created_us, updated_us, due_us, payload, trace_id, worker, "
    "timeout_us, deadline_us, started_us, finished_us, dead_reason, dead_letter, error, progress, "
    "result, result_until_us, options, upstream_request_id, created_by, extra, cancel_requested, "
    "parked_us, ordering_key, concurrency_key, rate_key, weight"
)
_RECORD_NAMES: Final = (*_COLUMNS.split(", "), "attached")
RECORD_COLUMNS: Final = f"{_COLUMNS}, {ATTACHED}"
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


def queue_rows(queues: Iterable[str]) -> Steps[dict[str, QueueRow]]:
    """The queues of these names, known or not."""
    rows = yield Rows(sql("queue_rows"), (list(queues),))
    return {
        name: QueueRow(
            queue_settings(name, settings),
            closed=closed,
            tenanted=tenanted,
            shelf=shelf,
            limited_tasks=limited_tasks,
            lined=lined,
            store_bytes=queue_settings("", bounding).max_bytes,
        )
        for name, settings, closed, tenanted, lined, shelf, limited_tasks, bounding in rows
    }


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


def index_rare(jobs: Sequence[NewJob], seqs: Sequence[int]) -> Steps[None]:
    """Index deadlines and tags in tables of their own: jobs without them pay nothing."""
    pairs = zip(jobs, seqs, strict=True)
    dated = [(job.deadline_us, seq) for job, seq in pairs if job.deadline_us is not None]
    if dated:
        deadlines, dated_seqs = zip(*dated, strict=True)
        rows = {"deadlines": list(deadlines), "seqs": list(dated_seqs)}
        yield Send(sql("submit_deadlines"), rows)
    tagged = [(seq, tag) for job, seq in zip(jobs, seqs, strict=True) for tag in job.tags]
    if tagged:
        tagged_seqs, tags = zip(*tagged, strict=True)
        yield Send(sql("submit_tags"), {"seqs": list(tagged_seqs), "tags": list(tags)})
