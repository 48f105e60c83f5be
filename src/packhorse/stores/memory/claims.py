# SPDX-License-Identifier: MIT
"""Hand ready jobs to one worker alone, as far as their limits allow.

Each claim checks blocked jobs again and skips them: simple, and slow if there are many. The other
stores keep blocked jobs apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import Job, JobStatus
from packhorse.core.policies.fairness import queue_order
from packhorse.core.policies.gates import (
    Blocked,
    Gate,
    GateKind,
    GateState,
    admit,
    gates_of,
    limit_of,
    rule_of,
)
from packhorse.core.policies.rate_limit import RateLog, current, granted
from packhorse.stores.memory.rows import JobRow, as_claimed
from packhorse.stores.memory.state import Access, Index
from packhorse.stores.memory.transitions import promote
from packhorse.stores.requests import Claimed, ClaimRequest, knows


def gates_for(access: Access, row: JobRow) -> tuple[Gate, ...]:
    """Return the gates of a job by the current settings; none for most."""
    state, new = access.state, row.new
    return gates_of(new, state.settings(new.queue), state.tasks.get(new.task), state.shut)


def state_of(access: Access, gate: Gate, row: JobRow) -> GateState:
    """Return the state of one gate of a job."""
    state = access.state
    queue, task = state.settings(row.new.queue), state.tasks.get(row.new.task)
    until_us = state.shut.get(gate, 0)
    rule = rule_of(gate, queue, task)
    log = () if rule is None else current(state.grants.get(gate, ()), rule, access.now_us)
    return GateState(
        gate,
        shut=until_us is None,
        until_us=until_us or 0,
        limit=limit_of(gate, queue, task),
        running=_running(access, gate),
        rule=rule,
        log=log,
        head=_head(access, gate),
    )


def _running(access: Access, gate: Gate) -> int:
    if gate.kind is GateKind.QUEUE_CONCURRENCY:
        return access.state.counts[gate.name[0], JobStatus.PROCESSING]
    if gate.kind is GateKind.TASK_CONCURRENCY:
        return len(access.state.busy.group(*gate.name))
    return 0


def _head(access: Access, gate: Gate) -> str | None:
    if gate.kind is not GateKind.ORDER:
        return None
    first = access.state.lines.group(*gate.name).first()
    return None if first is None else first[-1]


class Turnstile:
    """Lets jobs through one after another, and counts each against the next."""

    def __init__(self, access: Access, *, allowance_us: int = 0) -> None:
        self.rated: set[str] = set()  # ids of jobs that a rate limit admitted
        self.logs: dict[Gate, RateLog] = {}  # with the grants of this claim, not written yet
        self.reopens_us: int | None = None  # the first instant at which time opens a gate
        self._access = access
        self._allowance_us = allowance_us
        self._closed: set[Gate] = set()  # blocked a job in this claim
        self._taken: Counter[Gate] = Counter()

    def lets(self, row: JobRow) -> bool:
        """Whether the gates admit a job; if so, count it."""
        gates = gates_for(self._access, row)
        if not gates:
            return True
        states = {gate: self._state(gate, row) for gate in gates}
        blocked = admit(
            states.values(),
            job_id=row.new.id,
            weight=row.new.weight,
            now_us=self._access.now_us,
        )
        if blocked is not None:
            self._remember(blocked)
            return False
        for gate, state in states.items():
            self._count(gate, state, row)
        return True

    def _state(self, gate: Gate, row: JobRow) -> GateState:
        state = state_of(self._access, gate, row)
        # The current log is written even if nothing is granted; see `rate_limit.current`.
        log = self.logs.setdefault(gate, state.log) if state.rule is not None else ()
        return msgspec.structs.replace(
            state,
            shut=state.shut or gate in self._closed,
            running=state.running + self._taken[gate],
            log=log,
        )

    def _remember(self, blocked: Blocked) -> None:
        if blocked.closes:
            self._closed.add(blocked.gate)
        if blocked.reopens_us is not None:
            earliest = self.reopens_us
            self.reopens_us = (
                blocked.reopens_us if earliest is None else min(earliest, blocked.reopens_us)
            )

    def _count(self, gate: Gate, state: GateState, row: JobRow) -> None:
        self._taken[gate] += 1
        if state.rule is not None:
            self.rated.add(row.new.id)
            self.logs[gate] = granted(
                state.log,
                state.rule,
                row.new.weight,
                self._access.now_us,
                allowance_us=self._allowance_us,
            )


#: Due jobs of one queue that one claim makes ready; the rest wait for the next.
_PROMOTED_MAX: Final = 1000


def claim(access: Access, request: ClaimRequest) -> Claimed:
    """Promote due jobs, then hand over the first ready ones that no gate blocks."""
    if access.lease_gone(request.worker):
        return Claimed(jobs=(), now_us=access.now_us, lease_lost=True)
    queues = open_queues(access, request.queues)
    for queue in queues:
        promote(access, queue, limit=_PROMOTED_MAX)
    turnstile = Turnstile(access, allowance_us=request.allowance_us)
    given = _first_ready(access, request, queues, turnstile)
    jobs = tuple(_hand_over(access, row, request) for row in given)
    _write_logs(access, turnstile)
    suspects = Turnstile(access)
    waiting = any(
        suspects.lets(row)
        for queue in queues
        for row in _wanted(access, access.state.suspects, queue, request)
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
        rated=frozenset(turnstile.rated),
    )


def open_queues(access: Access, queues: Iterable[str]) -> tuple[str, ...]:
    """Return the queues that are not paused, each once, in the order of service."""
    state = access.state
    unpaused = [queue for queue in dict.fromkeys(queues) if queue not in state.paused]
    return queue_order(unpaused, {queue: state.settings(queue).priority for queue in unpaused})


def runnable(access: Access, index: Index, queue: str, tasks: Collection[str]) -> Iterator[JobRow]:
    """Yield jobs of a queue and these tasks in index order, except those past their deadline."""
    lines = [keys for (name, task), keys in index.items() if name == queue and knows(tasks, task)]
    for *_, job_id in merge(*lines):
        row = access.state.jobs[job_id]
        if not row.overdue(access.now_us):
            yield row


def _wanted(access: Access, index: Index, queue: str, request: ClaimRequest) -> Iterator[JobRow]:
    """Return the jobs of a queue that a request may claim, in index order."""
    rows = runnable(access, index, queue, request.tasks)
    if not request.narrow:
        return rows
    wanted = request.tenants
    level = None if index is access.state.suspects else request.levels.get(queue)
    if level is not None:
        aged = access.state.settings(queue).ageing_us is not None
        rows = (row for row in rows if not aged and row.new.priority <= level)
    return (row for row in rows if not wanted or row.new.tenant in wanted)


def _first_ready(
    access: Access, request: ClaimRequest, queues: Iterable[str], turnstile: Turnstile
) -> list[JobRow]:
    index = access.state.suspects if request.quarantine else access.state.ready
    ready = (row for queue in queues for row in _wanted(access, index, queue, request))
    return list(islice(filter(turnstile.lets, ready), max(0, request.limit)))


def _hand_over(access: Access, row: JobRow, request: ClaimRequest) -> Job:
    timeout_us = request.default_timeout_us if row.new.timeout_us is None else row.new.timeout_us
    with access.state.changing(row, access.now_us):
        row.status = JobStatus.PROCESSING
        row.fence = lifecycle.next_fence(row.fence)
        row.worker = request.worker
        row.alone = request.quarantine
        row.started_us = access.now_us
        row.hold_until_us = lifecycle.hold_until_us(access.now_us, timeout_us, row.deadline_us)
    access.wake_room(row)
    return as_claimed(row)


def _write_logs(access: Access, turnstile: Turnstile) -> None:
    access.state.grants.update({gate: log for gate, log in turnstile.logs.items() if log})


def _next_due_us(access: Access, queues: Iterable[str]) -> int | None:
    firsts = (access.state.due.group(queue).first() for queue in queues)
    return min((first[0] for first in firsts if first is not None), default=None)
