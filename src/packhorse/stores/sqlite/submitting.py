# SPDX-License-Identifier: MIT
"""Submit: a batch of new jobs in a few multi-row statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from packhorse.errors import ConfigError, QueueClosed, QueueFull
from packhorse.job import JobStatus, NewJob
from packhorse.lifecycle import status_at_submit
from packhorse.policies.depth import excess, turned_away
from packhorse.policies.gates import concurrency_gate
from packhorse.policies.rate_limit import check_weight
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import Submitted, TaskSettings
from packhorse.stores.sqlite.lines import gate_text, join_lines, line_of, order_line_of
from packhorse.stores.sqlite.plain import Alike, has_keys, is_rare
from packhorse.stores.sqlite.ranking import Newcomer, mark_tenanted, ranks_of
from packhorse.stores.sqlite.rows import (
    CODE,
    PASSES,
    STATUS,
    Lane,
    extra_of,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sqlite.settings import QueueRow, queue_rows, task_settings
from packhorse.stores.sqlite.statements import NOW, Change, ChangeMany, Rows, sql

__all__ = [
    "due_us_of",
    "insert_jobs",
    "known_jobs",
    "refuse_full",
    "refuse_queues",
    "store_alike",
    "store_all",
    "take_places",
]

#: Rows in one insert: enough to spread the cost of a statement, below SQLite's parameter limit.
_ROWS_MAX: Final = 50
_COLUMNS: Final = 19
#: Jobs of a bounded line that are ready at least, and lines looked at in one submit.
_LINE_READY_MIN: Final = 32
_LINES_CAPPED_MAX: Final = 50
_PENDING: Final = CODE[JobStatus.PENDING]
_QUEUED: Final = CODE[JobStatus.QUEUED]
_READY: Final = int(Lane.READY)
_WAITING: Final = int(Lane.WAITING)


def store_alike(jobs: Sequence[NewJob], batch: Alike) -> Steps[tuple[Submitted, ...] | None]:
    """Store jobs that are alike, in a queue that has no say in it; None when it has."""
    first, now_us = batch.first, (yield NOW)
    queues: dict[str, QueueRow] = yield from queue_rows([first.queue])
    row = queues[first.queue]
    if row.may_refuse or row.ranks_specially or row.gates_every_job:
        return None
    added = 0
    for insert in batch.inserts(now_us, row.last):
        added += yield insert
    yield Wake(f"queue:{first.queue}")
    if added == len(jobs):
        status = _fresh(first, now_us).status
        return tuple([Submitted(job_id, False, status) for job_id in batch.ids])
    known = yield from known_jobs(jobs, up_to=row.last)
    return _answers(jobs, known, now_us)


def store_all(
    jobs: Sequence[NewJob],
) -> Steps[tuple[tuple[Submitted, ...], dict[str, QueueRow]]]:
    """Store jobs that want no keys of their own; answers, and the queues as they were."""
    now_us: int = yield NOW
    queues: dict[str, QueueRow] = yield from queue_rows(dict.fromkeys([job.queue for job in jobs]))
    fresh = jobs
    if any(row.may_refuse or row.ranks_specially for row in queues.values()) or any(
        job.weight != 1 or job.tenant for job in jobs
    ):
        known = yield from known_jobs(jobs)
        fresh = _first_of_each(jobs, known)
        yield from refuse_queues(fresh, queues)
        yield from refuse_full(fresh, queues)
    inserted = 0
    if fresh:
        inserted = yield from insert_jobs(fresh, queues, now_us)
    if inserted == len(jobs):
        return tuple([_fresh(job, now_us) for job in jobs]), queues
    last = max(row.last for row in queues.values())
    known = yield from known_jobs(jobs, up_to=last)
    return _answers(jobs, known, now_us), queues


def _first_of_each(jobs: Sequence[NewJob], known: dict[str, JobStatus]) -> list[NewJob]:
    """Those that will be stored: whose id is new, and has not come before in this call."""
    first: dict[str, NewJob] = {}
    for job in jobs:
        if job.id not in known:
            first.setdefault(job.id, job)
    return list(first.values())


def refuse_queues(jobs: Sequence[NewJob], queues: dict[str, QueueRow]) -> Steps[None]:
    """New jobs go to no shelf and no closed queue, and are not too heavy."""
    for job in jobs:
        row = queues[job.queue]
        if row.shelf:
            raise ConfigError(
                f"{job.queue!r} is a dead-letter shelf, not a queue, and nothing is claimed from "
                "it; nothing was stored: submit to the queue itself, or redrive the dead letter"
            )
        if row.closed:
            raise QueueClosed(job.queue)
        if job.weight != 1:
            yield from _refuse_heavy(job, row)


def refuse_full(
    jobs: Iterable[NewJob], queues: dict[str, QueueRow], *, stored: bool = False
) -> Steps[None]:
    """Refuse what does not fit into a queue that does not drop; some have it `stored` already."""
    for queue, arriving in Counter(job.queue for job in jobs).items():
        limit = queues[queue].settings.max_depth
        if limit is not None and not queues[queue].drops:
            [(depth,)] = yield Rows(sql("depth"), (queue,))
            before = depth - arriving if stored else depth
            if excess(before, arriving, limit):
                raise QueueFull(queue, depth=before, limit=limit)


def _refuse_heavy(job: NewJob, row: QueueRow) -> Steps[None]:
    tasks: dict[str, TaskSettings] = yield from task_settings([job.task])
    task = tasks.get(job.task)
    settings = row.settings
    check_weight(job.weight, (settings.rate, settings.tenant_rate, task.rate if task else None))


def insert_jobs(jobs: Sequence[NewJob], queues: dict[str, QueueRow], now_us: int) -> Steps[int]:
    """Add those whose id is new; says how many those were."""
    if any(job.tenant for job in jobs):
        queues = yield from mark_tenanted(queues, [_newcomer(job) for job in jobs])
    last = max([row.last for row in queues.values()])
    ranks: dict[int, int] | None = None
    if any(row.ranks_specially for row in queues.values()):
        ranks = yield from _special_ranks(jobs, queues, now_us)
    rows = _rows(jobs, now_us, last, ranks)
    inserted = 0
    for start in range(0, len(rows), _ROWS_MAX):
        chunk = rows[start : start + _ROWS_MAX]
        inserted += yield Change(_insert(len(chunk)), tuple(chain.from_iterable(chunk)))
    if any(is_rare(job) for job in jobs):
        yield from _index_rare(jobs)
    lined = any(row.gates_every_job for row in queues.values())
    if lined or any(has_keys(job) for job in jobs):
        yield from _keep_keys(jobs, queues, last)
    for queue in queues:
        yield Wake(f"queue:{queue}")
    return inserted


def _newcomer(job: NewJob) -> Newcomer:
    return Newcomer(job.queue, job.priority, job.tenant)


def _special_ranks(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow], now_us: int
) -> Steps[dict[int, int]]:
    """The ranks of those that become ready at once, where more than priority decides."""
    doomed = yield from _doomed(jobs, queues)
    ready = [
        index
        for index, job in enumerate(jobs)
        if due_us_of(job, now_us) <= now_us and job.id not in doomed
    ]
    ranks = yield from ranks_of([_newcomer(jobs[index]) for index in ready], queues, now_us)
    return dict(zip(ready, ranks, strict=True))


def _doomed(jobs: Sequence[NewJob], queues: dict[str, QueueRow]) -> Steps[frozenset[str]]:
    """Arrivals that a full queue will drop at once: they take no place and no pass."""
    doomed: set[str] = set()
    for queue, row in queues.items():
        if not row.drops:
            continue
        arriving = sum(job.queue == queue for job in jobs)
        [(depth,)] = yield Rows(sql("depth"), (queue,))
        too_many = excess(depth, arriving, row.settings.max_depth)
        if too_many:
            least = yield Rows(sql("shed"), (queue, too_many))
            waiting = [(priority, seq, "") for seq, _, priority in least]
            mine = [
                (job.priority, row.last + 1 + index, job.id)
                for index, job in enumerate(jobs)
                if job.queue == queue
            ]
            doomed |= turned_away(waiting, mine, (row.settings.max_depth or 0) - depth)
    return frozenset(doomed)


def take_places(count: int) -> Steps[int]:
    """Take `count` places behind all that were ever given out; answers the last one."""
    if count == 0:
        return 0
    rows = yield Rows(sql("next_places"), (count,))
    last: int = rows[0][0]
    return last


def known_jobs(jobs: Sequence[NewJob], *, up_to: int | None = None) -> Steps[dict[str, JobStatus]]:
    """The status of those that are there, up to a sequence number."""
    ids = json_text([job.id for job in jobs])
    rows = yield Rows(sql("submit_known"), {"ids": ids, "up_to": up_to})
    return {job_id: STATUS[status] for job_id, status in rows}


def due_us_of(job: NewJob, now_us: int) -> int:
    """When a new job is due."""
    return now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us


def _rows(
    jobs: Sequence[NewJob], now_us: int, last: int, ranks: dict[int, int] | None
) -> list[tuple[Any, ...]]:
    """The rows of new jobs. A job's number is also its place, if it is ready at once."""
    rows = []
    for index, job in enumerate(jobs):
        due_us = now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us
        seq = last + 1 + index
        if due_us <= now_us and ranks is None:
            where = (_QUEUED, _READY, job.priority * PASSES)
        elif ranks is not None and index in ranks:
            where = (_QUEUED, _READY, ranks[index])
        else:
            where = (_PENDING, _WAITING, due_us)
        rows.append(
            (
                seq,
                job.id,
                job.task,
                job.queue,
                *where,
                seq,
                job.priority,
                due_us,
                now_us,
                now_us,
                now_us,
                job.timeout_us,
                job.deadline_us,
                job.tenant,
                trace_of(job),
                extra_of(job),
                payload_text(job),
            )
        )
    return rows


@cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _COLUMNS) + ")"
    return sql("submit").format(rows=", ".join([row] * rows))


def _index_rare(jobs: Sequence[NewJob]) -> Steps[None]:
    """What few jobs have is kept apart, so that jobs without it pay nothing."""
    with_deadline = [job.id for job in jobs if job.deadline_us is not None]
    if with_deadline:
        yield Change(sql("submit_deadlines"), (json_text(with_deadline),))
    with_tags = [job.id for job in jobs if job.tags]
    if with_tags:
        yield Change(sql("submit_tags"), (json_text(with_tags),))


def _keep_keys(jobs: Sequence[NewJob], queues: dict[str, QueueRow], last: int) -> Steps[None]:
    """Gates: the keys of jobs that have some, and where those stand that are ready."""
    tasks: dict[str, TaskSettings] = {}
    if any(row.limited_tasks for row in queues.values()):
        tasks = yield from task_settings(dict.fromkeys([job.task for job in jobs]))
    changes = []
    for index, job in enumerate(jobs):
        settings = queues[job.queue].settings
        task = tasks.get(job.task)
        line = line_of(job, settings, task)
        if line is not None or job.weight != 1:
            keys = (job.ordering_key, job.concurrency_key, job.rate_key, job.weight)
            seq = last + 1 + index
            changes.append((*keys, line, order_line_of(job), seq, seq, job.id))
    if changes:
        yield ChangeMany(sql("submit_keys"), changes)
        yield from join_lines([seq for *_, seq, _ in changes])
        yield from _cap_lines(jobs, queues, tasks)


