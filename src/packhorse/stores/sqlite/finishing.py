# SPDX-License-Identifier: MIT
"""The end of jobs that nobody holds, and what the end of any job sets free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from packhorse.job import DeadReason, JobStatus
from packhorse.policies.retention import first_expiry_us
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sqlite.keys import enter_stashed
from packhorse.stores.sqlite.lines import Keys, gate_text, let_go, order_line_of, other_gates
from packhorse.stores.sqlite.rows import CODE, Lane, json_text, read_retention
from packhorse.stores.sqlite.settings import queue_settings
from packhorse.stores.sqlite.statements import ChangeMany, Rows, sql

__all__ = ["advance_lines", "aftermath", "finish_waiting", "give_up", "lifetimes", "wake_waiters"]


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
    """End waiting jobs, given as (sequence, retention of their queue), as dead."""
    changes = [
        {
            "seq": seq,
            "now": now_us,
            "status": CODE[JobStatus.DEAD],
            "lane": Lane.DEAD,
            "dead_reason": reason,
            **lifetimes(now_us, read_retention(retention).dead_us),
        }
        for seq, retention in rows
    ]
    yield from finish_waiting(changes)


def finish_waiting(changes: Sequence[dict[str, Any]]) -> Steps[None]:
    """End jobs that nobody holds."""
    yield ChangeMany(sql("finish_waiting"), changes)
    yield from aftermath("seq", [change["seq"] for change in changes], waited=True)
    yield from wake_waiters()


def wake_waiters() -> Steps[None]:
    """Tell those who wait for a job that it has finished."""
    ended = yield Rows(sql("interests_ended"))
    for (job_id,) in ended:
        if job_id is not None:
            yield Wake(f"job:{job_id}")


class _Over(NamedTuple):
    """A job whose attempt or waiting is over, as `aftermath.sql` sees it."""

    seq: int
    ended: int
    leaves_line: int
    settings: str | None
    keys: Keys


def aftermath(
    column: Literal["id", "seq"], values: Sequence[int | str], *, waited: bool = False
) -> Steps[None]:
    """What the end of attempts, or of waiting, sets free: gates, lines, keys, room."""
    [(needed, gates)] = yield Rows(sql("aftermath_needed"))
    if not needed:
        return
    rows = yield Rows(sql("aftermath").format(column=column), (json_text(list(values)),))
    over = [
        _Over(seq, ended, leaves_line, settings, Keys(*keys))
        for seq, ended, leaves_line, settings, *keys in rows
    ]
    if gates:
        freed = Counter(gate_text(gate) for one in over for gate in other_gates(one.keys))
        holding = yield Rows(sql("gates_holding"), (json_text(list(freed)),))
        for (gate,) in holding:
            yield from let_go(gate, freed[gate])
    yield from advance_lines([one.keys for one in over if one.leaves_line])
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
        rows = yield Rows(sql("order_advance"), (json_text(list(lines)),))
        for queue in dict.fromkeys(queue for (queue,) in rows):
            yield Wake(f"queue:{queue}")
