# SPDX-License-Identifier: MIT
"""Store new jobs: refuse some, give the others their rank and place, and keep their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from packhorse.core.constraints import Constraint, job_constraints
from packhorse.core.job import NUMBER_MAX, JobStatus, NewJob
from packhorse.core.lifecycle import status_at_submit
from packhorse.core.policies.depth import excess, room, turned_away
from packhorse.core.policies.gates import concurrency_gate
from packhorse.core.policies.rate_limit import check_weight
from packhorse.core.policies.uniqueness import KnownJob, refuse_strangers
from packhorse.core.sizes import THE_STORE
from packhorse.errors import ConfigError, QueueClosed, QueueFull
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import QueueSettings, Submitted, TaskSettings
from packhorse.stores.sql.dialect import Dialect, PlanLocks
from packhorse.stores.sql.limit_state import bytes_of, count_bytes, task_settings
from packhorse.stores.sql.lines import gate_text, join_lines, line_of, order_line_of
from packhorse.stores.sql.ranks import Newcomer, mark_tenanted, ranks_of
from packhorse.stores.sql.rows import CODE, RANK_PER_PRIORITY, STATUS, Lane, QueueRow, read_extra
from packhorse.stores.sql.statements import NOW, Rows, Send

#: Jobs of a bounded line that stay ready at least, and lines that one submit caps.
_LINE_READY_MIN: Final = 32
_LINES_CAPPED_MAX: Final = 50
#: Jobs that are read at once to find those that a full queue sheds.
_SHED_PAGE: Final = 100
_PENDING: Final = CODE[JobStatus.PENDING]
_QUEUED: Final = CODE[JobStatus.QUEUED]
_READY: Final = int(Lane.READY)
_WAITING: Final = int(Lane.WAITING)


def store_all(
    dialect: Dialect, jobs: Sequence[NewJob], queues: dict[str, QueueRow], locks: PlanLocks
) -> Steps[tuple[Submitted, ...]]:
    """Store jobs whose keys no other job has taken, unless their queues refuse them."""
    now_us: int = yield NOW
    known = yield from known_jobs(dialect, [job.id for job in jobs])
    fresh = _first_of_each(jobs, known)
    yield from refuse_queues(dialect, fresh, queues)
    yield from refuse_full(dialect, fresh, queues)
    if fresh:
        yield from insert_jobs(dialect, fresh, queues, now_us, locks)
    return answered(jobs, known, now_us)


def _first_of_each(jobs: Sequence[NewJob], known: dict[str, JobStatus]) -> list[NewJob]:
    """Return the jobs to store: those whose id is new, the first of each id."""
    first: dict[str, NewJob] = {}
    for job in jobs:
        if job.id not in known:
            first.setdefault(job.id, job)
    return list(first.values())


def refuse_queues(
    dialect: Dialect, jobs: Sequence[NewJob], queues: dict[str, QueueRow]
) -> Steps[None]:
    """Refuse jobs for a shelf or a closed queue, and jobs that are too heavy."""
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
            yield from _refuse_heavy(dialect, job, row)


def refuse_full(
    dialect: Dialect,
    jobs: Iterable[NewJob],
    queues: dict[str, QueueRow],
    *,
    stored: bool = False,
    held: Mapping[str, int] | None = None,
) -> Steps[None]:
    """Refuse jobs that do not fit into queues that do not drop; `stored`: they are counted already.

    `held` has the bytes of queues that were read before the jobs were stored.
    """
    jobs = list(jobs)
    for queue, arriving in Counter(job.queue for job in jobs).items():
        limit = queues[queue].settings.max_depth
        if limit is not None and not queues[queue].drops:
            depth = yield from depth_of(dialect, queue, limit if stored else limit - arriving)
            waited = depth - arriving if stored else depth
            if excess(waited, arriving, limit):
                raise QueueFull(queue, depth=waited, limit=limit)
    before = dict(held or {})
    yield from note_bytes(dialect, queues, before)
    for name, limit in _byte_bounds(queues).items():
        chosen = [job for job in jobs if name in (job.queue, THE_STORE)]
        arriving = sum([len(job.payload) for job in chosen])
        dropping = name != THE_STORE and queues[name].drops
        if not dropping and excess(before[name], arriving, limit):
            reason = "bytes" if name != THE_STORE else "store_bytes"
            raise QueueFull(chosen[0].queue, depth=before[name], limit=limit, reason=reason)


def _byte_bounds(queues: Mapping[str, QueueRow]) -> dict[str, int]:
    """Return the byte bounds of these queues, and last that of the store."""
    bounds = {queue: row.settings.max_bytes for queue, row in queues.items()}
    bounds[THE_STORE] = next((row.store_bytes for row in queues.values()), None)
    return {name: limit for name, limit in bounds.items() if limit is not None}


def note_bytes(
    dialect: Dialect, queues: Mapping[str, QueueRow], held: dict[str, int]
) -> Steps[None]:
    """Add to `held` the bytes of bounded queues, and of the store, that are not there yet."""
    for name in _byte_bounds(queues).keys() - held.keys():
        held[name] = yield from bytes_of(dialect, name)


def depth_of(dialect: Dialect, queue: str, enough: int) -> Steps[int]:
    """Return how many jobs of a queue wait, without those that wait in a step of their handler.

    If no more than `enough` wait in all, these are counted too, since no index has them.
    """
    [(depth,)] = yield Rows(dialect.sql("depth"), (queue,))
    if depth <= enough:
        return int(depth)
    [(in_steps,)] = yield Rows(dialect.sql("depth_in_steps"), (queue,))
    return int(depth - in_steps)


def least_urgent(
    dialect: Dialect, queue: str, jobs: int, size: int
) -> Steps[list[tuple[Any, ...]]]:
    """Return the rows of jobs to shed so that a queue loses so many jobs and bytes."""
    found: list[tuple[Any, ...]] = []
    page = max(jobs, _SHED_PAGE)
    while jobs > 0 or size > 0:
        rows = yield Rows(dialect.sql("shed"), (queue, page, len(found)))
        for row in rows:
            if jobs <= 0 and size <= 0:
                break
            found.append(row)
            jobs, size = jobs - 1, size - row[-1]
        if len(rows) < page:
            break
    return found


def _refuse_heavy(dialect: Dialect, job: NewJob, row: QueueRow) -> Steps[None]:
    tasks: dict[str, TaskSettings] = yield from task_settings(dialect, [job.task])
    task = tasks.get(job.task)
    settings = row.settings
    check_weight(job.weight, (settings.rate, settings.tenant_rate, task.rate if task else None))


def insert_jobs(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    queues: dict[str, QueueRow],
    now_us: int,
    locks: PlanLocks,
) -> Steps[int]:
    """Insert the jobs whose id is new; return how many."""
    if any(job.tenant for job in jobs):
        newcomers = [_newcomer(job) for job in jobs]
        queues = yield from mark_tenanted(dialect, queues, newcomers, locks)
    seqs: Sequence[int] = yield from dialect.numbers_for(jobs, queues)
    where = [place_of(job, now_us) for job in jobs]
    if any(row.ranks_specially for row in queues.values()):
        where = yield from _special_places(dialect, jobs, queues, seqs, now_us)
    inserted: int = yield from dialect.insert_rows(jobs, seqs, where, now_us)
    yield from index_rare(dialect, jobs)
    yield from count_bytes(dialect, [job.id for job in jobs if queues[job.queue].counts_bytes])
    gated = bool(locks.gated_tasks) or any(row.gates_every_job for row in queues.values())
    if gated or any(has_keys(job) for job in jobs):
        yield from _keep_keys(dialect, jobs, queues, seqs, locks)
    for queue in queues:
        yield Wake(f"queue:{queue}")
    return inserted


def index_rare(dialect: Dialect, jobs: Sequence[NewJob]) -> Steps[None]:
    """Write what few of the jobs just inserted have, in tables of their own."""
    dated = [job.id for job in jobs if job.deadline_us is not None]
    if dated:
        yield Send(dialect.sql("submit_deadlines"), (dialect.many(dated),))
    tagged = [job.id for job in jobs if job.tags]
    if tagged:
        yield Send(dialect.sql("submit_tags"), (dialect.many(tagged),))
    yield from dialect.keep_bodies(jobs)


def is_keyed(job: NewJob) -> bool:
    """Whether a job has a unique or idempotency key."""
    return bool(job_constraints(job) & Constraint.KEY)


def has_keys(job: NewJob) -> bool:
    """Whether a job has keys or a weight that gates depend on."""
    return bool(job_constraints(job) & (Constraint.ORDER | Constraint.LIMIT))


def _newcomer(job: NewJob) -> Newcomer:
    return Newcomer(job.queue, job.priority, job.tenant)


def _special_places(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    queues: dict[str, QueueRow],
    seqs: Sequence[int],
    now_us: int,
) -> Steps[list[tuple[int, int, int]]]:
    """Do as `place_of` for queues where ranks depend on more than priority."""
    doomed = yield from _doomed(dialect, jobs, queues, seqs)
    due = [due_us_of(job, now_us) for job in jobs]
    where = [(_PENDING, _WAITING, due_us) for due_us in due]
    ready = [
        index for index, job in enumerate(jobs) if due[index] <= now_us and job.id not in doomed
    ]
    newcomers = [_newcomer(jobs[index]) for index in ready]
    ranks = yield from ranks_of(dialect, newcomers, queues, now_us)
    for index, rank in zip(ready, ranks, strict=True):
        where[index] = (_QUEUED, _READY, rank)
    return where


def _doomed(
    dialect: Dialect, jobs: Sequence[NewJob], queues: dict[str, QueueRow], seqs: Sequence[int]
) -> Steps[frozenset[str]]:
    """Return new jobs that a full queue will drop at once: they take no place and no pass."""
    doomed: set[str] = set()
    for queue, row in queues.items():
        if not row.drops:
            continue
        mine = [
            (job.priority, seq, job.id, len(job.payload))
            for seq, job in zip(seqs, jobs, strict=True)
            if job.queue == queue
        ]
        size = sum(own for *_, own in mine)
        more, larger = yield from room_in(dialect, queue, row.settings, len(mine))
        if len(mine) > more or size > larger:
            least = yield from least_urgent(dialect, queue, len(mine) - more, size - larger)
            waiting = [(priority, seq, "", own) for seq, _, _, priority, own in least]
            doomed |= turned_away(waiting, mine, more, larger)
    return frozenset(doomed)


def room_in(
    dialect: Dialect, queue: str, settings: QueueSettings, arriving: int
) -> Steps[tuple[int, int]]:
    """Return how many more jobs and bytes fit; a number of jobs below `arriving` may be too low."""
    jobs = size = NUMBER_MAX
    if settings.max_depth is not None:
        depth = yield from depth_of(dialect, queue, settings.max_depth - arriving)
        jobs = room(depth, settings.max_depth)
    if settings.max_bytes is not None:
        size = room((yield from bytes_of(dialect, queue)), settings.max_bytes)
    return jobs, size


def known_jobs(dialect: Dialect, job_ids: Iterable[str]) -> Steps[dict[str, JobStatus]]:
    """Return the statuses of these jobs that are stored."""
    rows = yield Rows(dialect.sql("known"), (dialect.many(list(job_ids)),))
    return {job_id: STATUS[status] for job_id, status in rows}


def refuse_known(
    dialect: Dialect, jobs: Sequence[NewJob], *, ids_are_new: bool = False
) -> Steps[None]:
    """Refuse jobs whose ids belong to others; see `policies.uniqueness.refuse_strangers`."""
    if not jobs or ids_are_new:
        return
    known = yield from known_as(dialect, [job.id for job in jobs])
    refuse_strangers(jobs, known)


def known_as(dialect: Dialect, job_ids: Iterable[str]) -> Steps[dict[str, KnownJob]]:
    """Return what a submit compares of these jobs that are stored."""
    ids = dialect.many(list(dict.fromkeys(job_ids)))
    rows = yield Rows(dialect.sql("known_as"), (ids,))
    return {
        job_id: KnownJob(task, tenant, payload, read_extra(extra).unique)
        for job_id, task, tenant, payload, extra in rows
    }


def due_us_of(job: NewJob, now_us: int) -> int:
    """Return when a new job is due."""
    return now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us


def place_of(job: NewJob, now_us: int) -> tuple[int, int, int]:
    """Return status, lane and rank of a new job by its priority alone."""
    due_us = due_us_of(job, now_us)
    if due_us <= now_us:
        return _QUEUED, _READY, job.priority * RANK_PER_PRIORITY
    return _PENDING, _WAITING, due_us


def _keep_keys(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    queues: dict[str, QueueRow],
    seqs: Sequence[int],
    locks: PlanLocks,
) -> Steps[None]:
    """Write the keys and lines of jobs that gates may block, and block the ready ones behind."""
    tasks: dict[str, TaskSettings] = {}
    if any(row.limited_tasks for row in queues.values()):
        tasks = yield from task_settings(dialect, dict.fromkeys([job.task for job in jobs]))
    changes: list[dict[str, Any]] = []
    lined = []
    for seq, job in zip(seqs, jobs, strict=True):
        line = line_of(dialect, job, queues[job.queue].settings, tasks.get(job.task))
        order_line = order_line_of(job)
        gated = line is not None or order_line is not None or job.weight != 1
        lined.append((job, gated))
        if gated:
            lines = {"line": line, "order_line": order_line, "ordering_key": job.ordering_key}
            keys = {"concurrency_key": job.concurrency_key, "rate_key": job.rate_key}
            changes.append({"seq": seq, "id": job.id, "weight": job.weight, **lines, **keys})
    yield from locks.mark_lined(lined, queues)
    if changes:
        yield dialect.write_rows(dialect.sql("submit_keys"), changes)
        yield from join_lines(dialect, [change["seq"] for change in changes])
        yield from _cap_lines(dialect, jobs, queues, tasks)


def _cap_lines(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    queues: dict[str, QueueRow],
    tasks: dict[str, TaskSettings],
) -> Steps[None]:
    """Keep only as many jobs of a bounded line ready as could run, so that claims stay short."""
    bounded: dict[str, tuple[str, int]] = {}
    for job in jobs:
        task = tasks.get(job.task)
        if task is not None and task.concurrency is not None and job.ordering_key is None:
            line = line_of(dialect, job, queues[job.queue].settings, task)
            if line is not None:
                bounded[line] = (gate_text(concurrency_gate(job)), task.concurrency)
    if len(bounded) <= _LINES_CAPPED_MAX:
        for line, (gate, limit) in bounded.items():
            yield Send(dialect.sql("line_cap"), (gate, line, max(limit, _LINE_READY_MIN)))


def fresh_answer(job: NewJob, now_us: int) -> Submitted:
    """Return the answer for a job that was stored."""
    return Submitted(
        job.id, deduplicated=False, status=status_at_submit(due_us_of(job, now_us), now_us)
    )


def answered(
    jobs: Sequence[NewJob], known: dict[str, JobStatus], now_us: int
) -> tuple[Submitted, ...]:
    """Return the answers; jobs that were known or repeated in this call are deduplicated."""
    seen = dict(known)
    answers = []
    for job in jobs:
        status = seen.get(job.id)
        fresh = fresh_answer(job, now_us)
        answers.append(fresh if status is None else Submitted(job.id, True, status))
        seen.setdefault(job.id, fresh.status)
    return tuple(answers)
