# SPDX-License-Identifier: MIT
"""Reading a Redis store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import AttemptRecord, JobRecord, JobStatus
from packhorse.policies.explain import JobFacts
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.explaining import facts_steps, outlook_steps
from packhorse.stores.redis.rows import (
    CODE,
    RECORD_FIELDS,
    STATUS,
    as_attempt,
    as_record,
    as_summary,
)
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page
from packhorse.stores.transfer import cursor_of

__all__ = ["RedisInspection"]

#: Lines of history kept at each end.
_HISTORY_EACH_END: Final = 25
#: What is shown of a job in a list: neither its payload nor its result.
_SUMMARY_FIELDS: Final = tuple(name for name in RECORD_FIELDS if name not in ("p", "r"))
#: Jobs that one script looks at, so that nobody waits for it long.
_LOOKED_AT: Final = 500
#: Scripts that one search runs; behind them it shows what it has, and where to go on.
_LOOKS_MAX: Final = 200


class RedisInspection:
    """See `InspectionStore`."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us, fields = yield Script("job", (job_id, *RECORD_FIELDS))
            if fields[0] is None:
                return None
            record = as_record(job_id, fields, now_us)
            return record if tenant in (None, record.tenant) else None

        return Plan("job", steps, writes=False)

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        def steps() -> Steps[tuple[AttemptRecord, ...]]:
            lines = yield Script("history", (job_id, _HISTORY_EACH_END))
            return tuple(as_attempt(line) for line in lines if line is not None)

        return Plan("history", steps, writes=False)

    def search(self, chosen: JobFilter, *, limit: int, after: str | None = None) -> Plan[Page]:
        below = "" if after is None else str(cursor_of(after))
        return Plan("search", lambda: _search(chosen, max(0, limit), below), writes=False)

    def counts(self) -> Plan[tuple[Counts, ...]]:
        return Plan("counts", _counts, writes=False)

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        del worker  # whose lease is gone counts, whoever asks
        return Plan("outlook", lambda: outlook_steps(queues, tasks), writes=False)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        return Plan("explain", lambda: facts_steps(job_id, tenant), writes=False)


def _search(chosen: JobFilter, wanted: int, below: str) -> Steps[Page]:
    """Look on until there is one more than wanted, which tells that there is a next page."""
    filter_text = _filter_text(chosen)
    rows: list[list[Any]] = []
    now_us, last = 0, below
    for _ in range(_LOOKS_MAX):
        asked = (filter_text, last, wanted + 1 - len(rows), _LOOKED_AT, *_SUMMARY_FIELDS)
        now_us, reached, found = yield Script("search", asked)
        rows += found
        if reached is None or len(rows) > wanted:
            last = ""
            break
        last = reached.decode()
    shown = rows[:wanted]
    if len(rows) > wanted:
        last = shown[-1][1].decode() if shown else ""
    return Page(tuple(_summary(row, now_us) for row in shown), after=last or None)


def _summary(row: Sequence[Any], now_us: int) -> JobRecord:
    job_id, _, shown = row
    fields = dict(zip(_SUMMARY_FIELDS, shown, strict=True))
    return as_summary(job_id.decode(), [fields.get(name) for name in RECORD_FIELDS], now_us)


def _filter_text(chosen: JobFilter) -> bytes:
    """The parts of the filter that are given, in the scripts' words."""
    given = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value != ()}
    given = {name: value for name, value in given.items() if value is not None}
    if chosen.statuses:
        given["statuses"] = [CODE[status] for status in chosen.statuses]
    return msgspec.json.encode(given)


def _counts() -> Steps[tuple[Counts, ...]]:
    counts, oldest = yield Script("counts")
    counted: dict[str, dict[JobStatus, int]] = {}
    for field, number in zip(counts[::2], counts[1::2], strict=True):
        code, _, queue = field.decode().partition(":")
        counted.setdefault(queue, {})[STATUS[int(code)]] = int(number)
    waiting: dict[str, dict[int, int]] = {}
    for queue, priority, since_us in oldest:
        waiting.setdefault(queue.decode(), {})[priority] = since_us
    return tuple(
        Counts(queue, by_status, waiting.get(queue, {}))
        for queue, by_status in sorted(counted.items())
    )
