# SPDX-License-Identifier: MIT
"""Leases of workers, which each store renews itself, orphans, and upkeep.

Each verb of upkeep reads first, and locks only if there is something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.core.job import DeadReason
from packhorse.core.lifecycle import Orphan, release_unbegun
from packhorse.core.policies.journal import KEPT_US, MEMBER_LIFE_US_MAX
from packhorse.core.policies.retention import GHOST_US
from packhorse.stores.plan import Plan, Steps, Wake, planned
from packhorse.stores.requests import ExpiredLease, ExpiredLeases, Parked, WorkerRecord
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.finish import aftermath, give_up, remove_steps
from packhorse.stores.sql.limit_state import any_log_to_do, forget_logs
from packhorse.stores.sql.lines import any_blocked, join_lines, unblock
from packhorse.stores.sql.promote import promote_queue
from packhorse.stores.sql.records import expired_records, forget_records
from packhorse.stores.sql.rows import Lane, read_options, read_worker, retention_of
from packhorse.stores.sql.settle import settle_each
from packhorse.stores.sql.statements import NOW, Change, Rows, Send, Together


class SqlLeases:
    """See `LeaseStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @planned()
    def leave(self, worker: str) -> Steps[int]:
        yield from self._dialect.lock_all()
        released: int = yield from release_unknown(self._dialect, worker, set())
        yield Send(self._dialect.sql("lease_leave"), (worker,))
        yield from self._dialect.outlast_claims()
        return released + (yield from release_unknown(self._dialect, worker, set()))

    @planned(writes=False)
    def cancelled(self, worker: str) -> Steps[tuple[str, ...]]:
        rows = yield Rows(self._dialect.sql("cancelled_of"), (worker,))
        return tuple(job_id for (job_id,) in rows)

    @planned(writes=False)
    def expired(self) -> Steps[ExpiredLeases]:
        now_us = yield NOW
        rows = yield Rows(self._dialect.sql("leases_expired"), {"now": now_us})
        return ExpiredLeases(now_us, tuple(ExpiredLease(*row) for row in rows))

    @planned(writes=False)
    def orphans(self, workers: Sequence[str], *, limit: int) -> Steps[tuple[Orphan, ...]]:
        dialect = self._dialect
        now_us = yield NOW
        chosen = {"now": now_us, "workers": dialect.many(workers), "limit": limit}
        rows = yield Rows(dialect.sql("orphans"), chosen)
        return tuple(read_orphan(row, now_us) for row in rows)

    @planned(writes=False)
    def workers(self) -> Steps[tuple[WorkerRecord, ...]]:
        now_us = yield NOW
        rows = yield Rows(self._dialect.sql("workers"))
        return tuple(read_worker(self._dialect.listed, row, now_us) for row in rows)


def release_unknown(dialect: Dialect, worker: str, known: set[tuple[str, int]]) -> Steps[int]:
    """Release jobs that the store counts as held and the worker does not know; return how many."""
    now_us: int = yield NOW
    rows = yield Rows(dialect.sql("held_rows"), (worker,))
    lost = [
        release_unbegun(job_id, fence, retention_of(settings))
        for job_id, fence, settings in rows
        if (job_id, fence) not in known
    ]
    if lost:
        yield from settle_each(dialect, lost, now_us, by_owner=False)
        yield from aftermath(dialect, "id", [one.job_id for one in lost])
    return len(lost)


def read_orphan(row: Sequence[Any], now_us: int) -> Orphan:
    """Return an orphan from its row."""
    job_id, fence, crashes, lone_crashes, alone, worker, lost_us, options = row
    wished = read_options(options)
    max_crashes = None if wished is None else wished.max_crashes
    return Orphan(
        job_id, fence, crashes, lone_crashes, bool(alone), worker, lost_us, now_us, max_crashes
    )


#: Ready jobs of a queue that are searched for unknown tasks; deeper ones do no harm yet.
_PARK_WINDOW: Final = 10_000
#: Gates, and lines of order, that one run of upkeep tries.
_GATES_TRIED_MAX: Final = 100
#: Obsolete deadlines that one run of upkeep removes.
_DEADLINES_MAX: Final = 10_000
#: Closings that are over and that one run of upkeep removes.
_CLOSINGS_MAX: Final = 1000


class SqlUpkeep:
    """See `UpkeepStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def promote(self, *, limit: int) -> Plan[int]:
        def look() -> Steps[int | None]:
            queues = yield from _queues_due(self._dialect)
            held = yield from any_blocked(self._dialect)
            return None if queues or held else 0

        return Plan("promote", lambda: self._promote(limit), look=look)

    def expire(self, *, limit: int) -> Plan[tuple[str, ...]]:
        def look() -> Steps[tuple[str, ...] | None]:
            overdue = yield from _found(self._dialect, "deadlines_passed", 1)
            return None if overdue else ()

        return Plan("expire", lambda: _expire(self._dialect, limit), look=look)

    def park(self, *, after_us: int, limit: int) -> Plan[Parked]:
        def look() -> Steps[Parked | None]:
            known = yield from _found(self._dialect, "parked_known", 1)
            forgotten = yield from _found(self._dialect, "parked_too_long", 1, age_us=after_us)
            unknown = yield from _unknown(self._dialect, 1)
            return None if known or forgotten or unknown else Parked()

        return Plan("park", lambda: self._park(after_us, limit), look=look)

    def prune(self, *, limit: int) -> Plan[int]:
        def look() -> Steps[int | None]:
            rows = yield from _found(self._dialect, "expired_records", 1, age_us=MEMBER_LIFE_US_MAX)
            ghosts = yield from _found(self._dialect, "ghosts", 1, age_us=GHOST_US)
            closings = yield from _found(self._dialect, "shut_passed", 1)
            logs = yield from any_log_to_do(self._dialect)
            records = yield from expired_records(self._dialect, 1)
            return None if rows or ghosts or closings or logs or records else 0

        return Plan("prune", lambda: _prune(self._dialect, limit), look=look)

    def _promote(self, limit: int) -> Steps[int]:
        dialect = self._dialect
        yield from dialect.lock_all()
        now_us = yield NOW
        queues = yield from _queues_due(dialect)
        promoted = 0
        for queue in queues:
            share = max(1, limit // len(queues))
            promoted += yield from promote_queue(dialect, queue, now_us, limit=share)
            yield Wake(f"queue:{queue}")
        yield from _try_gates(dialect)
        return promoted

    def _park(self, after_us: int, limit: int) -> Steps[Parked]:
        dialect = self._dialect
        yield from dialect.lock_all()
        now_us = yield NOW
        known = yield from _found(dialect, "parked_known", limit)
        if known:
            again = [seq for seq, _ in known]
            yield from dialect.back_in_place()
            yield Send(dialect.sql("parked_ready"), {"seqs": dialect.many(again), "now": now_us})
            yield from join_lines(dialect, again)
        for queue in dict.fromkeys(queue for _, queue in known):
            yield Wake(f"queue:{queue}")
        forgotten = yield from _found(dialect, "parked_too_long", limit, age_us=after_us)
        dead = yield from give_up(dialect, forgotten, DeadReason.UNKNOWN_TASK, now_us)
        unknown = yield from _unknown(dialect, limit)
        if unknown:
            seqs = dialect.many([seq for seq, _ in unknown])
            yield Send(dialect.sql("park"), {"seqs": seqs, "now": now_us})
        return Parked(tuple(sorted({task for _, task in unknown})), dead)


def _queues_due(dialect: Dialect) -> Steps[list[str]]:
    now_us = yield NOW
    rows = yield Rows(dialect.sql("queues_waiting"), (now_us,))
    return [queue for (queue,) in rows]


def _try_gates(dialect: Dialect) -> Steps[None]:
    """Unblock the first job of each gate, in case a wake-up was missed.

    The next claim blocks it again if the gate is closed. Everybody waits for this, so it takes few
    round trips.
    """
    most = (_GATES_TRIED_MAX,)
    lines, gates = yield Together(
        [Rows(dialect.sql("order_lines"), most), Rows(dialect.sql("gates_held"), most)]
    )
    if lines:
        names = dialect.many([line for (line,) in lines])
        yield Rows(dialect.sql("order_advance"), (names,))
    if gates:
        yield from unblock(dialect, {gate: 1 for (gate,) in gates})


def _expire(dialect: Dialect, limit: int) -> Steps[tuple[str, ...]]:
    yield from dialect.lock_all()
    now_us = yield NOW
    overdue = yield from _found(dialect, "deadlines_passed", limit)
    dead: tuple[str, ...] = yield from give_up(dialect, overdue, DeadReason.EXPIRED, now_us)
    forgotten = {"now": now_us, "limit": _DEADLINES_MAX}
    yield Send(dialect.sql("deadline_forget"), forgotten)
    return dead


def _unknown(dialect: Dialect, limit: int) -> Steps[list[tuple[Any, ...]]]:
    now_us = yield NOW
    served = yield Rows(dialect.sql("served_queues"), (now_us,))
    found: list[tuple[Any, ...]] = []
    for (queue,) in served:
        for lane in (Lane.READY, Lane.SUSPECT, Lane.BLOCKED):
            chosen = {"lane": int(lane), "queue": queue, "now": now_us, "limit": limit}
            asked = {**chosen, "window": _PARK_WINDOW}
            found += yield Rows(dialect.sql("park_unknown"), asked)
    return sorted(found)[:limit]


def _prune(dialect: Dialect, limit: int) -> Steps[int]:
    yield from forget_records(dialect, limit)
    yield from dialect.lock_all()
    pruned: int = yield from _prune_jobs(dialect, limit)
    pruned += yield from _forget_ghosts(dialect, limit - pruned)
    yield from _forget_closings(dialect)
    yield from forget_logs(dialect)
    return pruned


def _prune_jobs(dialect: Dialect, limit: int) -> Steps[int]:
    rows = yield from _found(dialect, "expired_records", limit, age_us=MEMBER_LIFE_US_MAX)
    kept = [seq for seq, _, for_group in rows if for_group]
    if kept:
        now_us: int = yield NOW
        until = {"seqs": dialect.many(kept), "until": now_us + KEPT_US}
        yield Send(dialect.sql("member_keep"), until)
    yield from remove_steps(dialect, [seq for seq, whole, held in rows if whole and not held])
    fading = [seq for seq, whole, held in rows if not (whole or held)]
    if fading:
        yield Send(dialect.sql("result_drop"), (dialect.many(fading),))
    return len(rows) - len(kept)


def _forget_ghosts(dialect: Dialect, limit: int) -> Steps[int]:
    """Remove ghosts; renewals take no lock, so the delete checks the lease once more."""
    rows = yield from _found(dialect, "ghosts", limit, age_us=GHOST_US)
    if not rows:
        return 0
    now_us = yield NOW
    gone = {"workers": dialect.many([worker for (worker,) in rows]), "latest": now_us - GHOST_US}
    forgotten: int = yield Change(dialect.sql("ghosts_forget"), gone)
    return forgotten


def _forget_closings(dialect: Dialect) -> Steps[None]:
    rows = yield from _found(dialect, "shut_passed", _CLOSINGS_MAX)
    if rows:
        gates = dialect.many([gate for (gate,) in rows])
        yield Send(dialect.sql("shut_forget"), (gates,))
        yield from dialect.settings_changed()


def _found(
    dialect: Dialect, name: str, limit: int, *, age_us: int = 0
) -> Steps[list[tuple[Any, ...]]]:
    """Return at most `limit` rows that a statement finds now; `latest` is `age_us` ago."""
    now_us: int = yield NOW
    asked = {"now": now_us, "latest": now_us - age_us, "limit": limit}
    rows: list[tuple[Any, ...]] = yield Rows(dialect.sql(name), asked)
    return rows
