# SPDX-License-Identifier: MIT
"""Upkeep of a PostgreSQL store. Each verb looks with a read before it takes the write lock."""

from __future__ import annotations

from typing import Any, Final

from packhorse.job import DeadReason
from packhorse.policies.gates import GateKind
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.claiming import promote_queue
from packhorse.stores.postgres.finishing import give_up
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.lines import anybody_held_back, join_lines, let_go, read_gate
from packhorse.stores.postgres.locking import ALL
from packhorse.stores.postgres.removing import remove_steps
from packhorse.stores.postgres.rows import Lane
from packhorse.stores.postgres.statements import NOW, Lock, Rows, Send, sql

__all__ = ["PostgresUpkeep"]

#: How far down a queue jobs of unknown tasks are looked for; deeper ones do no harm yet.
_PARK_WINDOW: Final = 10_000
#: Gates that are tried in one run of upkeep.
_GATES_TRIED_MAX: Final = 100


class PostgresUpkeep:
    """See `UpkeepStore`."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors

    def promote(self, *, limit: int) -> Plan[int]:
        def look() -> Steps[int | None]:
            queues = yield from _queues_due()
            held = yield from anybody_held_back()
            return None if queues or held else 0

        return Plan("promote", lambda: _promote(limit, self._floors), look=look)

    def expire(self, *, limit: int) -> Plan[int]:
        def look() -> Steps[int | None]:
            overdue = yield from _overdue(1)
            return None if overdue else 0

        return Plan("expire", lambda: _expire(limit), look=look)

    def park(self, *, after_us: int, limit: int) -> Plan[tuple[str, ...]]:
        def look() -> Steps[tuple[str, ...] | None]:
            known = yield from _known_again(1)
            forgotten = yield from _too_long(after_us, 1)
            unknown = yield from _unknown(1)
            return None if known or forgotten or unknown else ()

        return Plan("park", lambda: _park(after_us, limit, self._floors), look=look)

    def prune(self, *, limit: int) -> Plan[int]:
        def look() -> Steps[int | None]:
            rows = yield from _expired_records(1)
            return None if rows else 0

        return Plan("prune", lambda: _prune(limit), look=look)


def _queues_due() -> Steps[list[str]]:
    now_us = yield NOW
    rows = yield Rows(sql("queues_waiting"), (now_us,))
    return [queue for (queue,) in rows]


def _promote(limit: int, floors: Floors) -> Steps[int]:
    yield Lock(ALL)
    now_us = yield NOW
    queues = yield from _queues_due()
    promoted = 0
    for queue in queues:
        promoted += yield from promote_queue(queue, now_us, limit=limit)
        yield Wake(f"queue:{queue}")
    if promoted:
        yield from floors.give_up()
    yield from _try_gates()
    return promoted


def _try_gates() -> Steps[None]:
    """Let the first job under each gate try again: should a wake-up ever be missed, none stays.

    Whoever finds the gate closed is held back again by the next claim.
    """
    rows = yield Rows(sql("gates_held"), (_GATES_TRIED_MAX,))
    lines = [gate for (gate,) in rows if read_gate(gate).kind is GateKind.ORDER]
    if lines:
        yield Rows(sql("order_advance"), (lines,))
    for (gate,) in rows:
        if gate not in lines:
            yield from let_go(gate, 1)


def _overdue(limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    rows: list[tuple[Any, ...]] = yield Rows(
        sql("deadlines_passed"), {"now": now_us, "limit": limit}
    )
    return rows


def _expire(limit: int) -> Steps[int]:
    yield Lock(ALL)
    now_us = yield NOW
    overdue = yield from _overdue(limit)
    yield from give_up(overdue, DeadReason.EXPIRED, now_us)
    yield Send(sql("deadline_forget"), {"now": now_us})
    return len(overdue)


def _park(after_us: int, limit: int, floors: Floors) -> Steps[tuple[str, ...]]:
    yield Lock(ALL)
    now_us = yield NOW
    known = yield from _known_again(limit)
    again = [seq for seq, _ in known]
    if again:
        yield from floors.give_up()
    yield Send(sql("parked_ready"), {"seqs": again, "now": now_us})
    yield from join_lines(again)
    for queue in dict.fromkeys(queue for _, queue in known):
        yield Wake(f"queue:{queue}")
    forgotten = yield from _too_long(after_us, limit)
    yield from give_up(forgotten, DeadReason.UNKNOWN_TASK, now_us)
    unknown = yield from _unknown(limit)
    yield Send(sql("park"), {"seqs": [seq for seq, _ in unknown], "now": now_us})
    return tuple(sorted({task for _, task in unknown}))


def _known_again(limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    rows: list[tuple[Any, ...]] = yield Rows(sql("parked_known"), {"now": now_us, "limit": limit})
    return rows


def _too_long(after_us: int, limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    rows: list[tuple[Any, ...]] = yield Rows(
        sql("parked_too_long"), {"now": now_us, "latest": now_us - after_us, "limit": limit}
    )
    return rows


def _unknown(limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    served = yield Rows(sql("served_queues"), (now_us,))
    found: list[tuple[Any, ...]] = []
    for (queue,) in served:
        for lane in (Lane.READY, Lane.SUSPECT, Lane.HELD_BACK):
            chosen = {"lane": int(lane), "queue": queue, "now": now_us, "limit": limit}
            found += yield Rows(sql("park_unknown"), {**chosen, "window": _PARK_WINDOW})
    return sorted(found)[:limit]


def _expired_records(limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    rows: list[tuple[Any, ...]] = yield Rows(
        sql("expired_records"), {"now": now_us, "limit": limit}
    )
    return rows


def _prune(limit: int) -> Steps[int]:
    yield Lock(ALL)
    rows = yield from _expired_records(limit)
    yield from remove_steps([seq for seq, whole in rows if whole])
    yield Send(sql("result_drop"), ([seq for seq, whole in rows if not whole],))
    return len(rows)
