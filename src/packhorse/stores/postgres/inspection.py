# SPDX-License-Identifier: MIT
"""Reading a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.errors import ConfigError
from packhorse.job import AttemptRecord, JobRecord, JobStatus
from packhorse.policies.explain import JobFacts
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.explaining import facts_steps, outlook_steps
from packhorse.stores.postgres.filters import search
from packhorse.stores.postgres.rows import (
    RECORD_COLUMNS,
    STATUS,
    read_attempt,
    read_record,
    worded,
)
from packhorse.stores.postgres.settling import HISTORY_EACH_END
from packhorse.stores.postgres.statements import NOW, Rows, sql
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page

__all__ = ["PostgresInspection"]


class PostgresInspection:
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            rows = yield Rows(worded("job", columns=RECORD_COLUMNS), (job_id,))
            record = read_record(rows[0], now_us) if rows else None
            return record if record is not None and tenant in (None, record.tenant) else None

        return Plan("job", steps, writes=False)

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        def steps() -> Steps[tuple[AttemptRecord, ...]]:
            rows = yield Rows(sql("history"), {"id": job_id})
            lines = [read_attempt(row) for row in rows]
            first, rest = lines[:HISTORY_EACH_END], lines[HISTORY_EACH_END:]
            return (*first, *rest[-HISTORY_EACH_END:])

        return Plan("history", steps, writes=False)

    def search(self, chosen: JobFilter, *, limit: int, after: str | None = None) -> Plan[Page]:
        below = None if after is None else _sequence_of(after)
        wanted = max(0, limit)

        def steps() -> Steps[Page]:
            now_us = yield NOW
            rows = yield search(chosen, limit=wanted + 1, below=below)
            shown = rows[:wanted]
            more = len(rows) > wanted and bool(shown)
            return Page(
                tuple(read_record(row, now_us, bodies=False) for row in shown),
                after=str(shown[-1][0]) if more else None,
            )

        return Plan("search", steps, writes=False)

    def counts(self) -> Plan[tuple[Counts, ...]]:
        return Plan("counts", _counts, writes=False)

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        del worker  # whose lease is gone counts, whoever asks
        return Plan("outlook", lambda: outlook_steps(queues, tasks), writes=False)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        return Plan("explain", lambda: facts_steps(job_id, tenant), writes=False)


def _sequence_of(cursor: str) -> int:
    try:
        return int(cursor)
    except ValueError:
        raise ConfigError(
            f"{cursor!r} is no place in a list of jobs; pass `after` of the page before"
        ) from None


def _counts() -> Steps[tuple[Counts, ...]]:
    rows = yield Rows(sql("counts"))
    counted: dict[str, dict[JobStatus, int]] = {}
    for queue, status, number in rows:
        counted.setdefault(queue, {})[STATUS[status]] = number
    oldest_rows = yield Rows(sql("oldest_ready"))
    oldest: dict[str, dict[int, int]] = {}
    for queue, priority, ready_us in oldest_rows:
        oldest.setdefault(queue, {})[priority] = ready_us
    return tuple(
        Counts(queue, by_status, oldest.get(queue, {}))
        for queue, by_status in sorted(counted.items())
    )
