# SPDX-License-Identifier: MIT
"""Reading a SQLite store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from packhorse.errors import ConfigError
from packhorse.job import AttemptRecord, JobRecord, JobStatus, Priority
from packhorse.policies.explain import JobFacts
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page
from packhorse.stores.sqlite.explaining import facts_steps, outlook_steps
from packhorse.stores.sqlite.filters import search
from packhorse.stores.sqlite.ranking import AGED
from packhorse.stores.sqlite.rows import (
    PASSES,
    RECORD_COLUMNS,
    STATUS,
    json_text,
    read_attempt,
    read_record,
)
from packhorse.stores.sqlite.settling import HISTORY_EACH_END
from packhorse.stores.sqlite.statements import NOW, Rows, sql

__all__ = ["SqliteInspection"]

#: How many of a queue's ready jobs of a priority are looked at for the one that waits longest.
_OLDEST_WINDOW: Final = 10_000


class SqliteInspection:
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            rows = yield Rows(sql("job").format(columns=RECORD_COLUMNS), (job_id,))
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
    oldest: dict[str, dict[int, int]] = yield from _oldest_ready(counted)
    return tuple(
        Counts(queue, by_status, oldest[queue]) for queue, by_status in sorted(counted.items())
    )


def _oldest_ready(queues: Collection[str]) -> Steps[dict[str, dict[int, int]]]:
    """Per queue and priority, since when the first of the next ready jobs waits."""
    asked = {
        "queues": json_text(list(queues)),
        "levels": json_text([int(priority) for priority in Priority]),
        "passes": PASSES,
        "aged": AGED,
        "window": _OLDEST_WINDOW,
    }
    rows = yield Rows(sql("oldest_ready"), asked)
    oldest: dict[str, dict[int, int]] = {queue: {} for queue in queues}
    for queue, level, *dates in rows:  # among those ranked by priority, and by age
        known = [since_us for since_us in dates if since_us is not None]
        if known:
            oldest[queue][level] = min(known)
    return oldest
