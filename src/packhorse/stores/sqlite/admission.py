# SPDX-License-Identifier: MIT
"""Submit: jobs that are alike go the shortest way; then those whom nobody refuses; then others."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import NewJob
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.admission import one_by_one, shed_after
from packhorse.stores.sql.queue_row import QueueRow
from packhorse.stores.sql.steps import NOW
from packhorse.stores.sql.submitting import (
    answered,
    fresh_answer,
    insert_jobs,
    is_keyed,
    store_all,
)
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE
from packhorse.stores.sqlite.plain import Alike, alike
from packhorse.stores.sqlite.submitting import known_before

__all__ = ["submit_steps"]


def submit_steps(jobs: Sequence[NewJob]) -> Steps[tuple[Submitted, ...]]:
    """All or none; see `JobStore.submit`. Jobs without keys of their own go in one batch."""
    if not jobs:
        return ()
    batch = alike(jobs)
    if batch is not None:
        stored: tuple[Submitted, ...] | None = yield from _store_alike(jobs, batch)
        if stored is not None:
            return stored
    if any(is_keyed(job) for job in jobs):
        answers: tuple[Submitted, ...] = yield from one_by_one(SQLITE, jobs, ONE_WRITER)
        return answers
    queues = yield from SQLITE.queue_rows(dict.fromkeys([job.queue for job in jobs]))
    if _nobody_refuses(jobs, queues):
        answers = yield from _store_unasked(jobs, queues)
        return answers
    answers = yield from store_all(SQLITE, jobs, queues, ONE_WRITER)
    if any(row.drops for row in queues.values()):
        answers = yield from shed_after(SQLITE, jobs, answers, ONE_WRITER)
    return answers


def _store_alike(jobs: Sequence[NewJob], batch: Alike) -> Steps[tuple[Submitted, ...] | None]:
    """Store jobs that are alike, in a queue that has no say in it; None when it has."""
    first, now_us = batch.first, (yield NOW)
    queues = yield from SQLITE.queue_rows([first.queue])
    row = queues[first.queue]
    if row.may_refuse or row.ranks_specially or row.gates_every_job:
        return None
    added = 0
    for insert in batch.inserts(now_us, row.last):
        added += yield insert
    yield Wake(f"queue:{first.queue}")
    if added == len(jobs):
        status = fresh_answer(first, now_us).status
        return tuple([Submitted(job_id, False, status) for job_id in batch.ids])
    known = yield from known_before(jobs, row.last)
    return answered(jobs, known, now_us)


def _nobody_refuses(jobs: Sequence[NewJob], queues: dict[str, QueueRow]) -> bool:
    return not (
        any(row.may_refuse or row.ranks_specially for row in queues.values())
        or any(job.weight != 1 or job.tenant for job in jobs)
    )


def _store_unasked(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow]
) -> Steps[tuple[Submitted, ...]]:
    """Store jobs, and look only afterwards for those that were there already."""
    now_us: int = yield NOW
    inserted = yield from insert_jobs(SQLITE, jobs, queues, now_us, ONE_WRITER)
    if inserted == len(jobs):
        return tuple([fresh_answer(job, now_us) for job in jobs])
    known = yield from known_before(jobs, max(row.last for row in queues.values()))
    return answered(jobs, known, now_us)
