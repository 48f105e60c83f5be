# SPDX-License-Identifier: MIT
"""The intake: where a plain job is put down, until somebody looks.

A submit that is a transaction by itself pays for the pages it writes to the log: its row, its id
and its lane are three, the end of the intake is one. Every other plan begins by unloading the
intake, in its own transaction, so that each job has its number and its place before anybody asks
for one, in the order of submitting. Nobody meets a job that stands in the intake, but who only asks
for that one.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from typing import Any, ClassVar, Final

import msgspec

from packhorse.job import JobStatus, NewJob, Priority
from packhorse.stores.plan import Steps
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.rows import CODE, PASSES, Lane, payload_text, trace_of
from packhorse.stores.sql.steps import Parameters, Rows
from packhorse.stores.sql.submitting import due_us_of, fresh_answer
from packhorse.stores.sqlite.rows import RECORD_COLUMNS, extra_of
from packhorse.stores.sqlite.statements import sql

__all__ = [
    "INTAKE_MAX",
    "IntakeSubmit",
    "UsualSubmit",
    "is_loaded",
    "unload",
    "usual_submit",
    "waiting_job",
]

#: Who puts down so many without anybody looking unloads them: enough to spread the cost, few enough
#: that whoever looks does not wait.
INTAKE_MAX: Final = 256
#: Tasks whose statement is remembered; those that are used at once are far fewer.
_TEXTS_MAX: Final = 1024

_QUEUED: Final = JobStatus.QUEUED
_PLACES: Final = (
    *(CODE[JobStatus.QUEUED], CODE[JobStatus.PENDING]),
    *(int(Lane.READY), int(Lane.WAITING), PASSES),
)


def _adding(*, task: str, queue: str, **rest: str) -> str:
    """The statement that puts a job down, whose id is ?1, the time ?2 and the arguments ?3."""
    has_a_say = sql("queue_has_a_say").format(task=task, queue=queue)
    return sql("intake_add").format(queue_has_a_say=has_a_say, task=task, queue=queue, **rest)


class IntakeSubmit(msgspec.Struct, frozen=True, gc=False):
    """Puts one plain job down whose id is new; see `Short`. Its queue may have a say after all."""

    text: ClassVar[str] = _adding(
        task="?4",
        queue="?5",
        priority="?6",
        timeout_us="?7",
        due_us="?8",
        trace_id="?9",
        extra="?10",
    )
    taken_in: ClassVar[bool] = True

    job: NewJob

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        job = self.job
        own = (job.id, now_us, payload_text(job))
        shared = (job.task, job.queue, job.priority, job.timeout_us)
        rest = (due_us_of(job, now_us), trace_of(job), extra_of(job))
        return (*own, *shared, *rest), (fresh_answer(job, now_us),)


class UsualSubmit(msgspec.Struct, frozen=True, gc=False):
    """As `IntakeSubmit`, of one of `LikeJobs`: most jobs are those, so it costs the least."""

    taken_in: ClassVar[bool] = True

    job: NewJob
    text: str

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        job = self.job
        job_id = job.id
        return (job_id, now_us, payload_text(job)), (Submitted(job_id, False, _QUEUED),)


def usual_submit(job: NewJob) -> UsualSubmit:
    """The submit of one of `LikeJobs`."""
    return UsualSubmit(job, _usual_text(job.task, job.queue, job.timeout_us))


@lru_cache(_TEXTS_MAX)
def _usual_text(task: str, queue: str, timeout_us: int | None) -> str:
    """With what the jobs of a task share in it: a value costs SQLite more to take than to read."""
    return _adding(
        task=_literal(task),
        queue=_literal(queue),
        priority=str(int(Priority.NORMAL)),
        timeout_us="null" if timeout_us is None else str(timeout_us),
        due_us="?2",
        trace_id="null",
        extra="null",
    )


def _literal(text: str) -> str:
    """A text as SQL writes it; names have no NUL, which it could not."""
    return "'" + text.replace("'", "''") + "'"


def is_loaded(connection: sqlite3.Connection) -> bool:
    """Whether jobs wait in the intake."""
    return connection.execute(sql("intake_any")).fetchone() is not None


def waiting_job(job_id: str) -> Steps[tuple[Any, ...] | None]:
    """The row of a job that waits in the intake, in the columns of a record."""
    text = sql("intake_job").format(columns=RECORD_COLUMNS)
    rows = yield Rows(text, (job_id, *_PLACES[:2]))
    return rows[0] if rows else None


def unload(connection: sqlite3.Connection) -> None:
    """Give the jobs of the intake their numbers and places; inside a transaction that writes."""
    if is_loaded(connection):
        (last,) = connection.execute(sql("intake_last")).fetchone()
        connection.execute(sql("intake_unload"), (*_PLACES, last))
        connection.execute(sql("intake_empty"))
