# SPDX-License-Identifier: MIT
"""Admission: what users' transactions asked for is done in the store's own, in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import member_of
from packhorse.core.policies.records import Put
from packhorse.errors import PayloadError
from packhorse.stores.intake import ALIAS_KEPT_US, IntakeRequest, alias_of
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.records import RefusedJob
from packhorse.stores.sql.admission import admit_each
from packhorse.stores.sql.dialect import Dialect, Isolation
from packhorse.stores.sql.jobs import cancel_steps
from packhorse.stores.sql.records import append_line, write_changes
from packhorse.stores.sql.rows import payload_text
from packhorse.stores.sql.statements import NOW, Rows
from packhorse.stores.sql.submit import is_keyed
from packhorse.stores.sql.transfer import carry_in_steps
from packhorse.stores.transfer import CarryAnswer, rejected

__all__ = ["admit_requests", "alias_names", "holder_plan", "reject"]


def admit_requests(
    dialect: Dialect, requests: Sequence[IntakeRequest], level: Isolation
) -> Steps[None]:
    """Do what is asked for, in order; jobs that follow each other come in together."""
    for is_job, group in groupby(requests, key=lambda one: one.job is not None):
        if is_job:
            jobs = [one.job for one in group if one.job is not None]
            yield from _admit_jobs(dialect, jobs, level)
            continue
        for one in group:
            job_id = (yield from _holder(dialect, one.cancel)) or one.cancel
            yield from cancel_steps(dialect, job_id, one.tenant, level)


def _admit_jobs(dialect: Dialect, jobs: Sequence[NewJob], level: Isolation) -> Steps[None]:
    answers = yield from admit_each(dialect, jobs, level)
    aliases = []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob):
            yield from reject(dialect, job, answer, level)
        elif answer.job_id != job.id:
            aliases.append(Put(alias_of(job.id), answer.job_id.encode(), keep_us=ALIAS_KEPT_US))
    if aliases:
        yield from write_changes(dialect, aliases, (yield NOW))


def reject(dialect: Dialect, job: NewJob, refused: RefusedJob, level: Isolation) -> Steps[None]:
    """Keep a job that was not let in as a dead letter, without its keys and its lines.

    If its id belongs to another job, that one stays as it is.
    """
    level.go_alone()
    now_us: int = yield NOW
    dead = rejected(job, refused.code, refused.reason, now_us)
    try:
        payload_text(dead.job)
    except PayloadError:  # what no text can hold is not kept
        dead = rejected(
            msgspec.structs.replace(job, payload=b"null"), refused.code, refused.reason, now_us
        )
    [answer] = yield from carry_in_steps(dialect, (dead,), _stay)
    member = member_of(job.options)
    if member is not None and answer is CarryAnswer.CARRIED:
        yield from append_line(dialect, job.id, member)


def _stay() -> Steps[None]:
    """A dead job goes before no other."""
    yield from ()


def alias_names(jobs: Sequence[NewJob]) -> list[str]:
    """The records that the admission of these jobs may write."""
    return [alias_of(job.id).text for job in jobs if is_keyed(job)]


def holder_plan(dialect: Dialect, job_id: str) -> Plan[str | None]:
    """See `Intake.holder`."""
    return Plan("holder", lambda: _holder(dialect, job_id), writes=False)


def _holder(dialect: Dialect, job_id: str) -> Steps[str | None]:
    asked = {"name": alias_of(job_id).text, "now": (yield NOW)}
    rows = yield Rows(dialect.sql("record"), asked)
    return bytes(rows[0][1]).decode() if rows else None