def _cap_lines(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow], tasks: dict[str, TaskSettings]
) -> Steps[None]:
    """Of a line that one key bounds, only so many are ready as could run; so claims stay short."""
    bounded: dict[str, tuple[str, int]] = {}
    for job in jobs:
        task = tasks.get(job.task)
        if task is not None and task.concurrency is not None and job.ordering_key is None:
            line = line_of(job, queues[job.queue].settings, task)
            if line is not None:
                bounded[line] = (gate_text(concurrency_gate(job)), task.concurrency)
    if len(bounded) <= _LINES_CAPPED_MAX:
        for line, (gate, limit) in bounded.items():
            yield Change(sql("line_cap"), (gate, line, max(limit, _LINE_READY_MIN)))


def _fresh(job: NewJob, now_us: int) -> Submitted:
    return Submitted(
        job.id, deduplicated=False, status=status_at_submit(due_us_of(job, now_us), now_us)
    )


def _answers(
    jobs: Sequence[NewJob], known: dict[str, JobStatus], now_us: int
) -> tuple[Submitted, ...]:
    """Some were there already, or came twice in this call."""
    seen = dict(known)
    answers = []
    for job in jobs:
        status = seen.get(job.id)
        fresh = _fresh(job, now_us)
        answers.append(fresh if status is None else Submitted(job.id, True, status))
        seen.setdefault(job.id, fresh.status)
    return tuple(answers)
