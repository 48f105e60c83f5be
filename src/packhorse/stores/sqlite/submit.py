# SPDX-License-Identifier: MIT
"""Submit on SQLite: the fast path of unconstrained jobs through the intake, and the general one.

The cost of a submit in its own transaction is the pages it writes to the log: the row, its id and
its lane are on three pages, the end of the intake is one. Every other plan first unloads the intake
in its own transaction, so that each job has its number and place, in the order of submitting,
before any plan reads them. Only a read of one job by its id looks into the intake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from packhorse.core.constraints import Constraint, are_alike, job_constraints
from packhorse.core.job import JobStatus, NewJob
from packhorse.core.lifecycle import status_at_submit
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.dialect import read_queues
from packhorse.stores.sql.new_jobs import due_us_of, fresh_answer, known_jobs, refuse_known
from packhorse.stores.sql.rows import CODE, RANK_PER_PRIORITY, RECORD_COLUMNS, Lane, payload_text
from packhorse.stores.sql.statements import NOW, Change, Parameters, Rows
from packhorse.stores.sql.submit import submit_general
from packhorse.stores.sqlite.dialect import LARGE, ONE_WRITER, SQLITE, extra_of
from packhorse.stores.sqlite.statements import sql


def submit_steps(jobs: Sequence[NewJob], *, ids_are_new: bool) -> Steps[tuple[Submitted, ...]]:
    """Store all or none; see `JobStore.submit`."""
    if not jobs:
        return ()
    yield from refuse_known(SQLITE, jobs, ids_are_new=ids_are_new)
    batch = alike(jobs)
    if batch is not None:
        stored: tuple[Submitted, ...] | None = yield from _store_alike(
            batch, ids_are_new=ids_are_new
        )
        if stored is not None:
            return stored
    answers: tuple[Submitted, ...] = yield from submit_general(SQLITE, jobs, ONE_WRITER)
    return answers


def _store_alike(batch: Alike, *, ids_are_new: bool) -> Steps[tuple[Submitted, ...] | None]:
    """Store jobs that are alike; None if their queue has constraints or an id is known."""
    first, now_us = batch.first, (yield NOW)
    queues = yield from read_queues(SQLITE, [first.queue])
    row = queues[first.queue]
    if row.constraints:
        return None
    if not ids_are_new:
        known = yield from known_jobs(SQLITE, batch.ids)
        if known or len(set(batch.ids)) < len(batch.ids):
            return None
    yield from batch.inserts(now_us, row.last)
    yield Wake(f"queue:{first.queue}")
    status = fresh_answer(first, now_us).status
    return tuple([Submitted(job_id, False, status) for job_id in batch.ids])


#: Rows of one insert: enough to spread the cost of a statement.
_ROWS_MAX: Final = 100
_QUEUED: Final = (CODE[JobStatus.QUEUED], int(Lane.READY))
_PENDING: Final = (CODE[JobStatus.PENDING], int(Lane.WAITING))
#: Constraints that the fast path knows.
_KNOWN: Final = (Constraint(0), Constraint.DELAY)


def short_submit(jobs: Sequence[NewJob], *, ids_are_new: bool) -> IntakeSubmit | None:
    """Return the fast path of one job whose id is new; None if it is not for these jobs."""
    if not ids_are_new or len(jobs) != 1 or job_constraints(jobs[0]) not in _KNOWN:
        return None
    return None if len(jobs[0].payload) > LARGE else IntakeSubmit(jobs[0])


class Alike(NamedTuple):
    """Jobs of the fast path that differ in their ids and arguments only."""

    first: NewJob
    ids: list[str]
    payloads: list[str]
    trace_id: str | None  #: of all jobs; None: made from the id of each

    def inserts(self, now_us: int, last: int) -> Iterator[Change]:
        """Yield the statements that insert the jobs, with numbers above `last`."""
        job = self.first
        due_us = now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us
        ready = due_us <= now_us
        where = (*_QUEUED, job.priority * RANK_PER_PRIORITY) if ready else (*_PENDING, due_us)
        when = (job.priority, due_us, now_us, now_us, now_us, job.timeout_us)
        own = [""] * (2 * len(self.ids))
        own[::2], own[1::2] = self.ids, self.payloads
        for start in range(0, len(self.ids), _ROWS_MAX):
            chunk = own[2 * start : 2 * (start + _ROWS_MAX)]
            place = last + 1 + start
            shared = (place, job.task, job.queue, *where, place, *when, self.trace_id)
            yield Change(_insert(len(chunk) // 2), (*shared, *chunk))


def alike(jobs: Sequence[NewJob]) -> Alike | None:
    """Return the jobs, if the fast path knows them and they differ in ids and arguments only.

    Their payloads are small. Their traces are made from their ids, or the same for all.
    """
    first = jobs[0]
    if job_constraints(first) not in _KNOWN or extra_of(first) is not None or not are_alike(jobs):
        return None
    ids = [job.id for job in jobs]
    trace_id = None
    traces = [job.trace_id for job in jobs]
    if traces != [job_id.replace("-", "") for job_id in ids]:
        trace_id = traces[0]
        if traces.count(trace_id) != len(traces):
            return None
    try:
        payloads = [job.payload.decode() for job in jobs]
    except UnicodeDecodeError:
        return None  # the general path says which one
    return None if max(map(len, payloads)) > LARGE else Alike(first, ids, payloads, trace_id)


@cache
def _insert(rows: int) -> str:
    return sql("submit_alike", rows=", ".join(f"({number}, ?, ?)" for number in range(rows)))


#: A submit that finds this many jobs in the intake unloads them: enough to spread the cost, few
#: enough that the next plan does not wait long.
INTAKE_MAX: Final = 256


class IntakeSubmit(msgspec.Struct, frozen=True, gc=False):
    """The fast path: one statement inserts one job with a new id into the intake.

    It inserts nothing if the job's queue or task has constraints; then the plan's steps are run.
    """

    text: ClassVar[str] = sql("intake_add")

    job: NewJob

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        """Return the statement's parameters, and the verb's answer if it adds a row."""
        job, job_id, due_us = self.job, self.job.id, due_us_of(self.job, now_us)
        timeout_us = (
            -1 if job.timeout_us is None else job.timeout_us
        )  # the driver is slow to bind null
        task, queue = job.task, job.queue
        limits = (queue, queue, task, task)
        own = (job_id, now_us, payload_text(job), *limits, queue, job.priority)
        rest = (timeout_us, due_us, job.trace_id, job_id, extra_of(job) or "")
        return (*own, *rest), (Submitted(job_id, False, status_at_submit(due_us, now_us)),)


def waiting_job(job_id: str) -> Steps[tuple[Any, ...] | None]:
    """Return the row of a job in the intake, in the columns of a record."""
    text = sql("intake_job", columns=RECORD_COLUMNS)
    rows = yield Rows(text, (job_id,))
    return rows[0] if rows else None
