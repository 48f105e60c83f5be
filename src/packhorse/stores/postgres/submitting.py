# SPDX-License-Identifier: MIT
"""Submit: new jobs of plain queues in one statement, all others with the places they are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from packhorse.errors import ConfigError, QueueClosed, QueueFull
from packhorse.job import JobStatus, NewJob
from packhorse.lifecycle import status_at_submit
from packhorse.policies.depth import excess, turned_away
from packhorse.policies.gates import concurrency_gate
from packhorse.policies.rate_limit import check_weight
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.lines import gate_text, join_lines, line_of, order_line_of
from packhorse.stores.postgres.locking import Level, mark_lined
from packhorse.stores.postgres.queue_settings import QueueRow, queue_rows, task_settings
from packhorse.stores.postgres.ranking import Newcomer, mark_tenanted, ranks_of
from packhorse.stores.postgres.rows import (
    CODE,
    PASSES,
    STATUS,
    Lane,
    extra_of,
    options_of,
    payload_text,
    trace_of,
)
from packhorse.stores.postgres.statements import NOW, Again, ChangeMany, Rows, Send, sql
from packhorse.stores.requests import Submitted, TaskSettings

__all__ = [
    "due_us_of",
    "index_rare",
    "insert_jobs",
    "is_plain",
    "known_jobs",
    "refuse_full",
    "refuse_queues",
    "store_all",
    "store_plain",
    "take_places",
]

#: Jobs of a bounded line that are ready at least, and lines looked at in one submit.
_LINE_READY_MIN: Final = 32
_LINES_CAPPED_MAX: Final = 50
_PENDING: Final = CODE[JobStatus.PENDING]
_QUEUED: Final = CODE[JobStatus.QUEUED]
_READY: Final = int(Lane.READY)
_WAITING: Final = int(Lane.WAITING)


def is_plain(job: NewJob) -> bool:
    """Whether nothing but the queue it goes to could make this job a special one."""
    return not (
        job.tenant
        or job.weight != 1
        or job.unique is not None
        or job.idempotency is not None
        or job.ordering_key is not None
        or job.concurrency_key is not None
        or job.rate_key is not None
    )


def store_plain(jobs: Sequence[NewJob]) -> Steps[tuple[Submitted, ...]]:
    """Store plain jobs that go to plain queues."""
    now_us: int = yield NOW
    seqs = yield from take_places(len(jobs))
    inserted = yield from _insert_rows(jobs, seqs, now_us, None)
    yield from index_rare(jobs, seqs)
    for queue in dict.fromkeys(job.queue for job in jobs):
        yield Wake(f"queue:{queue}")
    if inserted == len(jobs):
        return tuple([_fresh(job, now_us) for job in jobs])
    known = yield from known_jobs(jobs, but=seqs)
    return _answers(jobs, known, now_us)


def store_all(
    jobs: Sequence[NewJob], level: Level
) -> Steps[tuple[tuple[Submitted, ...], dict[str, QueueRow]]]:
    """Store jobs that want no keys of their own; answers, and the queues as they were."""
    now_us: int = yield NOW
    queues: dict[str, QueueRow] = yield from queue_rows(dict.fromkeys([job.queue for job in jobs]))
    known = yield from known_jobs(jobs)
    fresh = _first_of_each(jobs, known)
    yield from refuse_queues(fresh, queues)
    yield from refuse_full(fresh, queues)
    if fresh:
        yield from insert_jobs(fresh, queues, now_us, level)
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


def insert_jobs(
    jobs: Sequence[NewJob],
    queues: dict[str, QueueRow],
    now_us: int,
    level: Level,
) -> Steps[None]:
    """Add jobs whose ids are new."""
    if any(job.tenant for job in jobs):
        queues = yield from mark_tenanted(queues, [_newcomer(job) for job in jobs], level)
    seqs = yield from take_places(len(jobs))
    ranks: dict[int, int] | None = None
    if any(row.ranks_specially for row in queues.values()):
        ranks = yield from _special_ranks(jobs, queues, seqs, now_us)
    inserted = yield from _insert_rows(jobs, seqs, now_us, ranks)
    if inserted < len(jobs):
        raise Again("a job of the same id was stored meanwhile, in another queue")
    yield from index_rare(jobs, seqs)
    lined = any(row.gates_every_job for row in queues.values()) or level.special.tasks
    if lined or any(_has_keys(job) for job in jobs):
        yield from _keep_keys(jobs, queues, seqs, level)
    for queue in queues:
        yield Wake(f"queue:{queue}")


def _newcomer(job: NewJob) -> Newcomer:
    return Newcomer(job.queue, job.priority, job.tenant)


def _has_keys(job: NewJob) -> bool:
    return (
        job.ordering_key is not None
        or job.concurrency_key is not None
        or job.rate_key is not None
        or job.weight != 1
    )


def _special_ranks(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow], seqs: Sequence[int], now_us: int
) -> Steps[dict[int, int]]:
    """The ranks of those that become ready at once, where more than priority decides."""
    doomed = yield from _doomed(jobs, queues, seqs)
    ready = [
        index
        for index, job in enumerate(jobs)
        if due_us_of(job, now_us) <= now_us and job.id not in doomed
    ]
    ranks = yield from ranks_of([_newcomer(jobs[index]) for index in ready], queues, now_us)
    return dict(zip(ready, ranks, strict=True))


def _doomed(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow], seqs: Sequence[int]
) -> Steps[frozenset[str]]:
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
                (job.priority, seq, job.id)
                for seq, job in zip(seqs, jobs, strict=True)
                if job.queue == queue
            ]
            doomed |= turned_away(waiting, mine, (row.settings.max_depth or 0) - depth)
    return frozenset(doomed)


def take_places(count: int) -> Steps[list[int]]:
    """Take `count` numbers behind all that were ever given out, as sequence or as place."""
    if count == 0:
        return []
    rows = yield Rows(sql("numbers"), (count,))
    return [number for (number,) in rows]


def known_jobs(jobs: Sequence[NewJob], *, but: Sequence[int] = ()) -> Steps[dict[str, JobStatus]]:
    """The status of those that are there, save some that were just added."""
    ids = [job.id for job in jobs]
    rows = yield Rows(sql("submit_known"), {"ids": ids, "but": list(but)})
    return {job_id: STATUS[status] for job_id, status in rows}


def due_us_of(job: NewJob, now_us: int) -> int:
    """When a new job is due."""
    return now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us


def _insert_rows(
    jobs: Sequence[NewJob], seqs: Sequence[int], now_us: int, ranks: dict[int, int] | None
) -> Steps[int]:
    """Add those whose id is new; says how many. A job's number is also its place."""
    columns: dict[str, Any] = {
        "seq": list(seqs),
        "id": [job.id for job in jobs],
        "task": [job.task for job in jobs],
        "queue": [job.queue for job in jobs],
        "priority": [int(job.priority) for job in jobs],
        "due_us": [due_us_of(job, now_us) for job in jobs],
        "timeout_us": [job.timeout_us for job in jobs],
        "deadline_us": [job.deadline_us for job in jobs],
        "tenant": [job.tenant for job in jobs],
        "trace_id": [trace_of(job) for job in jobs],
        "options": [options_of(job) for job in jobs],
        "upstream_request_id": [job.upstream_request_id for job in jobs],
        "created_by": [job.created_by for job in jobs],
        "extra": [extra_of(job) for job in jobs],
        "keyed": [job.unique is not None or job.idempotency is not None for job in jobs],
        "payload": [payload_text(job) for job in jobs],
    }
    where = [_where(index, job, now_us, ranks) for index, job in enumerate(jobs)]
    standing = dict(zip(("status", "lane", "rank"), zip(*where, strict=True), strict=True))
    lists = {name: list(values) for name, values in standing.items()}
    rows = yield Rows(sql("submit_rows"), {**columns, **lists, "now": now_us})
    return len(rows)


