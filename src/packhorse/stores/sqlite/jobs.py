# SPDX-License-Identifier: MIT
"""Jobs on SQLite: where submit, claim and settle begin."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import JobRecord, NewJob
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import Claimed, ClaimRequest, Submitted
from packhorse.stores.sql.claiming import claim_steps, look_steps
from packhorse.stores.sql.jobs import SqlJobs
from packhorse.stores.sql.settling import settle_in_order
from packhorse.stores.sql.steps import NOW, Change, Rows
from packhorse.stores.sqlite.admission import submit_steps
from packhorse.stores.sqlite.dialect import ONE_WRITER, SQLITE
from packhorse.stores.sqlite.plain import short_submit
from packhorse.stores.sqlite.rows import RECORD_COLUMNS, read_record
from packhorse.stores.sqlite.statements import sql

__all__ = ["SqliteJobs"]


class SqliteJobs(SqlJobs):
    """See `JobStore`."""

    def __init__(self) -> None:
        super().__init__(SQLITE, lambda: ONE_WRITER)

    def submit(self, jobs: Sequence[NewJob]) -> Plan[tuple[Submitted, ...]]:
        return Plan("submit", lambda: submit_steps(jobs), short=short_submit(jobs))

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """An empty store is left without taking the write lock."""
        return Plan(
            "claim",
            lambda: claim_steps(SQLITE, request, ONE_WRITER),
            look=lambda: look_steps(SQLITE, request),
        )

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", lambda: _settle(settlements))

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            yield Change(sql("await_finish"), (job_id,))
            rows = yield Rows(sql("job").format(columns=RECORD_COLUMNS), (job_id,))
            return read_record(rows[0], now_us) if rows else None

        return Plan("await_finish", steps)


def _settle(settlements: Sequence[Settlement]) -> Steps[tuple[Verdict, ...]]:
    needs = yield from SQLITE.needs()
    verdicts: tuple[Verdict, ...] = yield from settle_in_order(
        SQLITE, settlements, ONE_WRITER, stashed=needs.stashed, needs=needs
    )
    return verdicts
