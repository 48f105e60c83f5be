# SPDX-License-Identifier: MIT
"""Reading a SQL store."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import AttemptRecord, JobRecord, JobStatus
from packhorse.policies.explain import JobFacts
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.explaining import facts_steps, outlook_steps
from packhorse.stores.sql.filters import search
from packhorse.stores.sql.rows import STATUS, both_ends, read_attempt
from packhorse.stores.sql.steps import NOW, Rows
from packhorse.stores.transfer import cursor_of

__all__ = ["SqlInspection"]


class SqlInspection:
    """See `InspectionStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        dialect = self._dialect

        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            rows = yield Rows(dialect.sql("job", columns=dialect.record_columns), (job_id,))
            record = dialect.read_record(rows[0], now_us) if rows else None
            return record if record is not None and tenant in (None, record.tenant) else None

        return Plan("job", steps, writes=False)

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        def steps() -> Steps[tuple[AttemptRecord, ...]]:
            rows = yield Rows(self._dialect.sql("history"), {"id": job_id})
            return both_ends([read_attempt(row) for row in rows])

        return Plan("history", steps, writes=False)

    def search(self, chosen: JobFilter, *, limit: int, after: str | None = None) -> Plan[Page]:
        below = None if after is None else cursor_of(after)
        wanted = max(0, limit)

        def steps() -> Steps[Page]:
            now_us = yield NOW
            rows = yield search(self._dialect, chosen, limit=wanted + 1, below=below)
            shown = rows[:wanted]
            more = len(rows) > wanted and bool(shown)
            return Page(
                tuple(self._dialect.read_record(row, now_us, bodies=False) for row in shown),
                after=str(shown[-1][0]) if more else None,
            )

        return Plan("search", steps, writes=False)

    def counts(self) -> Plan[tuple[Counts, ...]]:
        return Plan("counts", lambda: _counts(self._dialect), writes=False)

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        del worker  # whose lease is gone counts, whoever asks
        return Plan("outlook", lambda: outlook_steps(self._dialect, queues, tasks), writes=False)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        return Plan("explain", lambda: facts_steps(self._dialect, job_id, tenant), writes=False)


def _counts(dialect: Dialect) -> Steps[tuple[Counts, ...]]:
    rows = yield from dialect.counted()
    counted: dict[str, dict[JobStatus, int]] = {}
    for queue, status, number in rows:
        counted.setdefault(queue, {})[STATUS[status]] = number
    oldest = yield from dialect.oldest_ready(counted)
    return tuple(
        Counts(queue, by_status, oldest.get(queue, {}))
        for queue, by_status in sorted(counted.items())
    )
