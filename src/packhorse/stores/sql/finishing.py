# SPDX-License-Identifier: MIT
"""The end of jobs that nobody holds, and what the end of any job sets free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from packhorse.job import DeadReason, JobStatus, NewJob
from packhorse.policies.retention import first_expiry_us
from packhorse.policies.uniqueness import idempotency_identity
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.dialect import Column, Dialect, Needs
from packhorse.stores.sql.keys import Holder, holder_of, keys_wanted, take_keys
from packhorse.stores.sql.lines import (
    Keys,
    advance_lines,
    gate_text,
    let_go,
    other_gates,
)
from packhorse.stores.sql.queue_row import queue_settings, retention_of
from packhorse.stores.sql.rows import CODE, Lane
from packhorse.stores.sql.steps import NOW, ChangeMany, Rows
from packhorse.stores.sql.submitting import insert_jobs, known_jobs

__all__ = ["aftermath", "finish_waiting", "give_up", "lifetimes"]


def lifetimes(
    now_us: int, keep_us: int | None, result_keep_us: int | None = None
) -> dict[str, Any]:
    """The columns that say how long a job finished now is kept."""
    return {
        "expires_us": first_expiry_us(now_us, keep_us, result_keep_us),
        "record_until_us": None if keep_us is None else now_us + keep_us,
        "result_until_us": None if result_keep_us is None else now_us + result_keep_us,
    }


def give_up(
    dialect: Dialect, rows: Sequence[tuple[Any, ...]], reason: DeadReason, now_us: int
) -> Steps[None]:
    """End waiting jobs, given as (sequence, settings of their queue), as dead."""
    changes = [
        {
            "seq": seq,
            "now": now_us,
            "status": CODE[JobStatus.DEAD],
            "lane": int(Lane.DEAD),
            "dead_reason": reason,
            **lifetimes(now_us, retention_of(settings).dead_us),
        }
        for seq, settings in rows
    ]
    yield from finish_waiting(dialect, changes)


def finish_waiting(
    dialect: Dialect, changes: Sequence[dict[str, Any]], *, stashed: bool = True
) -> Steps[None]:
    """End jobs that nobody holds; `stashed` as in `aftermath`."""
    if changes:
        seqs = [change["seq"] for change in changes]
        yield ChangeMany(dialect.sql("finish_waiting"), changes)
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
    """What the end of attempts, or of waiting, sets free: gates, lines, keys, room, who waits.

    `stashed`: also whoever waits to be submitted; that wants to be alone. `needs` may have been
    read before the ends were written: an end holds nobody back.
    """
    needs = needs or (yield from dialect.needs())
    if needs.gates or needs.stashed or needs.limited:
        rows = yield dialect.over(column, values)
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
    elif needs.lines:  # alone, so that nothing but those is asked
        yield from dialect.advance_after(column, values)
    if needs.awaited:
        yield from dialect.wake_waiters(column, values)


class _Over(NamedTuple):
    """A job whose attempt or waiting is over, as `aftermath.sql` sees it."""

    seq: int
    ended: bool
    leaves_line: bool
    settings: str | None
    keys: Keys


def _make_room(over: Sequence[_Over], *, waited: bool) -> Steps[None]:
    """Tell workers of queues that bound them, and producers if jobs wait no longer."""
    for queue, text in dict.fromkeys((one.keys.queue, one.settings) for one in over):
        settings = queue_settings(queue, text)
        if settings.concurrency is not None:
            yield Wake(f"queue:{queue}")
        if waited and settings.max_depth is not None:
            yield Wake(f"room:{queue}")


def _open_gates(dialect: Dialect, over: Sequence[_Over]) -> Steps[None]:
    """Whom these jobs may have held back, one is let go for each."""
    freed = Counter(gate_text(gate) for one in over for gate in other_gates(one.keys))
    tasks = sorted({one.keys.task for one in over})
    holding = yield from dialect.holding(list(freed), tasks)
    for (gate,) in holding:
        yield from let_go(dialect, gate, freed[gate])


def _enter_stashed(dialect: Dialect, seqs: Sequence[int]) -> Steps[None]:
    """Submit the jobs that waited until the holders of their keys ended.

    They were let in when they came, so neither depth nor a closed queue keeps them out now. One
    that came in some other way meanwhile, by its id or its idempotency key, is there already.
    """
    rows = yield Rows(dialect.sql("stash_take"), (dialect.many(seqs),))
    stashed = dict(rows)
    if not stashed:
        return
    level = yield from dialect.go_alone()
    now_us: int = yield NOW
    for seq in [seq for seq in seqs if seq in stashed]:
        job = msgspec.json.decode(stashed[seq], type=NewJob)
        known = yield from known_jobs(dialect, [job.id])
        identity = idempotency_identity(job)
        same: Holder | None = yield from holder_of(dialect, "idempotency", identity)
        if known or same is not None:
            continue
        queues = yield from dialect.queue_rows([job.queue])
        unbounded = {name: row.without_depth() for name, row in queues.items()}
        yield from insert_jobs(dialect, [job], unbounded, now_us, level)
        yield from take_keys(dialect, job.id, keys_wanted(job))
