# SPDX-License-Identifier: MIT
"""The verbs of jobs that the SQL stores share: cancel, redrive, delete, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from packhorse.core.job import LOOK_MAX, TERMINAL, JobStatus
from packhorse.core.lifecycle import CancelAnswer, cancel, cancel_lost, redrive_allowed
from packhorse.core.policies.journal import ran_once
from packhorse.core.policies.lease import is_lost
from packhorse.core.policies.retention import lifetimes
from packhorse.core.settlement import Verdict
from packhorse.stores.plan import Plan, Steps, Wake, about_job, looking_for, planned
from packhorse.stores.requests import Deleted, JobFilter, ProgressNote, RedriveAnswer, TaskSettings
from packhorse.stores.sql.dialect import Dialect, PlanLocks, read_queues
from packhorse.stores.sql.finish import aftermath, finish_waiting, remove_steps
from packhorse.stores.sql.keys import Holder, holder_of, identities_of, leave_ready, take_keys
from packhorse.stores.sql.limit_state import count_bytes, task_settings
from packhorse.stores.sql.lines import Keys, advance_lines, join_lines, line_of, order_line_of
from packhorse.stores.sql.ranks import Newcomer, rank_of
from packhorse.stores.sql.rows import CODE, STATUS, QueueRow, json_text, read_extra, retention_of
from packhorse.stores.sql.search import chosen_finished
from packhorse.stores.sql.settle import settle_each
from packhorse.stores.sql.statements import NOW, Rows, Send, Together
from packhorse.stores.transfer import cursor_of

#: The answer to a redrive of one job that the store does not know.
_UNKNOWN: Final[tuple[RedriveAnswer, ...]] = (RedriveAnswer.UNKNOWN,)


class SqlJobs:
    """See `JobStore`; a store adds submit, claim and settle. `locks` makes the locks of a plan."""

    def __init__(self, dialect: Dialect, locks: Callable[[], PlanLocks]) -> None:
        self._dialect = dialect
        self._locks = locks

    @planned()
    def note_progress(self, notes: Sequence[ProgressNote]) -> Steps[tuple[Verdict, ...]]:
        now_us = yield NOW
        text = self._dialect.sql("progress")
        # In the order in which settlements lock jobs, too; the newest of a job stays the last.
        order = sorted(range(len(notes)), key=lambda index: notes[index].job_id)
        found = yield Together([Rows(text, _noted(notes[index], now_us)) for index in order])
        written = dict(zip(order, found, strict=True))
        return tuple(
            [Verdict.APPLIED if written[index] else Verdict.STALE for index in range(len(notes))]
        )

    @about_job(CancelAnswer.UNKNOWN)
    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        locks = self._locks()
        return Plan("cancel", lambda: cancel_steps(self._dialect, job_id, tenant, locks))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None, forget: Sequence[str] = ()
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        steps = partial(redrive_steps, self._dialect, job_ids, tenant, forget)
        if len(job_ids) != 1:
            return Plan("redrive", steps)
        named = looking_for(
            job_ids[0], _UNKNOWN, lambda other: self.redrive((other,), tenant=tenant, forget=forget)
        )
        return Plan("redrive", steps, named=named)

    def delete(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int = LOOK_MAX
    ) -> Plan[Deleted]:
        behind = cursor_of(after)
        return Plan("delete", partial(delete_steps, self._dialect, chosen, limit, behind, most))


def _noted(note: ProgressNote, now_us: int) -> dict[str, Any]:
    progress = json_text(note.progress)
    return {"id": note.job_id, "fence": note.fence, "progress": progress, "now": now_us}


def delete_steps(
    dialect: Dialect, chosen: JobFilter, limit: int, behind: int, most: int
) -> Steps[Deleted]:
    """See `JobStore.delete`."""
    yield from dialect.lock_all()
    seqs, end = yield from chosen_finished(dialect, chosen, max(0, limit), behind, most)
    removed: int = yield from remove_steps(dialect, seqs)
    return Deleted(removed, None if end is None else str(end))


def cancel_steps(
    dialect: Dialect, job_id: str, tenant: str | None, locks: PlanLocks
) -> Steps[CancelAnswer]:
    """See `JobStore.cancel`."""
    yield from locks.enter()
    rows = yield Rows(dialect.sql("cancel_row"), (job_id,))
    if not rows:
        return CancelAnswer.UNKNOWN
    job = _Unwanted(*rows[0])
    if tenant not in (None, job.tenant):
        yield from leave_ready(job.queue, job.status)
        return CancelAnswer.UNKNOWN
    now_us: int = yield NOW
    status = STATUS[job.status]
    answer = cancel(status, lost=is_lost(job.lease_expires_us, job.hold_us, now_us))
    if answer is CancelAnswer.CANCELLED:
        # Asked only now: a submit that held the row may have stashed a job meanwhile.
        [(stashed,)] = yield Rows(dialect.sql("stash_behind"), (job.seq,))
        if stashed:
            locks.go_alone()
        locks.allow([job.queue])
        end = _end_lost if status is JobStatus.PROCESSING else _end_waiting
        yield from end(dialect, job_id, job, now_us, locks)
    elif answer is CancelAnswer.FLAGGED:
        yield Send(dialect.sql("cancel_running"), {"seq": job.seq, "now": now_us})
        yield Wake(f"cancel:{job.worker}")
    return answer


class _Unwanted(NamedTuple):
    """A job to be cancelled: a row of `cancel_row`."""

    tenant: str
    seq: int
    status: int
    queue: str
    settings: str | None
    worker: str | None
    fence: int
    alone: bool
    hold_us: int | None
    lease_expires_us: int | None


def _end_waiting(
    dialect: Dialect, _job_id: str, job: _Unwanted, now_us: int, locks: PlanLocks
) -> Steps[None]:
    kept = lifetimes(now_us, retention_of(job.settings).finished_us)
    ending = {"seq": job.seq, "now": now_us, "status": CODE[JobStatus.CANCELLED], **kept}
    ended = {**ending, "lane": None, "dead_reason": None}
    yield from finish_waiting(dialect, [ended], stashed=locks.alone)


def _end_lost(
    dialect: Dialect, job_id: str, job: _Unwanted, now_us: int, locks: PlanLocks
) -> Steps[None]:
    worker, keep_us = job.worker or "", retention_of(job.settings).finished_us
    settlement = cancel_lost(
        job_id, job.fence, worker=worker, alone=bool(job.alone), keep_us=keep_us
    )
    yield from settle_each(dialect, [settlement], now_us)
    yield from aftermath(dialect, "id", [job_id], stashed=locks.alone)


class _Row(NamedTuple):
    """A job to be redriven: a row of `redrive_row`."""

    id: str
    seq: int
    status: int
    priority: int
    extra: str | None
    group: str | None
    keys: Keys


def redrive_steps(
    dialect: Dialect, job_ids: Sequence[str], tenant: str | None, forget: Sequence[str]
) -> Steps[tuple[RedriveAnswer, ...]]:
    """Redrive one by one; see `JobStore.redrive`."""
    locks = yield from dialect.go_alone()
    answers = []
    for job_id in job_ids:
        answer = yield from _redrive(dialect, job_id, tenant, locks, forget)
        answers.append(answer)
    return tuple(answers)


def _redrive(
    dialect: Dialect, job_id: str, tenant: str | None, locks: PlanLocks, forget: Sequence[str]
) -> Steps[RedriveAnswer]:
    rows = yield Rows(dialect.sql("redrive_row"), (job_id,))
    if not rows:
        return RedriveAnswer.UNKNOWN
    known_id, seq, code, priority, extra, group, *keys = rows[0]
    row = _Row(known_id, seq, code, priority, extra, group, Keys(*keys))
    if tenant not in (None, row.keys.tenant):
        return RedriveAnswer.UNKNOWN
    status = STATUS[row.status]
    if not redrive_allowed(status) or ran_once(status, row.group):
        return RedriveAnswer.REFUSED
    if status in TERMINAL:
        superseded = yield from _superseded(dialect, row)
        if superseded:
            return RedriveAnswer.CONFLICT
        for name in forget:
            yield Send(dialect.sql("attached_drop"), {"seq": row.seq, "name": name})
    yield from _ready_again(dialect, row, locks, finished=status in TERMINAL)
    return RedriveAnswer.REDRIVEN


def _superseded(dialect: Dialect, row: _Row) -> Steps[bool]:
    """Whether another job has taken one of this job's keys."""
    for kind, identity in identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra)):
        holder: Holder | None = yield from holder_of(dialect, kind, identity)
        if holder is not None and holder.seq != row.seq:
            return True
    return False


