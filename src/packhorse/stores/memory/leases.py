# SPDX-License-Identifier: MIT
"""Who lives, who holds what, and what was lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice

from packhorse.lifecycle import Orphan
from packhorse.stores.memory.access import Access, plan
from packhorse.stores.memory.rows import JobRow, WorkerRow
from packhorse.stores.memory.transitions import release_held
from packhorse.stores.plan import Plan
from packhorse.stores.requests import (
    ExpiredLease,
    ExpiredLeases,
    Renewal,
    Renewed,
    WorkerRecord,
)

__all__ = ["MemoryLeases"]


class MemoryLeases:
    """Leases, in memory."""

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return plan("renew", partial(_renew, renewal=renewal))

    def leave(self, worker: str) -> Plan[int]:
        return plan("leave", partial(_leave, worker=worker))

    def cancelled(self, worker: str) -> Plan[tuple[str, ...]]:
        def work(access: Access) -> tuple[str, ...]:
            return tuple(row.new.id for row in _held(access, worker) if row.cancel_requested)

        return plan("cancelled", work, writes=False)

    def expired(self) -> Plan[ExpiredLeases]:
        return plan("expired", _expired, writes=False)

    def orphans(self, workers: Sequence[str], *, limit: int) -> Plan[tuple[Orphan, ...]]:
        work = partial(_orphans, workers=frozenset(workers), limit=limit)
        return plan("orphans", work, writes=False)

    def workers(self) -> Plan[tuple[WorkerRecord, ...]]:
        return plan("workers", _workers, writes=False)


def _renew(access: Access, renewal: Renewal) -> Renewed:
    now_us, worker = access.now_us, renewal.worker
    before = access.state.workers.get(worker)
    after = WorkerRow(
        renewal=renewal,
        started_us=now_us if before is None else before.started_us,
        renewed_us=now_us,
        expires_us=now_us + renewal.lease_us,
    )
    access.state.workers[worker] = after
    _move_holds(access, worker, renewal.step_us)
    released = 0
    if renewal.held is not None:
        known = frozenset(renewal.held)
        unknown = [row for row in _held(access, worker) if (row.new.id, row.fence) not in known]
        released = release_held(access, unknown)
    lapsed = before is None or not before.live(now_us)
    return Renewed(expires_us=after.expires_us, now_us=now_us, lapsed=lapsed, released=released)


def _move_holds(access: Access, worker: str, step_us: int) -> None:
    """What was given before the clock was set forward may be held as much longer."""
    if step_us <= 0:
        return
    for row in _held(access, worker):
        if (row.started_us or 0) + step_us <= access.now_us:
            with access.state.changing(row, row.updated_us):
                row.hold_until_us += step_us


def _leave(access: Access, worker: str) -> int:
    access.state.workers.pop(worker, None)
    return release_held(access, _held(access, worker))


def _held(access: Access, worker: str) -> list[JobRow]:
    return access.rows(list(access.state.held.group(worker).ids))


def _expired(access: Access) -> ExpiredLeases:
    holders = sorted(worker for (worker,) in access.state.held)
    gone = tuple(_lease(access, worker) for worker in holders if access.lease_gone(worker))
    return ExpiredLeases(access.now_us, gone)


def _lease(access: Access, worker: str) -> ExpiredLease:
    known = access.state.workers.get(worker)
    if known is None:
        return ExpiredLease(worker, expires_us=0, lease_us=0)
    return ExpiredLease(worker, expires_us=known.expires_us, lease_us=known.renewal.lease_us)


def _orphans(access: Access, workers: Collection[str], limit: int) -> tuple[Orphan, ...]:
    rows = sorted(_lost(access, workers), key=lambda row: row.sequence)
    return tuple(_orphan(access, row) for row in islice(rows, max(0, limit)))


def _lost(access: Access, workers: Collection[str]) -> Iterator[JobRow]:
    """Each once: first what was held too long, then what else the expired workers hold."""
    held_too_long = access.state.holds.group().up_to(access.now_us, limit=len(access.state.jobs))
    yield from access.rows(held_too_long)
    for worker in workers:
        if access.lease_gone(worker):
            rows = _held(access, worker)
            yield from (row for row in rows if row.hold_until_us > access.now_us)


def _orphan(access: Access, row: JobRow) -> Orphan:
    options = row.new.options
    worker = row.worker or ""
    ends = [row.hold_until_us] if row.hold_until_us <= access.now_us else []
    if access.lease_gone(worker):
        ends.append(_lease(access, worker).expires_us)
    return Orphan(
        job_id=row.new.id,
        fence=row.fence,
        crashes=row.counters.crashes,
        lone_crashes=row.counters.lone_crashes,
        alone=row.alone,
        worker=worker,
        lost_us=min(ends),
        now_us=access.now_us,
        max_crashes=None if options is None else options.max_crashes,
    )


def _workers(access: Access) -> tuple[WorkerRecord, ...]:
    known = sorted(access.state.workers.items())
    return tuple(_record(row, access.now_us) for _, row in known)


def _record(row: WorkerRow, now_us: int) -> WorkerRecord:
    return WorkerRecord.of(
        row.renewal,
        started_us=row.started_us,
        renewed_us=row.renewed_us,
        expires_us=row.expires_us,
        now_us=now_us,
    )
