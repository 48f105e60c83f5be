# SPDX-License-Identifier: MIT
"""End jobs that no worker holds, and release what waited for the end of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from packhorse.core.job import DeadReason, JobStatus, NewJob
from packhorse.core.policies.retention import lifetimes
from packhorse.core.policies.uniqueness import idempotency_identity
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.dialect import COLUMN_TYPES, Column, Dialect, Needs, read_queues
from packhorse.stores.sql.keys import Holder, holder_of, keys_wanted, take_keys
from packhorse.stores.sql.lines import (
    ORDER_LINE,
    Keys,
    advance_lines,
    gate_text,
    other_gates,
    unblock,
    wake_queues,
)
from packhorse.stores.sql.new_jobs import insert_jobs, known_jobs
from packhorse.stores.sql.rows import CODE, Lane, queue_settings, retention_of
from packhorse.stores.sql.statements import NOW, Change, Rows, Send, SendMany


def give_up(
    dialect: Dialect, rows: Sequence[tuple[Any, ...]], reason: DeadReason, now_us: int
) -> Steps[tuple[str, ...]]:
    """End waiting jobs, given as (sequence, settings of their queue, id, ...), as dead.

    Answers their ids.
    """
    changes = [
        {
            "seq": seq,
            "now": now_us,
            "status": CODE[JobStatus.DEAD],
            "lane": int(Lane.DEAD),
            "dead_reason": reason,
            **lifetimes(now_us, retention_of(settings).dead_us),
        }
        for seq, settings, *_ in rows
    ]
    yield from finish_waiting(dialect, changes)
    return tuple([row[2] for row in rows])


def finish_waiting(
    dialect: Dialect, changes: Sequence[dict[str, Any]], *, stashed: bool = True
) -> Steps[None]:
    """End jobs that no worker holds; `stashed`: see `aftermath`."""
    if changes:
        seqs = [change["seq"] for change in changes]
        yield SendMany(dialect.sql("finish_waiting"), changes)
        yield from aftermath(dialect, "seq", seqs, waited=True, stashed=stashed)


def aftermath(
    dialect: Dialect,
    column: Column,
    values: Sequence[int | str],
    *,
    waited: bool = False,
    stashed: bool = True,
    needs: Needs | None = None,
) -> Steps[None]:
    """Release what waited for these attempts, or waiting jobs, to end.

    That is jobs behind gates and in lines of order, stashed jobs, producers that wait for room, and
    callers that wait for a result. `stashed`: submit stashed jobs too, which needs the whole store.
    `needs` may have been read before the ends were written, since an end blocks no job.
    """
    if needs is None:
        [row] = yield Rows(dialect.sql("aftermath_needed"))
        needs = Needs(*row)
    if needs.gates or needs.stashed or needs.limited:
        rows = yield _of(dialect, "aftermath", column, values)
        over = [
            _Over(seq, ended, leaves_line, settings, Keys(*keys))
            for seq, ended, leaves_line, settings, *keys in rows
        ]
        if needs.gates:
            yield from _open_gates(dialect, over)
        yield from advance_lines(dialect, [one.keys for one in over if one.leaves_line])
        if stashed:
            yield from _enter_stashed(dialect, [one.seq for one in over if one.ended])
        yield from _make_room(over, waited=waited)
    elif needs.lines:  # nothing else waits, so one statement will do
        rows = yield _of(dialect, "order_advance_after", column, values, **ORDER_LINE)
        yield from wake_queues(rows)
    if needs.awaited:
        yield from dialect.wake_waiters(column, values)


def _of(
    dialect: Dialect, name: str, column: Column, values: Sequence[int | str], **others: str
) -> Rows:
    """Return the step that asks something about these jobs."""
    text = dialect.sql(name, column=column, type=COLUMN_TYPES[column])
    return Rows(text, {**others, "values": dialect.many(list(values))})


class _Over(NamedTuple):
    """A job whose attempt or waiting is over: a row of `aftermath`."""

    seq: int
    ended: bool
    leaves_line: bool
    settings: str | None
    keys: Keys


def _make_room(over: Sequence[_Over], *, waited: bool) -> Steps[None]:
    """Wake workers of queues with a concurrency limit, and producers that wait for room."""
    ended = {one.keys.queue for one in over if one.ended}
    for queue, text in dict.fromkeys((one.keys.queue, one.settings) for one in over):
        settings = queue_settings(queue, text)
        if settings.concurrency is not None:
            yield Wake(f"queue:{queue}")
        in_jobs = waited and settings.max_depth is not None
        if in_jobs or (queue in ended and settings.max_bytes is not None):
            yield Wake(f"room:{queue}")


def _open_gates(dialect: Dialect, over: Sequence[_Over]) -> Steps[None]:
    """Let one blocked job go for each slot that these jobs have freed."""
    freed = Counter(gate_text(gate) for one in over for gate in other_gates(one.keys))
    tasks = sorted({one.keys.task for one in over})
    holding = yield from dialect.holding(list(freed), tasks)
    if holding:
        yield from unblock(dialect, {gate: freed[gate] for (gate,) in holding})


def _enter_stashed(dialect: Dialect, seqs: Sequence[int]) -> Steps[None]:
    """Submit the jobs that waited until the holders of their keys ended.

    They were admitted when they came, so neither depth nor a closed queue refuses them now. A job
    that was stored in another way since, by its id or idempotency key, is skipped.
    """
    rows = yield Rows(dialect.sql("stash_take"), (dialect.many(seqs),))
    stashed = dict(rows)
    if not stashed:
        return
    locks = yield from dialect.go_alone()
    now_us: int = yield NOW
    for seq in [seq for seq in seqs if seq in stashed]:
        job = msgspec.json.decode(stashed[seq], type=NewJob)
        known = yield from known_jobs(dialect, [job.id])
        identity = idempotency_identity(job)
        same: Holder | None = yield from holder_of(dialect, "idempotency", identity)
        if known or same is not None:
            continue
        queues = yield from read_queues(dialect, [job.queue])
        unbounded = {name: row.unbounded() for name, row in queues.items()}
        yield from insert_jobs(dialect, [job], unbounded, now_us, locks)
        yield from take_keys(dialect, job.id, keys_wanted(job))


def remove_steps(dialect: Dialect, seqs: Sequence[int]) -> Steps[int]:
    """Remove jobs with history, tags and keys, and advance the lines they held."""
    if not seqs:
        return 0
    held = yield Rows(dialect.sql("lines_held"), (dialect.many(seqs),))
    chosen = (dialect.many(seqs),)
    for table, column in dialect.beside_jobs:
        yield Send(dialect.sql("remove", table=table, column=column), chosen)
    removed: int = yield Change(dialect.sql("remove", table="jobs", column="seq"), chosen)
    yield from advance_lines(dialect, [Keys(*row) for row in held])
    return removed
