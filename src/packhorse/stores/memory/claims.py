# SPDX-License-Identifier: MIT
"""Handing ready jobs to one worker alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from packhorse import lifecycle
from packhorse.job import Job, JobStatus
from packhorse.policies.priority import queue_order
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.gating import Turnstile
from packhorse.stores.memory.rows import JobRow, as_claimed
from packhorse.stores.memory.state import Index
from packhorse.stores.memory.transitions import promote
from packhorse.stores.requests import Claimed, ClaimRequest, knows

__all__ = ["claim", "open_queues", "runnable"]

#: Due jobs of one queue that one claim makes ready; the rest wait for the next.
_PROMOTED_MAX: Final = 1000


def claim(access: Access, request: ClaimRequest) -> Claimed:
    """Promote what is due, then give the first of what is ready and not held back."""
    if access.lease_gone(request.worker):
        return Claimed(jobs=(), now_us=access.now_us, lease_lost=True)
    queues = open_queues(access, request.queues)
    for queue in queues:
        promote(access, queue, limit=_PROMOTED_MAX)
    turnstile = Turnstile(access)
    given = _first_ready(access, request, queues, turnstile)
    jobs = tuple(_hand_over(access, row, request) for row in given)
    _write_logs(access, turnstile)
    suspects = Turnstile(access)
    waiting = any(
        suspects.lets(row)
        for queue in queues
        for row in runnable(access, access.state.suspects, queue, request.tasks)
    )
    instants = [
        _next_due_us(access, queues),
        turnstile.reopens_us if len(jobs) < request.limit else None,
        None if waiting else suspects.reopens_us,
    ]
    return Claimed(
        jobs=jobs,
        now_us=access.now_us,
        next_due_us=min((each for each in instants if each is not None), default=None),
        suspects=waiting,
    )


def open_queues(access: Access, queues: Iterable[str]) -> tuple[str, ...]:
    """Those that are not paused, each once, in the order in which they are served."""
    state = access.state
    unpaused = [queue for queue in dict.fromkeys(queues) if queue not in state.paused]
    return queue_order(unpaused, {queue: state.settings(queue).priority for queue in unpaused})


def runnable(access: Access, index: Index, queue: str, tasks: Collection[str]) -> Iterator[JobRow]:
    """Jobs of one queue and these tasks in the index's order, save those past their deadline."""
    lines = [keys for (name, task), keys in index.items() if name == queue and knows(tasks, task)]
    for *_, job_id in merge(*lines):
        row = access.state.jobs[job_id]
        if not row.overdue(access.now_us):
            yield row


def _first_ready(
    access: Access, request: ClaimRequest, queues: Iterable[str], turnstile: Turnstile
) -> list[JobRow]:
    index = access.state.suspects if request.quarantine else access.state.ready
    ready = (row for queue in queues for row in runnable(access, index, queue, request.tasks))
    return list(islice(filter(turnstile.lets, ready), max(0, request.limit)))


def _hand_over(access: Access, row: JobRow, request: ClaimRequest) -> Job:
    timeout_us = request.default_timeout_us if row.new.timeout_us is None else row.new.timeout_us
    with access.state.changing(row, access.now_us):
        row.status = JobStatus.PROCESSING
        row.fence = lifecycle.next_fence(row.fence)
        row.worker = request.worker
        row.alone = request.quarantine
        row.started_us = access.now_us
        row.hold_until_us = lifecycle.hold_until_us(access.now_us, timeout_us)
    access.wake_room(row)
    return as_claimed(row)


def _write_logs(access: Access, turnstile: Turnstile) -> None:
    access.state.grants.update({gate: log for gate, log in turnstile.logs.items() if log})


def _next_due_us(access: Access, queues: Iterable[str]) -> int | None:
    firsts = (access.state.due.group(queue).first() for queue in queues)
    return min((first[0] for first in firsts if first is not None), default=None)
