# SPDX-License-Identifier: MIT
"""Read a SQL store: jobs, histories, filters, counts, and why a job does not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

from packhorse.core.job import AttemptRecord, JobRecord, JobStatus
from packhorse.core.policies.explain import AHEAD_MAX, JOBS_NAMED_MAX, ClosedGate, JobFacts
from packhorse.core.policies.gates import Gate, GateKind
from packhorse.stores.plan import Plan, Steps, about_job, planned
from packhorse.stores.requests import (
    EVERY_TASK,
    Counts,
    JobFilter,
    Outlook,
    Page,
    QueueSettings,
    with_workers,
)
from packhorse.stores.sql.claim import open_limits
from packhorse.stores.sql.dialect import Dialect, read_queues
from packhorse.stores.sql.limits import LimitBook, ReadyJob
from packhorse.stores.sql.lines import gate_text
from packhorse.stores.sql.rows import (
    RECORD_COLUMNS,
    STATUS,
    Lane,
    both_ends,
    read_attempt,
    read_record,
    read_worker,
)
from packhorse.stores.sql.search import search_steps
from packhorse.stores.sql.statements import NOW, Rows, Together
from packhorse.stores.transfer import cursor_of

#: The statuses of jobs that are not due yet.
_LATER: Final = (JobStatus.PENDING, JobStatus.FAILED, JobStatus.TIMEOUT)


class SqlInspection:
    """See `InspectionStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @about_job()
    @planned(writes=False)
    def job(self, job_id: str, *, tenant: str | None = None) -> Steps[JobRecord | None]:
        dialect, now_us = self._dialect, (yield NOW)
        rows = yield Rows(dialect.sql("job", columns=RECORD_COLUMNS), (job_id,))
        record = read_record(rows[0], now_us) if rows else None
        return record if record is not None and tenant in (None, record.tenant) else None

    @planned(writes=False)
    def history(self, job_id: str) -> Steps[tuple[AttemptRecord, ...]]:
        rows = yield Rows(self._dialect.sql("history"), {"id": job_id})
        return both_ends([read_attempt(row) for row in rows])

    def search(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int | None = None
    ) -> Plan[Page]:
        below = None if after is None else cursor_of(after)
        looked = partial(
            search_steps, self._dialect, chosen, limit=max(0, limit), below=below, most=most
        )
        return Plan("search", looked, writes=False)

    @planned(writes=False)
    def counts(self, *, most: int | None = None) -> Steps[tuple[Counts, ...]]:
        dialect = self._dialect
        rows: list[tuple[str, int, int, bool]]
        if most is None:
            rows = [(*row, False) for row in (yield from dialect.counted())]
        else:
            rows = yield from dialect.counted_some(most)
        counted: dict[str, Counter[JobStatus]] = {}
        at_least: dict[str, set[JobStatus]] = {}
        for queue, status, number, more in rows:
            counted.setdefault(queue, Counter())[STATUS[status]] += number
            at_least.setdefault(queue, set()).update({STATUS[status]} if more else ())
        oldest = yield from dialect.oldest_ready(counted, most)
        in_steps = yield from _in_steps(dialect, counted)
        return tuple(
            Counts(
                *(queue, dict(by_status), oldest.get(queue, {}), frozenset(at_least[queue])),
                in_steps=in_steps.get(queue, 0),
            )
            for queue, by_status in sorted(counted.items())
        )

    @planned(writes=False)
    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Steps[Outlook]:
        del worker  # jobs of lapsed leases count for every worker
        return (yield from outlook_steps(self._dialect, queues, tasks))

    @about_job()
    @planned(writes=False)
    def explain(self, job_id: str, *, tenant: str | None = None) -> Steps[JobFacts | None]:
        return (yield from facts_steps(self._dialect, job_id, tenant))


def _in_steps(dialect: Dialect, counted: Mapping[str, Counter[JobStatus]]) -> Steps[dict[str, int]]:
    """Return how many of the jobs that are not due yet wait in a step of their handler."""
    later = {queue: sum(counts[status] for status in _LATER) for queue, counts in counted.items()}
    queues = [queue for queue, number in later.items() if number]
    if not queues:
        return {}
    text = dialect.sql("counts_in_steps")
    asked = [Rows(text, {"queue": queue, "most": later[queue]}) for queue in queues]
    found = yield Together(asked)
    return {queue: number for queue, [(number,)] in zip(queues, found, strict=True)}


#: Jobs of each lane of a queue whose gates are checked in one page.
_ASKED_MAX: Final = 200
#: Pages that are checked.
_PAGES_MAX: Final = 64
#: Before every rank and place.
_BEGINNING: Final = (-1, -1)

#: A job whose gates are checked, and the head of its line of order.
_Asked = tuple[ReadyJob, str | None]


def facts_steps(dialect: Dialect, job_id: str, tenant: str | None) -> Steps[JobFacts | None]:
    """See `InspectionStore.explain`."""
    now_us: int = yield NOW
    rows = yield Rows(dialect.sql("job", columns=RECORD_COLUMNS), (job_id,))
    if not rows or tenant not in (None, rows[0][6]):
        return None
    record = read_record(rows[0], now_us, bodies=False)
    [about] = yield Rows(dialect.sql("explain_row"), (job_id,))
    suspect, queue_paused, lane, hold_us, *candidate = about
    job = ReadyJob.of(candidate)
    queues = yield from read_queues(dialect, [job.keys.queue])
    book: LimitBook = yield from open_limits(dialect, [job.keys.task], now_us)
    closed = yield from book.closed(job, queues[job.keys.queue].settings)
    gates = []
    for state, blocked in closed:
        jobs = yield from _named(dialect, state.gate, tenant)
        gates.append(
            ClosedGate(
                state.gate,
                reopens_us=blocked.reopens_us,
                limit=state.limit,
                running=state.running,
                rule=state.rule,
                jobs=jobs,
            )
        )
    ahead = 0
    if record.status is JobStatus.QUEUED and lane != Lane.PARKED:
        lanes = (lane, lane) if lane == Lane.SUSPECT else (Lane.READY, Lane.BLOCKED)
        asked = {
            "lane": int(lanes[0]),
            "other_lane": int(lanes[1]),
            "queue": job.keys.queue,
            "rank": job.rank,
            "place": job.place,
            "most": AHEAD_MAX,
        }
        [(ahead,)] = yield Rows(dialect.sql("explain_ahead"), asked)
    facts = JobFacts(
        record=record,
        now_us=now_us,
        suspect=bool(suspect),
        queue_paused=bool(queue_paused),
        closed=tuple(gates),
        background_only=queues[job.keys.queue].settings.background_only,
        ahead=ahead,
        hold_until_us=hold_us,
    )
    workers = yield Rows(dialect.sql("workers"))
    return with_workers(facts, (read_worker(dialect.listed, row, now_us) for row in workers))


def _named(dialect: Dialect, gate: Gate, tenant: str | None) -> Steps[tuple[str, ...]]:
    """Return the head of the line, or the running jobs, except those of other tenants."""
    if gate.kind is GateKind.ORDER:
        rows = yield Rows(dialect.sql("order_first"), (gate_text(gate),))
    elif gate.kind is GateKind.TASK_CONCURRENCY:
        key = gate.name[1] if len(gate.name) > 1 else None
        rows = yield Rows(dialect.sql("running_of_key"), (gate.name[0], key))
    elif gate.kind is GateKind.QUEUE_CONCURRENCY:
        rows = yield Rows(dialect.sql("running_of_queue"), (gate.name[0],))
    else:
        return ()
    visible = [job_id for job_id, whose in rows if tenant in (None, whose)]
    return tuple(visible[:JOBS_NAMED_MAX])


def outlook_steps(dialect: Dialect, queues: Sequence[str], tasks: Sequence[str]) -> Steps[Outlook]:
    """See `InspectionStore.outlook`."""
    now_us: int = yield NOW
    rows = yield Rows(dialect.sql("open_queues"), (dialect.many(queues),))
    unpaused = [queue for (queue,) in rows]
    chosen = {
        "now": now_us,
        "queues": dialect.many(unpaused),
        "tasks": dialect.many(tasks),
        "any_task": EVERY_TASK in tasks,
    }
    [(retry_due_us,)] = yield Rows(dialect.sql("outlook_retry"), chosen)
    [(orphaned,)] = yield Rows(dialect.sql("outlook_orphaned"), chosen)
    [(ready,)] = yield Rows(dialect.sql("outlook_ready"), chosen)
    limit_free_us = None
    if ready:
        ready, limit_free_us = yield from _let_through(dialect, unpaused, tasks, now_us)
    return Outlook(bool(ready), retry_due_us, bool(orphaned), now_us, limit_free_us)


def _let_through(
    dialect: Dialect, queues: Sequence[str], tasks: Sequence[str], now_us: int
) -> Steps[tuple[bool, int | None]]:
    """Return whether the gates let any job run, and if not, when the first one opens."""
    book: LimitBook = yield from open_limits(dialect, tasks, now_us)
    settings = yield from read_queues(dialect, queues)
    groups = ((Lane.READY, Lane.BLOCKED), (Lane.SUSPECT,), (Lane.WAITING,))
    for queue, lanes in product(queues, groups):
        asked = {
            "queue": queue,
            "now": now_us,
            "tasks": dialect.many(tasks),
            "any_task": EVERY_TASK in tasks,
        }
        some_goes = yield from _any_goes(dialect, lanes, asked, book, settings[queue].settings)
        if some_goes:
            return True, None
    return False, book.reopens_us


def _any_goes(
    dialect: Dialect,
    lanes: Sequence[Lane],
    asked: dict[str, Any],
    book: LimitBook,
    settings: QueueSettings,
) -> Steps[bool]:
    """Check a page of each lane in the order of a claim, then the rest of the first lane."""
    lane, *others = lanes
    beside: list[_Asked] = []
    for other in others:
        beside += yield from _page(dialect, other, asked, _BEGINNING)
    after = _BEGINNING
    for _ in range(_PAGES_MAX):
        page = yield from _page(dialect, lane, asked, after)
        heads = [job for job, head in sorted([*page, *beside], key=_rank) if head in (None, job.id)]
        for job in heads:  # others wait behind the heads of their lines
            blocked = yield from book.ask(job, settings)
            if blocked is None:
                return True
        if len(page) < _ASKED_MAX:
            break
        after, beside = _rank(page[-1]), []
    return False


def _page(
    dialect: Dialect, lane: Lane, asked: dict[str, Any], after: tuple[int, int]
) -> Steps[list[_Asked]]:
    rank, place = after
    chosen = {**asked, "lane": int(lane), "rank": rank, "place": place, "limit": _ASKED_MAX}
    rows = yield Rows(dialect.sql("outlook_candidates"), chosen)
    return [(ReadyJob.of(row), head) for head, *row in rows]


def _rank(asked: _Asked) -> tuple[int, int]:
    job, _ = asked
    return job.rank, job.place
