# SPDX-License-Identifier: MIT
"""Jobs on PostgreSQL: where submit, claim and settle begin."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import JobRecord, NewJob
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.admission import submit_plan
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import Level, Memory
from packhorse.stores.postgres.plain_claim import claim_in_one
from packhorse.stores.postgres.plain_settle import complete_in_one, goes_in_one
from packhorse.stores.postgres.rows import RECORD_COLUMNS, read_record, worded
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.requests import Claimed, ClaimRequest, Submitted
from packhorse.stores.sql.claiming import claim_steps
from packhorse.stores.sql.jobs import SqlJobs
from packhorse.stores.sql.settling import settle_in_order
from packhorse.stores.sql.steps import NOW, Rows

__all__ = ["PostgresJobs"]


class PostgresJobs(SqlJobs):
    """See `JobStore`."""

    def __init__(self) -> None:
        super().__init__(POSTGRES, Level)
        self.floors = Floors()
        self._memory = Memory()

    def forget_floors(self) -> None:
        """Let the next claim look from the front of every queue."""
        self.floors.forget()

    def submit(self, jobs: Sequence[NewJob]) -> Plan[tuple[Submitted, ...]]:
        return submit_plan(jobs, self._memory)

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """Plain queues are claimed from in one statement, others step by step."""
        level = Level(self._memory)
        level.expect(request.queues)
        plain = level.plain and not request.quarantine
        one = (lambda: claim_in_one(request, level, self.floors)) if plain else None
        return Plan("claim", lambda: claim_steps(POSTGRES, request, level), look=one)

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        """Completions of plain jobs in one statement, others step by step."""
        level = Level(alone=any(one.kind is SettlementKind.LIMITED for one in settlements))
        one = (lambda: complete_in_one(settlements, level)) if goes_in_one(settlements) else None
        return Plan("settle", lambda: _settle(settlements, level, self.floors), look=one)

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            yield Once(sql("await_finish"), (job_id,))
            rows = yield Once(worded("job", columns=RECORD_COLUMNS), (job_id,))
            now_us = yield NOW
            return read_record(rows[0], now_us) if rows else None

        return Plan("await_finish", steps)


def _settle(
    settlements: Sequence[Settlement], level: Level, floors: Floors
) -> Steps[tuple[Verdict, ...]]:
    yield from level.enter()
    [(queues, stashed)] = yield Rows(sql("queues_of"), {"ids": [one.job_id for one in settlements]})
    if stashed:
        level.go_alone()
    level.allow(queues)
    if any(one.keep_place for one in settlements):
        yield from floors.give_up()
    verdicts: tuple[Verdict, ...] = yield from settle_in_order(
        POSTGRES, settlements, level, stashed=stashed
    )
    return verdicts
