# SPDX-License-Identifier: MIT
"""Reading a SQLite store: as of any SQL store, but for one job, which also stands in the intake."""

from __future__ import annotations

from packhorse.job import JobRecord
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.sql.inspection import SqlInspection
from packhorse.stores.sqlite.intake import waiting_job
from packhorse.stores.sqlite.rows import read_record
from packhorse.stores.sqlite.statements import NOW

__all__ = ["SqliteInspection"]


class SqliteInspection(SqlInspection):
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        """Looked for in both places first: whoever only asks for a job need not unload them all."""
        plan = super().job(job_id, tenant=tenant)

        def look() -> Steps[JobRecord | None]:
            record = yield from plan.steps()
            if record is None and not tenant:
                now_us = yield NOW
                row = yield from waiting_job(job_id)
                record = None if row is None else read_record(row, now_us)
            return record

        return Plan(plan.verb, plan.steps, writes=False, look=look)