def _where(
    index: int, job: NewJob, now_us: int, ranks: dict[int, int] | None
) -> tuple[int, int, int]:
    """Status, lane and rank of a new job."""
    due_us = due_us_of(job, now_us)
    if due_us <= now_us and ranks is None:
        return _QUEUED, _READY, job.priority * PASSES
    if ranks is not None and index in ranks:
        return _QUEUED, _READY, ranks[index]
    return _PENDING, _WAITING, due_us


def index_rare(jobs: Sequence[NewJob], seqs: Sequence[int]) -> Steps[None]:
    """What few jobs have is kept apart, so that jobs without it pay nothing."""
    pairs = zip(jobs, seqs, strict=True)
    dated = [(job.deadline_us, seq) for job, seq in pairs if job.deadline_us is not None]
    if dated:
        deadlines, dated_seqs = zip(*dated, strict=True)
        rows = {"deadlines": list(deadlines), "seqs": list(dated_seqs)}
        yield Send(sql("submit_deadlines"), rows)
    tagged = [(job.id, tag) for job in jobs for tag in job.tags]
    if tagged:
        ids, tags = zip(*tagged, strict=True)
        yield Send(sql("submit_tags"), {"ids": list(ids), "tags": list(tags)})


def _keep_keys(
    jobs: Sequence[NewJob], queues: dict[str, QueueRow], seqs: Sequence[int], level: Level
) -> Steps[None]:
    """Gates: the keys of jobs that have some, and where those stand that are ready."""
    tasks: dict[str, TaskSettings] = {}
    if any(row.limited_tasks for row in queues.values()):
        tasks = yield from task_settings(dict.fromkeys([job.task for job in jobs]))
    changes = []
    tasked = {job.queue for job in jobs if job.task in level.special.tasks}
    lined: set[str] = set()
    for seq, job in zip(seqs, jobs, strict=True):
        settings = queues[job.queue].settings
        task = tasks.get(job.task)
        line = line_of(job, settings, task)
        if line is not None or job.weight != 1:
            keys = (job.ordering_key, job.concurrency_key, job.rate_key, job.weight)
            changes.append((*keys, line, order_line_of(job), seq, seq, job.id))
            lined.add(job.queue)
    yield from _mark(lined, tasked, queues, level)
    if changes:
        yield ChangeMany(sql("submit_keys"), changes)
        yield from join_lines([seq for *_, seq, _ in changes])
        yield from _cap_lines(jobs, queues, tasks)


def _mark(
    lined: set[str], tasked: set[str], queues: dict[str, QueueRow], level: Level
) -> Steps[None]:
    """Queues are no longer plain that have such jobs from now on."""
    unknown = sorted(tasked - level.special.tasked)
    if unknown:
        yield from mark_lined(unknown, level, tasked=True)
    unknown = sorted(queue for queue in lined - tasked if not queues[queue].lined)
    if unknown:
        yield from mark_lined(unknown, level, tasked=False)


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
            yield Send(sql("line_cap"), (gate, line, max(limit, _LINE_READY_MIN)))


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
