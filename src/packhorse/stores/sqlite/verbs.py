# SPDX-License-Identifier: MIT
"""The verbs that SQLite implements itself, for jobs, leases, records and inspection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from packhorse.core.job import JobRecord, NewJob
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.records import RecordPage
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal, Renewed, Submitted
from packhorse.stores.sql.claim import claim_steps, look_steps
from packhorse.stores.sql.inspection import SqlInspection
from packhorse.stores.sql.jobs import SqlJobs
from packhorse.stores.sql.leases import SqlLeases, release_unknown
from packhorse.stores.sql.records import SqlRecords
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.settle import settle_in_order
from packhorse.stores.sql.statements import NOW, Change, Rows
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE, nothing
from packhorse.stores.sqlite.rows import RECORD_COLUMNS, read_record
from packhorse.stores.sqlite.statements import sql
from packhorse.stores.sqlite.submit import short_submit, submit_steps, waiting_job


class SqliteJobs(SqlJobs):
    """See `JobStore`."""

    def __init__(self) -> None:
        super().__init__(SQLITE, lambda: ONE_WRITER)

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        return Plan(
            "submit",
            lambda: submit_steps(jobs, ids_are_new=ids_are_new),
            short=short_submit(jobs, ids_are_new=ids_are_new),
        )

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """Look first, so that a claim from empty queues takes no write lock."""
        return Plan(
            "claim",
            lambda: claim_steps(SQLITE, request, ONE_WRITER),
            look=lambda: look_steps(SQLITE, request),
        )

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", lambda: settle_in_order(SQLITE, settlements, ONE_WRITER))

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            yield Change(sql("await_finish"), (job_id,))
            rows = yield Rows(sql("job", columns=RECORD_COLUMNS), (job_id,))
            return read_record(rows[0], now_us) if rows else None

        return Plan("await_finish", steps)


class SqliteLeases(SqlLeases):
    """See `LeaseStore`."""

    def __init__(self) -> None:
        super().__init__(SQLITE, nothing)

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan("renew", lambda: _renew(renewal))


def _renew(renewal: Renewal) -> Steps[Renewed]:
    now_us: int = yield NOW
    before = yield Rows(sql("lease_expires"), (renewal.worker,))
    expires_us = now_us + renewal.lease_us
    yield Change(
        sql("lease_renew"),
        {
            **msgspec.structs.asdict(renewal),
            **msgspec.structs.asdict(renewal.totals),
            "queues": json_text(renewal.queues),
            "tasks": json_text(renewal.tasks),
            "expires_us": expires_us,
            "now": now_us,
        },
    )
    if renewal.step_us > 0:
        moved = {"worker": renewal.worker, "step_us": renewal.step_us, "now": now_us}
        yield Change(sql("holds_move"), moved)
    released = 0
    if renewal.held is not None:
        released = yield from release_unknown(SQLITE, renewal.worker, set(renewal.held), now_us)
    lapsed = not before or before[0][0] <= now_us
    return Renewed(expires_us, now_us, lapsed, released)


class SqliteInspection(SqlInspection):
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        """Look in the table and in the intake first, to find one job without unloading."""
        plan = super().job(job_id, tenant=tenant)

        def look() -> Steps[JobRecord | None]:
            record = yield from plan.steps()
            if record is None and not tenant:
                now_us = yield NOW
                row = yield from waiting_job(job_id)
                record = None if row is None else read_record(row, now_us)
            return record

        return Plan(plan.verb, plan.steps, writes=False, look=look, named=plan.named)


class SqliteRecords(SqlRecords):
    """See `RecordStore`."""

    def __init__(self) -> None:
        super().__init__(SQLITE, lambda _: ONE_WRITER)

    def records(self, kind: str | None, **asked: Any) -> Plan[RecordPage]:
        """Read without unloading the intake, which has no records, or waiting for a writer."""
        plan = super().records(kind, **asked)
        return Plan(plan.verb, plan.steps, writes=False, look=plan.steps)
