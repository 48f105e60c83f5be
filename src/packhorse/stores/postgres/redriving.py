# SPDX-License-Identifier: MIT
"""Redrive: finished jobs run again with fresh budgets, waiting ones are due now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packhorse.job import TERMINAL, JobStatus
from packhorse.lifecycle import redrive_allowed
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.finishing import advance_lines
from packhorse.stores.postgres.keys import Holder, holder_of, identities_of, take_keys
from packhorse.stores.postgres.lines import Keys, join_lines, line_of, order_line_of
from packhorse.stores.postgres.locking import Level, mark_lined
from packhorse.stores.postgres.queue_settings import QueueRow, queue_rows, task_settings
from packhorse.stores.postgres.ranking import Newcomer, ranks_of
from packhorse.stores.postgres.rows import STATUS, read_extra
from packhorse.stores.postgres.statements import NOW, Rows, Send, sql
from packhorse.stores.postgres.submitting import take_places
from packhorse.stores.requests import RedriveAnswer, TaskSettings

__all__ = ["redrive_steps"]


class _Row(NamedTuple):
    """A job to be redriven, as `redrive_row.sql` sees it."""

    id: str
    seq: int
    status: int
    priority: int
    extra: str | None
    keys: Keys


def redrive_steps(job_ids: Sequence[str], tenant: str | None) -> Steps[tuple[RedriveAnswer, ...]]:
    """One by one; see `JobStore.redrive`."""
    level = Level(alone=True)
    yield from level.enter()
    answers = []
    for job_id in job_ids:
        answer = yield from _redrive(job_id, tenant, level)
        answers.append(answer)
    return tuple(answers)


def _redrive(job_id: str, tenant: str | None, level: Level) -> Steps[RedriveAnswer]:
    rows = yield Rows(sql("redrive_row"), (job_id,))
    if not rows:
        return RedriveAnswer.UNKNOWN
    known_id, seq, status_code, priority, extra, *keys = rows[0]
    row = _Row(known_id, seq, status_code, priority, extra, Keys(*keys))
    if tenant not in (None, row.keys.tenant):
        return RedriveAnswer.UNKNOWN
    status = STATUS[row.status]
    if not redrive_allowed(status):
        return RedriveAnswer.REFUSED
    if status in TERMINAL:
        superseded = yield from _superseded(row)
        if superseded:
            return RedriveAnswer.CONFLICT
    yield from _ready_again(row, level, finished=status in TERMINAL)
    return RedriveAnswer.REDRIVEN


def _superseded(row: _Row) -> Steps[bool]:
    """Whether another job holds one of this one's keys by now."""
    for kind, identity in identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra)):
        holder: Holder | None = yield from holder_of(kind, identity)
        if holder is not None and holder.seq != row.seq:
            return True
    return False


def _ready_again(row: _Row, level: Level, *, finished: bool) -> Steps[None]:
    now_us: int = yield NOW
    if STATUS[row.status] is JobStatus.COMPLETED:
        yield Send(sql("attempt_keep"), (row.seq,))
    [place] = yield from take_places(1)
    queues: dict[str, QueueRow] = yield from queue_rows([row.keys.queue])
    newcomer = Newcomer(row.keys.queue, row.priority, row.keys.tenant)
    [rank] = yield from ranks_of([newcomer], queues, now_us)
    yield Send(sql("redrive"), {"seq": row.seq, "rank": rank, "place": place, "now": now_us})
    if finished:
        identities = identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra))
        yield from take_keys(row.id, identities)
        tasks: dict[str, TaskSettings] = yield from task_settings([row.keys.task])
        settings = queues[row.keys.queue].settings
        line = line_of(row.keys, settings, tasks.get(row.keys.task))
        if line or row.keys.task in level.special.tasks:
            yield from mark_lined(
                [row.keys.queue], level, tasked=row.keys.task in level.special.tasks
            )
        yield Send(sql("line_rejoin"), (line, order_line_of(row.keys), place, row.seq))
        yield from advance_lines([row.keys])
    yield from join_lines([row.seq])
    yield Wake(f"queue:{row.keys.queue}")
