# SPDX-License-Identifier: MIT
"""The end of jobs that nobody holds, and what the end of any job sets free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from packhorse.job import DeadReason, JobStatus
from packhorse.policies.retention import first_expiry_us
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.keys import enter_stashed
from packhorse.stores.postgres.lines import Keys, gate_text, let_go, order_line_of, other_gates
from packhorse.stores.postgres.queue_settings import queue_settings, retention_of
from packhorse.stores.postgres.rows import CODE, Lane, worded
from packhorse.stores.postgres.statements import ChangeMany, Rows, Together, sql

__all__ = ["advance_lines", "aftermath", "finish_waiting", "give_up", "lifetimes", "wake_waiters"]


#: The type of the column by which jobs are named.
_TYPES: Final = MappingProxyType({"id": "text", "seq": "bigint"})


def lifetimes(
    now_us: int, keep_us: int | None, result_keep_us: int | None = None
) -> dict[str, Any]:
    """The columns that say how long a job finished now is kept."""
    return {
        "expires_us": first_expiry_us(now_us, keep_us, result_keep_us),
        "record_until_us": None if keep_us is None else now_us + keep_us,
        "result_until_us": None if result_keep_us is None else now_us + result_keep_us,
    }


def give_up(rows: Sequence[tuple[Any, ...]], reason: DeadReason, now_us: int) -> Steps[None]:
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
    yield from finish_waiting(changes)


def finish_waiting(changes: Sequence[dict[str, Any]], *, stashed: bool = True) -> Steps[None]:
    """End jobs that nobody holds; `stashed` as in `aftermath`."""
    if changes:
        seqs = [change["seq"] for change in changes]
        yield ChangeMany(sql("finish_waiting"), changes)
        yield from aftermath("seq", seqs, waited=True, stashed=stashed)
        yield from wake_waiters("seq", seqs)


def wake_waiters(column: Literal["id", "seq"], values: Sequence[int | str]) -> Steps[None]:
    """Tell those who wait for a job that it has finished."""
    text = worded("awaited_ended", column=column, type=_TYPES[column])
    ended = yield Rows(text, {"values": list(values)})
    for (job_id,) in ended:
        yield Wake(f"job:{job_id}")


class _Over(NamedTuple):
    """A job whose attempt or waiting is over, as `aftermath.sql` sees it."""

    seq: int
    ended: bool
    leaves_line: bool
    settings: str | None
    keys: Keys


def aftermath(
    column: Literal["id", "seq"],
    values: Sequence[int | str],
    *,
    waited: bool = False,
    stashed: bool = True,
) -> Steps[None]:
    """What the end of attempts, or of waiting, sets free: gates, lines, keys, room.

    `stashed`: also whoever waits to be submitted; that wants to be alone.
    """
    [(needed,)] = yield Rows(sql("aftermath_needed"))
    if not needed:
        return
    rows = yield Rows(
        worded("aftermath", column=column, type=_TYPES[column]), {"values": list(values)}
    )
    over = [
        _Over(seq, ended, leaves_line, settings, Keys(*keys))
        for seq, ended, leaves_line, settings, *keys in rows
    ]
    freed = Counter(gate_text(gate) for one in over for gate in other_gates(one.keys))
    tasks = sorted({one.keys.task for one in over})
    asked = (Rows(sql("gates_holding"), (list(freed),)), Rows(sql("tasked_ready"), (tasks,)))
    holding, others = yield Together(asked)
    for (gate,) in holding:
        yield from let_go(gate, freed[gate])
    for (queue,) in others:
        yield Wake(f"queue:{queue}")
    yield from advance_lines([one.keys for one in over if one.leaves_line])
    if stashed:
        yield from enter_stashed([one.seq for one in over if one.ended])
    for queue, text in dict.fromkeys((one.keys.queue, one.settings) for one in over):
        settings = queue_settings(queue, text)
        if settings.concurrency is not None:
            yield Wake(f"queue:{queue}")
        if waited and settings.max_depth is not None:
            yield Wake(f"room:{queue}")


def advance_lines(ended: Sequence[Keys]) -> Steps[None]:
    """The next in line becomes its head."""
    lines = dict.fromkeys(line for keys in ended if (line := order_line_of(keys)) is not None)
    if lines:
        rows = yield Rows(sql("order_advance"), (list(lines),))
        for queue in dict.fromkeys(queue for (queue,) in rows):
            yield Wake(f"queue:{queue}")