def _ready_again(dialect: Dialect, row: _Row, locks: PlanLocks, *, finished: bool) -> Steps[None]:
    now_us: int = yield NOW
    if STATUS[row.status] is JobStatus.COMPLETED:
        yield Send(dialect.sql("attempt_keep"), (row.seq,))
    [place] = yield from dialect.take_places(1)
    queues = yield from read_queues(dialect, [row.keys.queue])
    newcomer = Newcomer(row.keys.queue, row.priority, row.keys.tenant)
    rank = yield from rank_of(dialect, newcomer, queues, now_us)
    again = {"seq": row.seq, "rank": rank, "place": place, "now": now_us}
    yield Send(dialect.sql("redrive"), again)
    if queues[row.keys.queue].counts_bytes:
        yield from count_bytes(dialect, [row.id])
    if finished:  # last, since the journal line has the counts of the end
        completed = STATUS[row.status] is JobStatus.COMPLETED
        sql = dialect.sql
        if completed:
            yield Send(sql("attached_mark"), (dialect.many([row.seq]),))
        forget = sql("attached_forget") if completed else sql("counted_forget")
        yield Send(forget, (row.seq,))
        identities = identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra))
        yield from take_keys(dialect, row.id, identities)
        yield from _rejoin(dialect, row, place, queues, locks)
    yield from join_lines(dialect, [row.seq])
    yield Wake(f"queue:{row.keys.queue}")


def _rejoin(
    dialect: Dialect, row: _Row, place: int, queues: dict[str, QueueRow], locks: PlanLocks
) -> Steps[None]:
    """Put a job that had finished at the end of its line."""
    tasks: dict[str, TaskSettings] = yield from task_settings(dialect, [row.keys.task])
    settings = queues[row.keys.queue].settings
    line = line_of(dialect, row.keys, settings, tasks.get(row.keys.task))
    order_line = order_line_of(row.keys)
    lined = line is not None or order_line is not None
    yield from locks.mark_lined([(row.keys, lined)], queues)
    yield Send(dialect.sql("line_rejoin"), (line, order_line, place, row.seq))
    yield from advance_lines(dialect, [row.keys])
