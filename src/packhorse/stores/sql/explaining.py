# SPDX-License-Identifier: MIT
"""What there is to see of a job when somebody asks why it does not run, or what still could."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from packhorse.job import JobStatus
from packhorse.policies.explain import JOBS_NAMED_MAX, ClosedGate, JobFacts
from packhorse.policies.gates import Gate, GateKind
from packhorse.stores.plan import Steps
from packhorse.stores.requests import EVERY_TASK, Outlook, QueueSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.gate_opening import open_book
from packhorse.stores.sql.gating import Candidate, GateBook
from packhorse.stores.sql.lines import gate_text
from packhorse.stores.sql.rows import Lane
from packhorse.stores.sql.steps import NOW, Rows

__all__ = ["facts_steps", "outlook_steps"]

#: Jobs of each lane of a queue whose gates are asked in one go to see what could run.
_ASKED_MAX: Final = 200
#: How often one goes on after the last of them.
_PAGES_MAX: Final = 64
#: Before every rank and place.
_BEGINNING: Final = (-1, -1)

#: A job whose gates are asked, and the head of its line of order.
_Asked = tuple[Candidate, str | None]


def facts_steps(dialect: Dialect, job_id: str, tenant: str | None) -> Steps[JobFacts | None]:
    """See `InspectionStore.explain`."""
    now_us: int = yield NOW
    rows = yield Rows(dialect.sql("job", columns=dialect.record_columns), (job_id,))
    if not rows or tenant not in (None, rows[0][6]):
        return None
    record = dialect.read_record(rows[0], now_us, bodies=False)
    [about] = yield Rows(dialect.sql("explain_row"), {"id": job_id, "now": now_us})
    suspect, queue_paused, lane, served, known, *candidate = about
    job = Candidate.of(candidate)
    queues = yield from dialect.queue_rows([job.keys.queue])
    book: GateBook = yield from open_book(dialect, [job.keys.task], now_us)
    closed = yield from book.closed(job, queues[job.keys.queue].settings)
    gates = []
    for standing, refused in closed:
        jobs = yield from _named(dialect, standing.gate, tenant)
        gates.append(
            ClosedGate(
                standing.gate,
                reopens_us=refused.reopens_us,
                limit=standing.limit,
                running=standing.running,
                rule=standing.rule,
                jobs=jobs,
            )
        )
    ahead = 0
    if record.status is JobStatus.QUEUED and lane != Lane.PARKED:
        [(ahead,)] = yield Rows(dialect.sql("explain_ahead"), (job.seq,))
    return JobFacts(
        record=record,
        now_us=now_us,
        suspect=bool(suspect),
        queue_paused=bool(queue_paused),
        closed=tuple(gates),
        ahead=ahead,
        served=bool(served),
        known=bool(known),
    )


def _named(dialect: Dialect, gate: Gate, tenant: str | None) -> Steps[tuple[str, ...]]:
    """The head of the line, or those who run, in order of submission; another tenant's are not."""
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
    """Whether the gates let any job go, and if not, when time opens the first of them."""
    book: GateBook = yield from open_book(dialect, tasks, now_us)
    settings = yield from dialect.queue_rows(queues)
    groups = ((Lane.READY, Lane.HELD_BACK), (Lane.SUSPECT,), (Lane.WAITING,))
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
    book: GateBook,
    settings: QueueSettings,
) -> Steps[bool]:
    """Ask the first of these lanes in the order of a claim, then all of the first lane."""
    lane, *others = lanes
    beside: list[_Asked] = []
    for other in others:
        beside += yield from _page(dialect, other, asked, _BEGINNING)
    after = _BEGINNING
    for _ in range(_PAGES_MAX):
        page = yield from _page(dialect, lane, asked, after)
        heads = [job for job, head in sorted([*page, *beside], key=_rank) if head in (None, job.id)]
        for job in heads:  # the others stand behind the heads of their lines
            refused = yield from book.ask(job, settings)
            if refused is None:
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
    return [(Candidate.of(row), head) for head, *row in rows]


def _rank(asked: _Asked) -> tuple[int, int]:
    job, _ = asked
    return job.rank, job.place
