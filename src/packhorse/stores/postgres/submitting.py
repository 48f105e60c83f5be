# SPDX-License-Identifier: MIT
"""Submit: new jobs as arrays, one for each column, with the places they are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packhorse.job import NewJob
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.rows import extra_of, options_of
from packhorse.stores.postgres.statements import Again, Send, sql
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.queue_row import QueueRow, queue_settings
from packhorse.stores.sql.rows import STATUS, payload_text, trace_of
from packhorse.stores.sql.steps import NOW, Rows
from packhorse.stores.sql.submitting import (
    answered,
    due_us_of,
    fresh_answer,
    has_keys,
    is_keyed,
    place_of,
)

__all__ = [
    "index_rare",
    "insert_new",
    "is_plain",
    "queue_rows",
    "store_plain",
    "take_places",
]


def is_plain(job: NewJob) -> bool:
    """Whether nothing but the queue it goes to could make this job a special one."""
    return not (job.tenant or is_keyed(job) or has_keys(job))


def store_plain(jobs: Sequence[NewJob]) -> Steps[tuple[Submitted, ...]]:
    """Store plain jobs that go to plain queues."""
    now_us: int = yield NOW
    seqs = yield from take_places(len(jobs))
    where = [place_of(job, now_us) for job in jobs]
    inserted = yield from _insert_rows(jobs, seqs, where, now_us)
    yield from index_rare(jobs, seqs)
    for queue in dict.fromkeys(job.queue for job in jobs):
        yield Wake(f"queue:{queue}")
    if inserted == len(jobs):
        return tuple([fresh_answer(job, now_us) for job in jobs])
    asked = {"ids": [job.id for job in jobs], "but": list(seqs)}
    rows = yield Rows(sql("submit_known"), asked)
    known = {job_id: STATUS[status] for job_id, status in rows}
    return answered(jobs, known, now_us)


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
        )
        for name, settings, closed, tenanted, lined, shelf, limited_tasks in rows
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
    """Add jobs whose ids were new when that was asked."""
    inserted: int = yield from _insert_rows(jobs, seqs, where, now_us)
    if inserted < len(jobs):
        raise Again("a job of the same id was stored meanwhile, in another queue")
    return inserted


def _insert_rows(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Add those whose id is new; says how many. A job's number is also its place."""
    columns: dict[str, Any] = {
        "seq": list(seqs),
        "id": [job.id for job in jobs],
        "task": [job.task for job in jobs],
        "queue": [job.queue for job in jobs],
        "priority": [int(job.priority) for job in jobs],
        "due_us": [due_us_of(job, now_us) for job in jobs],
        "timeout_us": [job.timeout_us for job in jobs],
        "deadline_us": [job.deadline_us for job in jobs],
        "tenant": [job.tenant for job in jobs],
        "trace_id": [trace_of(job) for job in jobs],
        "options": [options_of(job) for job in jobs],
        "upstream_request_id": [job.upstream_request_id for job in jobs],
        "created_by": [job.created_by for job in jobs],
        "extra": [extra_of(job) for job in jobs],
        "keyed": [is_keyed(job) for job in jobs],
        "payload": [payload_text(job) for job in jobs],
    }
    standing = dict(zip(("status", "lane", "rank"), zip(*where, strict=True), strict=True))
    lists = {name: list(values) for name, values in standing.items()}
    rows = yield Rows(sql("submit_rows"), {**columns, **lists, "now": now_us})
    return len(rows)


def index_rare(jobs: Sequence[NewJob], seqs: Sequence[int]) -> Steps[None]:
    """What few jobs have is kept apart, so that jobs without it pay nothing."""
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
