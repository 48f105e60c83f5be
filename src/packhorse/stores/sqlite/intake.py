# SPDX-License-Identifier: MIT
"""The intake: where a plain job is put down, until somebody looks.

A submit that is a transaction by itself pays for the pages it writes to the log: its row, its id
and its lane are three, the end of the intake is one. Every other plan begins by unloading the
intake, in its own transaction, so that each job has its number and its place before anybody asks
for one, in the order of submitting. Nobody ever meets a job that stands in the intake.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar, Final

import msgspec

from packhorse.job import JobStatus, NewJob, Priority
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.rows import CODE, PASSES, Lane, payload_text, trace_of
from packhorse.stores.sql.steps import Parameters
from packhorse.stores.sql.submitting import due_us_of, fresh_answer
from packhorse.stores.sqlite.rows import extra_of
from packhorse.stores.sqlite.statements import sql

__all__ = ["INTAKE_MAX", "IntakeSubmit", "UsualSubmit", "is_loaded", "unload"]

#: Who puts down so many without anybody looking unloads them: enough to spread the cost, few enough
#: that whoever looks does not wait.
INTAKE_MAX: Final = 256

_QUEUED: Final = JobStatus.QUEUED
_NORMAL: Final = int(Priority.NORMAL)
_PLACES: Final = (
    *(CODE[JobStatus.QUEUED], CODE[JobStatus.PENDING]),
    *(int(Lane.READY), int(Lane.WAITING), PASSES),
)


def _adding(**rest: str) -> str:
    return sql("intake_add").format(queue_has_a_say=sql("queue_has_a_say"), **rest)


class IntakeSubmit(msgspec.Struct, frozen=True, gc=False):
    """Puts one plain job down whose id is new; see `Short`. Its queue may have a say after all."""

    text: ClassVar[str] = _adding(due="?8", trace_id="?9", extra="?10")
    taken_in: ClassVar[bool] = True

    job: NewJob

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        job = self.job
        what = (job.id, job.task, job.queue, job.priority, job.timeout_us, now_us)
        rest = (payload_text(job), due_us_of(job, now_us), trace_of(job), extra_of(job))
        return (*what, *rest), (fresh_answer(job, now_us),)


class UsualSubmit(IntakeSubmit, frozen=True, gc=False):
    """As `IntakeSubmit`, of one of `LikeJobs`: most jobs are those, so it costs the least."""

    text: ClassVar[str] = _adding(due="?6", trace_id="null", extra="null")

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        job = self.job
        job_id = job.id
        what = (job_id, job.task, job.queue, _NORMAL, job.timeout_us, now_us, job.payload.decode())
        return what, (Submitted(job_id, False, _QUEUED),)


def is_loaded(connection: sqlite3.Connection) -> bool:
    """Whether jobs wait in the intake."""
    return connection.execute(sql("intake_any")).fetchone() is not None


def unload(connection: sqlite3.Connection) -> None:
    """Give the jobs of the intake their numbers and places; inside a transaction that writes."""
    if is_loaded(connection):
        (last,) = connection.execute(sql("intake_last")).fetchone()
        connection.execute(sql("intake_unload"), (*_PLACES, last))
        connection.execute(sql("intake_empty"))
