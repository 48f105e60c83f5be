# SPDX-License-Identifier: MIT
"""Reading a Redis store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.core.job import AttemptRecord, JobRecord, JobStatus, RateRule
from packhorse.core.policies.explain import ClosedGate, JobFacts
from packhorse.stores.plan import Named, Plan, Steps, planned
from packhorse.stores.redis.layout import FIELDS, HISTORY_EACH_END, RECORD_FIELDS, STATUS
from packhorse.stores.redis.leases import read_worker
from packhorse.stores.redis.queues import gate_of
from packhorse.stores.redis.rows import as_attempt, as_record, as_summary, filter_text
from packhorse.stores.redis.scripts import LOOKED_AT, Argument, Script
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page, with_workers
from packhorse.stores.transfer import cursor_of

#: What is shown of a job in a list: neither its payload nor its result.
_SUMMARY_FIELDS: Final = tuple(
    name for name in RECORD_FIELDS if name not in (FIELDS["payload"], FIELDS["result"])
)
_read_rule: Final = msgspec.json.Decoder(RateRule).decode
#: Jobs that one search looks at; then it returns what it found, and where to go on.
_LOOKED_MAX: Final = 100_000


class RedisInspection:
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us, fields = yield Script("job", (job_id, *RECORD_FIELDS))
            if fields[0] is None:
                return None
            record = as_record(job_id, fields, now_us)
            return record if tenant in (None, record.tenant) else None

        again = partial(self.job, tenant=tenant)
        return Plan("job", steps, writes=False, named=Named(job_id, None, again))

    @planned(writes=False)
    def history(self, job_id: str) -> Steps[tuple[AttemptRecord, ...]]:
        lines = yield Script("history", (job_id, HISTORY_EACH_END))
        return tuple(as_attempt(line) for line in lines if line is not None)

    def search(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int | None = None
    ) -> Plan[Page]:
        below = "" if after is None else str(cursor_of(after))
        most = _LOOKED_MAX if most is None else most
        return Plan("search", lambda: _search(chosen, max(0, limit), below, most), writes=False)

    @planned(writes=False)
    def counts(
        self,
        *,
        most: int | None = None,  # noqa: ARG002 - it keeps numbers
    ) -> Steps[tuple[Counts, ...]]:
        counts, oldest, suspended = yield Script("counts")
        counted: dict[str, dict[JobStatus, int]] = {}
        for field, number in zip(counts[::2], counts[1::2], strict=True):
            code, _, queue = field.decode().partition(":")
            counted.setdefault(queue, {})[STATUS[int(code)]] = int(number)
        numbers = zip(suspended[::2], suspended[1::2], strict=True)
        in_steps = {queue.decode(): int(number) for queue, number in numbers}
        waiting: dict[str, dict[int, int]] = {}
        for queue, priority, since_us in oldest:
            waiting.setdefault(queue.decode(), {})[priority] = since_us
        return tuple(
            Counts(queue, by_status, waiting.get(queue, {}), in_steps=in_steps.get(queue, 0))
            for queue, by_status in sorted(counted.items())
        )

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        del worker  # jobs of any lost worker count
        return Plan("outlook", lambda: _outlook(queues, tasks), writes=False)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        again = partial(self.explain, tenant=tenant)
        named = Named(job_id, None, again)
        return Plan("explain", lambda: _facts(job_id, tenant), writes=False, named=named)


def _search(chosen: JobFilter, wanted: int, below: str, most: int) -> Steps[Page]:
    """Search until there is one job more than wanted: then there is a next page."""
    text = filter_text(chosen)
    rows: list[list[Any]] = []
    now_us, last, looked = 0, below, 0
    while looked < most:
        at_once = min(LOOKED_AT, most - looked)
        asked: tuple[Argument, ...] = (text, last, wanted + 1 - len(rows), at_once)
        now_us, reached, found = yield Script("search", (*asked, *_SUMMARY_FIELDS))
        rows += found
        looked += at_once
        if len(rows) > wanted:
            shown = rows[:wanted]
            jobs = tuple(_summary(row, now_us) for row in shown)
            return Page(jobs, after=shown[-1][1].decode() if shown else None)
        if reached is None:
            return Page(tuple(_summary(row, now_us) for row in rows))
        last = reached.decode()
    jobs = tuple(_summary(row, now_us) for row in rows)
    return Page(jobs, last or None, looked if len(rows) < wanted else None)


def _summary(row: Sequence[Any], now_us: int) -> JobRecord:
    job_id, _, shown = row
    fields = dict(zip(_SUMMARY_FIELDS, shown, strict=True))
    return as_summary(job_id.decode(), [fields.get(name) for name in RECORD_FIELDS], now_us)


def _facts(job_id: str, tenant: str | None) -> Steps[JobFacts | None]:
    """See `InspectionStore.explain`."""
    asked: tuple[Argument, ...] = (job_id, int(tenant is not None), tenant or "", *RECORD_FIELDS)
    reply = yield Script("explain", asked)
    if reply is None:
        return None
    now_us, fields, suspect, queue_paused, closed, ahead, hold, workers, spared = reply
    record = as_summary(job_id, fields, now_us)
    if tenant not in (None, record.tenant):
        return None
    facts = JobFacts(
        record=record,
        now_us=now_us,
        suspect=bool(suspect),
        queue_paused=bool(queue_paused),
        closed=tuple(_closed(row) for row in closed),
        background_only=bool(spared),
        ahead=ahead,
        hold_until_us=None if hold is None else int(hold),
    )
    return with_workers(facts, (read_worker(row, now_us, running=0) for row in workers))


def _closed(row: Sequence[Any]) -> ClosedGate:
    name, reopens_us, limit, running, rule, jobs = row
    return ClosedGate(
        gate_of(name.decode()),
        reopens_us=reopens_us,
        limit=limit,
        running=running,
        rule=None if rule is None else _read_rule(rule),
        jobs=tuple(job_id.decode() for job_id in jobs),
    )


def _outlook(queues: Sequence[str], tasks: Sequence[str]) -> Steps[Outlook]:
    """See `InspectionStore.outlook`."""
    chosen = tuple(dict.fromkeys(queues))
    reply = yield Script("outlook", (len(chosen), *chosen, *tasks))
    now_us, ready, retry_due_us, orphaned, limit_free_us = reply
    return Outlook(bool(ready), retry_due_us, bool(orphaned), now_us, limit_free_us)
