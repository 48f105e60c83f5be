# SPDX-License-Identifier: MIT
"""Admit the requests of users' transactions, in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from packhorse.core.job import NewJob
from packhorse.core.policies.records import Put
from packhorse.stores.intake import ALIAS_KEPT_US, IntakeRequest, alias_of
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.records import RefusedJob
from packhorse.stores.sql.dialect import Dialect, PlanLocks
from packhorse.stores.sql.jobs import cancel_steps
from packhorse.stores.sql.new_jobs import is_keyed
from packhorse.stores.sql.records import reject, write_changes
from packhorse.stores.sql.statements import NOW, Rows
from packhorse.stores.sql.submit import admit_each


def admit_requests(
    dialect: Dialect, requests: Sequence[IntakeRequest], locks: PlanLocks
) -> Steps[None]:
    """Admit requests in order; consecutive jobs are stored together."""
    for is_job, group in groupby(requests, key=lambda one: one.job is not None):
        if is_job:
            jobs = [one.job for one in group if one.job is not None]
            yield from _admit_jobs(dialect, jobs, locks)
            continue
        for one in group:
            job_id = (yield from _holder(dialect, one.cancel)) or one.cancel
            yield from cancel_steps(dialect, job_id, one.tenant, locks)


def _admit_jobs(dialect: Dialect, jobs: Sequence[NewJob], locks: PlanLocks) -> Steps[None]:
    answers = yield from admit_each(dialect, jobs, locks)
    aliases = []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob):
            yield from reject(dialect, job, answer, locks)
        elif answer.job_id != job.id:
            aliases.append(Put(alias_of(job.id), answer.job_id.encode(), keep_us=ALIAS_KEPT_US))
    if aliases:
        yield from write_changes(dialect, aliases, (yield NOW))


def alias_names(jobs: Sequence[NewJob]) -> list[str]:
    """Return the names of records that admitting these jobs may write."""
    return [alias_of(job.id).text for job in jobs if is_keyed(job)]


def holder_plan(dialect: Dialect, job_id: str) -> Plan[str | None]:
    """See `Intake.holder`."""
    return Plan("holder", lambda: _holder(dialect, job_id), writes=False)


def _holder(dialect: Dialect, job_id: str) -> Steps[str | None]:
    asked = {"name": alias_of(job_id).text, "now": (yield NOW)}
    rows = yield Rows(dialect.sql("record"), asked)
    return bytes(rows[0][1]).decode() if rows else None
