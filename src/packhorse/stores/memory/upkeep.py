# SPDX-License-Identifier: MIT
"""Leases of workers, and upkeep: promote, expire, park, prune."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice

from packhorse.core.job import DeadReason, JobStatus, RateRule
from packhorse.core.lifecycle import Orphan
from packhorse.core.policies.journal import KEPT_US, is_kept
from packhorse.core.policies.lease import renewed_until_us
from packhorse.core.policies.rate_limit import is_over
from packhorse.core.policies.retention import is_ghost, may_prune
from packhorse.stores.memory.records import forget_records
from packhorse.stores.memory.rows import JobRow, WorkerRow, as_worker
from packhorse.stores.memory.state import Access, Index, on_state, plan
from packhorse.stores.memory.transitions import finish_waiting, forget, promote, release_held
from packhorse.stores.plan import Plan
from packhorse.stores.requests import (
    EVERY_TASK,
    ExpiredLease,
    ExpiredLeases,
    Parked,
    Renewal,
    Renewed,
    Totals,
    WorkerRecord,
)


class MemoryLeases:
    """Leases, in memory."""

    @on_state()
    def renew(self, access: Access, renewal: Renewal) -> Renewed:
        now_us, worker = access.now_us, renewal.worker
        before = access.state.workers.get(worker)
        before_us = None if before is None else before.expires_us
        told, kept = renewal.totals, before.totals if before is not None else Totals()
        after = WorkerRow(
            renewal=renewal,
            totals=Totals(
                max(told.succeeded, kept.succeeded),
                max(told.failed, kept.failed),
                max(told.execution_us, kept.execution_us),
            ),
            started_us=now_us if before is None else before.started_us,
            renewed_us=now_us,
            expires_us=renewed_until_us(now_us, renewal.lease_us, renewal.asked_us, before_us),
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

    @on_state()
    def leave(self, access: Access, worker: str) -> int:
        access.state.workers.pop(worker, None)
        return release_held(access, _held(access, worker))

    @on_state(writes=False)
    def cancelled(self, access: Access, worker: str) -> tuple[str, ...]:
        return tuple(row.new.id for row in _held(access, worker) if row.cancel_requested)

    @on_state(writes=False)
    def expired(self, access: Access) -> ExpiredLeases:
        holders = sorted(worker for (worker,) in access.state.held)
        gone = tuple(_lease(access, worker) for worker in holders if access.lease_gone(worker))
        return ExpiredLeases(access.now_us, gone)

    def orphans(self, workers: Sequence[str], *, limit: int) -> Plan[tuple[Orphan, ...]]:
        work = partial(_orphans, workers=frozenset(workers), limit=limit)
        return plan("orphans", work, writes=False)

    @on_state(writes=False)
    def workers(self, access: Access) -> tuple[WorkerRecord, ...]:
        known = sorted(access.state.workers.items())
        return tuple(
            as_worker(row, access.now_us, running=len(_held(access, worker)))
            for worker, row in known
        )


def _move_holds(access: Access, worker: str, step_us: int) -> None:
    """Extend the holds of jobs that were claimed before the clock was set forward."""
    if step_us <= 0:
        return
    for row in _held(access, worker):
        if (row.started_us or 0) + step_us <= access.now_us:
            with access.state.changing(row, row.updated_us):
                row.hold_until_us += step_us


def _held(access: Access, worker: str) -> list[JobRow]:
    return access.rows(list(access.state.held.group(worker).ids))


def _lease(access: Access, worker: str) -> ExpiredLease:
    known = access.state.workers.get(worker)
    if known is None:
        return ExpiredLease(worker, expires_us=0, lease_us=0)
    return ExpiredLease(worker, expires_us=known.expires_us, lease_us=known.renewal.lease_us)


def _orphans(access: Access, workers: Collection[str], limit: int) -> tuple[Orphan, ...]:
    rows = sorted(_lost(access, workers), key=lambda row: row.sequence)
    return tuple(_orphan(access, row) for row in islice(rows, max(0, limit)))


def _lost(access: Access, workers: Collection[str]) -> Iterator[JobRow]:
    """Yield each orphan once: jobs held too long, then other jobs of expired workers."""
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
        retention=access.state.retention(row.new.queue),
    )


#: A queue that a live worker serves, and a task that it knows.
Line = tuple[str, ...]


class MemoryUpkeep:
    """Upkeep, in memory."""

    @on_state()
    def promote(self, access: Access, *, limit: int) -> int:
        waiting = access.state.due.items()
        queues = [queue for (queue,), keys in waiting if keys.up_to(access.now_us, limit=1)]
        promoted = 0
        for queue in queues:
            promoted += promote(access, queue, limit=max(1, limit // len(queues)))
            access.wake(f"queue:{queue}")
        return promoted

    @on_state()
    def expire(self, access: Access, *, limit: int) -> tuple[str, ...]:
        overdue = access.state.deadlines.group().up_to(access.now_us, limit=limit)
        for row in access.rows(overdue):
            finish_waiting(access, row, JobStatus.DEAD, DeadReason.EXPIRED)
        return tuple(overdue)

    @on_state()
    def park(self, access: Access, *, after_us: int, limit: int) -> Parked:
        live = [row.renewal for row in access.state.workers.values() if row.live(access.now_us)]
        served = {queue for worker in live for queue in worker.queues}
        known = {
            (queue, task) for worker in live for queue in worker.queues for task in worker.tasks
        }
        _ready_again(access, known, limit)
        dead = _give_up(access, known, after_us, limit)
        return Parked(_set_aside(access, known, served, limit), dead)

    @on_state()
    def prune(self, access: Access, *, limit: int) -> int:
        _forget_gates(access)
        forget_records(access, limit)
        pruned = _prune_jobs(access, limit)
        return pruned + _forget_ghosts(access, limit - pruned)


def _is_known(line: Line, known: Collection[Line]) -> bool:
    return line in known or (line[0], EVERY_TASK) in known


def _ready_again(access: Access, known: Collection[Line], limit: int) -> None:
    for row in _oldest(access, access.state.parked, lambda line: _is_known(line, known), limit):
        with access.state.changing(row, access.now_us):
            row.parked_us = None
        access.wake_queue(row)


def _give_up(access: Access, known: Collection[Line], after_us: int, limit: int) -> tuple[str, ...]:
    """End parked jobs whose task no worker has known for too long."""
    latest_us = access.now_us - after_us
    parked = (
        access.state.jobs[job_id]
        for line, keys in access.state.parked.items()
        if not _is_known(line, known)
        for job_id in keys.ids
    )
    too_long = (row for row in parked if (row.parked_us or 0) <= latest_us)
    chosen = nsmallest(limit, too_long, key=lambda row: row.sequence)
    for row in chosen:
        finish_waiting(access, row, JobStatus.DEAD, DeadReason.UNKNOWN_TASK)
    return tuple(row.new.id for row in chosen)


def _set_aside(
    access: Access, known: Collection[Line], served: Collection[str], limit: int
) -> tuple[str, ...]:
    def unknown(line: Line) -> bool:
        return line[0] in served and not _is_known(line, known)

    both = (access.state.ready, access.state.suspects)
    rows = [row for index in both for row in _oldest(access, index, unknown, limit)]
    chosen = nsmallest(limit, rows, key=lambda row: row.sequence)
    for row in chosen:
        with access.state.changing(row, access.now_us):
            row.parked_us = access.now_us
    return tuple(sorted({row.new.task for row in chosen}))


def _oldest(
    access: Access, index: Index, wanted: Callable[[Line], bool], limit: int
) -> list[JobRow]:
    """The first `limit` jobs, in order of submission, of the wanted groups of an index."""
    rows = (
        access.state.jobs[job_id]
        for line, keys in index.items()
        if wanted(line)
        for job_id in keys.ids
    )
    return nsmallest(limit, rows, key=lambda row: row.sequence)


def _prune_jobs(access: Access, limit: int) -> int:
    expired = access.rows(access.state.expiries.group().up_to(access.now_us, limit=limit))
    in_groups = [row for row in expired if access.group_of(row) is not None]
    kept = [row for row in in_groups if is_kept(row.finished_us or 0, access.now_us)]
    for row in kept:
        with access.state.changing(row, row.updated_us):
            row.expires_us = access.now_us + KEPT_US
    gone = [row for row in expired if row not in kept]
    for row in gone:
        finished_us = row.finished_us or 0
        if may_prune(finished_us, row.keep_us, access.now_us):
            forget(access, row)
        else:
            _drop_result(access, row, finished_us)
    return len(gone)


def _forget_ghosts(access: Access, limit: int) -> int:
    """Remove workers that left long ago, except those that hold a job to be rescued."""
    workers = access.state.workers
    gone = [
        (row.expires_us, worker)
        for worker, row in workers.items()
        if is_ghost(row.expires_us, access.now_us) and not access.state.held.group(worker)
    ]
    chosen = nsmallest(limit, gone)
    for _, worker in chosen:
        del workers[worker]
    return len(chosen)


def _forget_gates(access: Access) -> None:
    """Remove closings that are over, and logs in which no grant counts by any rule."""
    state, now_us = access.state, access.now_us
    state.shut = {
        gate: until_us
        for gate, until_us in state.shut.items()
        if until_us is None or until_us > now_us
    }
    window_us = max([rule.window_us for rule in _rules(access)], default=0)
    grants = state.grants.items()
    state.grants = {gate: log for gate, log in grants if not is_over(log, window_us, now_us)}


def _rules(access: Access) -> Iterator[RateRule]:
    settings = [access.state.settings(queue) for queue in access.state.configured]
    queues = (rule for each in settings for rule in (each.rate, each.tenant_rate))
    tasks = (each.rate for each in access.state.tasks.values())
    return (rule for rule in (*queues, *tasks) if rule is not None)


def _drop_result(access: Access, row: JobRow, finished_us: int) -> None:
    with access.state.changing(row, row.updated_us):
        row.result = None
        row.result_dropped = True
        row.expires_us = None if row.keep_us is None else finished_us + row.keep_us
