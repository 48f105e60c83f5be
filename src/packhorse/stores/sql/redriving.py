# SPDX-License-Identifier: MIT
"""Redrive: finished jobs run again with fresh budgets, waiting ones are due now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packhorse.job import TERMINAL, JobStatus
from packhorse.lifecycle import redrive_allowed
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import RedriveAnswer, TaskSettings
from packhorse.stores.sql.dialect import Dialect, Level
from packhorse.stores.sql.keys import Holder, holder_of, identities_of, take_keys
from packhorse.stores.sql.lines import Keys, advance_lines, join_lines, line_of, order_line_of
from packhorse.stores.sql.queue_row import QueueRow
from packhorse.stores.sql.ranking import Newcomer, rank_of
from packhorse.stores.sql.rows import STATUS, read_extra
from packhorse.stores.sql.settings import task_settings
from packhorse.stores.sql.steps import NOW, Rows

__all__ = ["redrive_steps"]


class _Row(NamedTuple):
    """A job to be redriven, as `redrive_row.sql` sees it."""

    id: str
    seq: int
    status: int
    priority: int
    extra: str | None
    keys: Keys


def redrive_steps(
    dialect: Dialect, job_ids: Sequence[str], tenant: str | None
) -> Steps[tuple[RedriveAnswer, ...]]:
    """One by one; see `JobStore.redrive`."""
    level = yield from dialect.go_alone()
    answers = []
    for job_id in job_ids:
        answer = yield from _redrive(dialect, job_id, tenant, level)
        answers.append(answer)
    return tuple(answers)


def _redrive(
    dialect: Dialect, job_id: str, tenant: str | None, level: Level
) -> Steps[RedriveAnswer]:
    rows = yield Rows(dialect.sql("redrive_row"), (job_id,))
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
        superseded = yield from _superseded(dialect, row)
        if superseded:
            return RedriveAnswer.CONFLICT
    yield from _ready_again(dialect, row, level, finished=status in TERMINAL)
    return RedriveAnswer.REDRIVEN


def _superseded(dialect: Dialect, row: _Row) -> Steps[bool]:
    """Whether another job holds one of this one's keys by now."""
    for kind, identity in identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra)):
        holder: Holder | None = yield from holder_of(dialect, kind, identity)
        if holder is not None and holder.seq != row.seq:
            return True
    return False


def _ready_again(dialect: Dialect, row: _Row, level: Level, *, finished: bool) -> Steps[None]:
    now_us: int = yield NOW
    if STATUS[row.status] is JobStatus.COMPLETED:
        yield dialect.write(dialect.sql("attempt_keep"), (row.seq,))
    [place] = yield from dialect.take_places(1)
    queues = yield from dialect.queue_rows([row.keys.queue])
    newcomer = Newcomer(row.keys.queue, row.priority, row.keys.tenant)
    rank = yield from rank_of(dialect, newcomer, queues, now_us)
    again = {"seq": row.seq, "rank": rank, "place": place, "now": now_us}
    yield dialect.write(dialect.sql("redrive"), again)
    if finished:
        identities = identities_of(row.keys.tenant, row.keys.task, read_extra(row.extra))
        yield from take_keys(dialect, row.id, identities)
        yield from _rejoin(dialect, row, place, queues, level)
    yield from join_lines(dialect, [row.seq])
    yield Wake(f"queue:{row.keys.queue}")


def _rejoin(
    dialect: Dialect, row: _Row, place: int, queues: dict[str, QueueRow], level: Level
) -> Steps[None]:
    """A job that had finished stands at the end of its line."""
    tasks: dict[str, TaskSettings] = yield from task_settings(dialect, [row.keys.task])
    settings = queues[row.keys.queue].settings
    line = line_of(dialect, row.keys, settings, tasks.get(row.keys.task))
    order_line = order_line_of(row.keys)
    lined = line is not None or order_line is not None
    yield from level.mark_lined([(row.keys, lined)], queues)
    yield dialect.write(dialect.sql("line_rejoin"), (line, order_line, place, row.seq))
    yield from advance_lines(dialect, [row.keys])
