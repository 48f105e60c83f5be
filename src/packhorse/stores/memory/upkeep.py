# SPDX-License-Identifier: MIT
"""What keeps the store tidy: promoting, expiring, setting aside, forgetting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from heapq import nsmallest

from packhorse.job import DeadReason, JobStatus, RateRule
from packhorse.policies.rate_limit import is_over
from packhorse.policies.retention import is_ghost, may_prune
from packhorse.stores.memory.access import Access, plan
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import Index
from packhorse.stores.memory.transitions import finish_waiting, forget, promote
from packhorse.stores.plan import Plan
from packhorse.stores.requests import EVERY_TASK

__all__ = ["MemoryUpkeep"]

#: (queue, task): what some live worker serves and knows.
Line = tuple[str, ...]


class MemoryUpkeep:
    """Upkeep, in memory."""

    def promote(self, *, limit: int) -> Plan[int]:
        return plan("promote", partial(_promote, limit=limit))

    def expire(self, *, limit: int) -> Plan[int]:
        return plan("expire", partial(_expire, limit=limit))

    def park(self, *, after_us: int, limit: int) -> Plan[tuple[str, ...]]:
        return plan("park", partial(_park, after_us=after_us, limit=limit))

    def prune(self, *, limit: int) -> Plan[int]:
        return plan("prune", partial(_prune, limit=limit))


def _promote(access: Access, limit: int) -> int:
    promoted = 0
    for (queue,) in list(access.state.due):
        count = promote(access, queue, limit=limit)
        promoted += count
        if count:
            access.wake(f"queue:{queue}")
    return promoted


def _expire(access: Access, limit: int) -> int:
    overdue = access.state.deadlines.group().up_to(access.now_us, limit=limit)
    for row in access.rows(overdue):
        finish_waiting(access, row, JobStatus.DEAD, DeadReason.EXPIRED)
    return len(overdue)


def _park(access: Access, after_us: int, limit: int) -> tuple[str, ...]:
    live = [row.renewal for row in access.state.workers.values() if row.live(access.now_us)]
    served = {queue for worker in live for queue in worker.queues}
    known = {(queue, task) for worker in live for queue in worker.queues for task in worker.tasks}
    _ready_again(access, known, limit)
    _give_up(access, known, after_us, limit)
    return _set_aside(access, known, served, limit)


def _is_known(line: Line, known: Collection[Line]) -> bool:
    return line in known or (line[0], EVERY_TASK) in known


def _ready_again(access: Access, known: Collection[Line], limit: int) -> None:
    for row in _oldest(access, access.state.parked, lambda line: _is_known(line, known), limit):
        with access.state.changing(row, access.now_us):
            row.parked_us = None
        access.wake_queue(row)


def _give_up(access: Access, known: Collection[Line], after_us: int, limit: int) -> None:
    """Those nobody knows to this day; what a worker knows is only waiting for its turn above."""
    latest_us = access.now_us - after_us
    parked = (
        access.state.jobs[job_id]
        for line, keys in access.state.parked.items()
        if not _is_known(line, known)
        for job_id in keys.ids
    )
    too_long = (row for row in parked if (row.parked_us or 0) <= latest_us)
    for row in nsmallest(limit, too_long, key=lambda row: row.sequence):
        finish_waiting(access, row, JobStatus.DEAD, DeadReason.UNKNOWN_TASK)


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


def _prune(access: Access, limit: int) -> int:
    _forget_gates(access)
    pruned = _prune_jobs(access, limit)
    return pruned + _forget_ghosts(access, limit - pruned)


def _prune_jobs(access: Access, limit: int) -> int:
    expired = access.state.expiries.group().up_to(access.now_us, limit=limit)
    for row in access.rows(expired):
        finished_us = row.finished_us or 0
        if may_prune(finished_us, row.keep_us, access.now_us):
            forget(access, row)
        else:
            _drop_result(access, row, finished_us)
    return len(expired)


def _forget_ghosts(access: Access, limit: int) -> int:
    """Workers that went long ago; one that holds a job is kept for whoever rescues it."""
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
    """Closings that are over, and logs in which nothing counts by any rule there is."""
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
