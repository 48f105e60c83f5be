# SPDX-License-Identifier: MIT
"""What may hold back a ready job: gates, each a kind and a name, looked at in a fixed order.

A store gives out a job when all its gates are open. Else the first closed one holds it back: the
job uses nothing up and keeps its place, and others pass it. A limit that refused a job stays closed
for the rest of that claim, so that light jobs do not overtake a heavy one for ever; unless another
gate holds the heavy one back as well. Narrow gates come before wide ones, so that a tenant that has
used up its own limit does not close the queue's. Running jobs are counted, not slots, so that a
crash leaks nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import Literal, Protocol, get_args

import msgspec

from packhorse.core.job import NUMBER_MAX, TERMINAL, JobStatus, RateRule
from packhorse.core.policies.rate_limit import RateLog, next_free_us
from packhorse.errors import ConfigError


def has_room(running: int, limit: int) -> bool:
    """Whether one more may run; `running` counts the processing jobs of all workers."""
    return running < limit


def checked_concurrency(limit: object, setting: str) -> int:
    """The limit, unless it lets nothing run."""
    if type(limit) is not int or not 1 <= limit <= NUMBER_MAX:
        raise ConfigError(
            f"{setting} is {limit!r}; give 1 or more, up to {NUMBER_MAX}, or leave it out for no "
            "limit (to stop a queue, pause it)"
        )
    return limit


#: Whether a job that dies at the head of its line frees the line, or holds it.
OnDead = Literal["release", "hold"]


class GateKind(StrEnum):
    """What a gate is about, in the order in which gates are looked at."""

    PAUSE = "pause"  #: a tenant or a key of a queue is paused
    ORDER = "order"  #: only the head of a line may run
    TASK_CONCURRENCY = "task_concurrency"
    QUEUE_CONCURRENCY = "queue_concurrency"
    TASK_RATE = "task_rate"
    TENANT_RATE = "tenant_rate"
    QUEUE_RATE = "queue_rate"


class Gate(msgspec.Struct, frozen=True):
    """One gate; jobs that share it share its limit."""

    kind: GateKind
    name: tuple[str, ...]


class JobKeys(Protocol):
    """What of a job decides which gates it has; a `NewJob` is one."""

    @property
    def queue(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def ordering_key(self) -> str | None: ...
    @property
    def concurrency_key(self) -> str | None: ...
    @property
    def rate_key(self) -> str | None: ...


class TaskLimits(Protocol):
    """The limits of a task; `TaskSettings` are some."""

    @property
    def concurrency(self) -> int | None: ...
    @property
    def rate(self) -> RateRule | None: ...


class QueueLimits(TaskLimits, Protocol):
    """The limits of a queue; `QueueSettings` are some."""

    @property
    def tenant_rate(self) -> RateRule | None: ...


def gates_of(
    job: JobKeys, queue: QueueLimits, task: TaskLimits | None, shut: Collection[Gate] = ()
) -> tuple[Gate, ...]:
    """The gates of a job, in the order of `GateKind`; none for most.

    `shut` are the gates that are closed whatever the limits: paused keys and tenants, and
    the rate gates that a `RateLimited` closed for a time.
    """
    gates: list[Gate] = [gate for gate in _pauses(job) if gate in shut] if shut else []
    if job.ordering_key is not None:
        gates.append(order_gate(job, job.ordering_key))
    if task is not None and task.concurrency is not None:
        gates.append(concurrency_gate(job))
    if queue.concurrency is not None:
        gates.append(Gate(GateKind.QUEUE_CONCURRENCY, (job.queue,)))
    if (task is not None and task.rate is not None) or (shut and rate_gate(job) in shut):
        gates.append(rate_gate(job))
    if queue.tenant_rate is not None:
        gates.append(Gate(GateKind.TENANT_RATE, (job.queue, job.tenant)))
    if queue.rate is not None:
        gates.append(Gate(GateKind.QUEUE_RATE, (job.queue,)))
    return tuple(gates)


def _pauses(job: JobKeys) -> Iterator[Gate]:
    yield tenant_pause(job.queue, job.tenant)
    keys = (job.ordering_key, job.concurrency_key, job.rate_key)
    for key in dict.fromkeys(keys):
        if key is not None:
            yield key_pause(job.queue, key)


def tenant_pause(queue: str, tenant: str) -> Gate:
    """The gate that holds back a tenant's jobs in a queue while it is shut."""
    return Gate(GateKind.PAUSE, (queue, "tenant", tenant))


def key_pause(queue: str, key: str) -> Gate:
    """The gate that holds back a queue's jobs with this ordering, concurrency or rate key."""
    return Gate(GateKind.PAUSE, (queue, "key", key))


def pause_gate(queue: str, key: str | None, tenant: str | None) -> Gate | None:
    """The gate that a pause of a key or of a tenant shuts; None where all of the queue is meant."""
    if key is not None and tenant is not None:
        raise ConfigError(
            f"key {key!r} and tenant {tenant!r} of queue {queue!r} cannot be paused or resumed "
            "together; nothing was changed: call once for each"
        )
    if key is not None:
        return key_pause(queue, key)
    return None if tenant is None else tenant_pause(queue, tenant)


def order_gate(job: JobKeys, ordering_key: str) -> Gate:
    """The gate of a line: jobs of one queue, tenant and ordering key."""
    return Gate(GateKind.ORDER, (job.queue, job.tenant, ordering_key))


def concurrency_gate(job: JobKeys) -> Gate:
    """The gate of a task's concurrency: one per key, and one for all its jobs without a key."""
    return Gate(GateKind.TASK_CONCURRENCY, keyed_name(job.task, job.concurrency_key))


def rate_gate(job: JobKeys) -> Gate:
    """The gate of a task's rate: one per key, and one for all its jobs without a key."""
    return Gate(GateKind.TASK_RATE, keyed_name(job.task, job.rate_key))


def keyed_name(task: str, key: str | None) -> tuple[str, ...]:
    """The name of a gate of a task: with the key, or of all its jobs without one."""
    return (task,) if key is None else (task, key)


def limit_of(gate: Gate, queue: QueueLimits, task: TaskLimits | None) -> int | None:
    """How many may run that have this gate, if it is one of concurrency."""
    if gate.kind is GateKind.QUEUE_CONCURRENCY:
        return queue.concurrency
    if gate.kind is GateKind.TASK_CONCURRENCY and task is not None:
        return task.concurrency
    return None


def rule_of(gate: Gate, queue: QueueLimits, task: TaskLimits | None) -> RateRule | None:
    """How much may start that has this gate, if it is one of rate and has a limit declared."""
    if gate.kind is GateKind.QUEUE_RATE:
        return queue.rate
    if gate.kind is GateKind.TENANT_RATE:
        return queue.tenant_rate
    if gate.kind is GateKind.TASK_RATE and task is not None:
        return task.rate
    return None


class GateState(msgspec.Struct, frozen=True):
    """How one gate stands just now, as far as its kind needs it."""

    gate: Gate
    shut: bool = False  #: paused, or it has refused a job in this claim
    until_us: int = 0  #: closed for a time, until then
    limit: int | None = None  #: of concurrency
    running: int = 0  #: processing jobs that have this gate
    rule: RateRule | None = None  #: of a rate
    log: RateLog = ()
    head: str | None = None  #: of a line: the id of its head


class Blocked(msgspec.Struct, frozen=True):
    """A gate holds a job back."""

    gate: Gate
    reopens_us: int | None = None  #: when time alone opens it for this job; None: time does not
    closes: bool = True  #: it stays closed for the rest of the claim


def admit(states: Iterable[GateState], *, job_id: str, weight: int, now_us: int) -> Blocked | None:
    """What the first closed gate says, or None: the job may go."""
    asked = tuple(states)
    for index, state in enumerate(asked):
        blocked = blocked_by(state, job_id=job_id, weight=weight, now_us=now_us)
        if blocked is None:
            continue
        if too_heavy(state, weight=weight, now_us=now_us) and any(
            blocked_by(other, job_id=job_id, weight=weight, now_us=now_us)
            for other in asked[index + 1 :]
        ):
            return msgspec.structs.replace(blocked, closes=False)
        return blocked
    return None


def too_heavy(state: GateState, *, weight: int, now_us: int) -> bool:
    """Whether a rate that refuses a job would let a lighter one through."""
    if weight == 1 or state.rule is None or state.shut:
        return False
    return _blocked_by_time(state, 1, now_us) is None


def blocked_by(state: GateState, *, job_id: str, weight: int, now_us: int) -> Blocked | None:
    """What one gate says to a job; None lets it through."""
    gate = state.gate
    if state.shut:
        return Blocked(gate)
    if gate.kind is GateKind.ORDER:
        # Closed for those behind the head only, who may come first in rank.
        return None if state.head in (None, job_id) else Blocked(gate, closes=False)
    if state.limit is not None and not has_room(state.running, state.limit):
        return Blocked(gate)
    return _blocked_by_time(state, weight, now_us)


def _blocked_by_time(state: GateState, weight: int, now_us: int) -> Blocked | None:
    opens_us = max(now_us, state.until_us)
    free_us: int | None = opens_us
    if state.rule is not None:
        free_us = next_free_us(state.log, state.rule, weight, opens_us)
    if free_us is None:
        # The limit was lowered below the job's weight: it never fits, and must not block others.
        return Blocked(state.gate, closes=False)
    return None if free_us <= now_us else Blocked(state.gate, free_us)


def holds_line(status: JobStatus, *, dead_holds: bool) -> bool:
    """Whether a job still stands in its line; its head is the one with the lowest number.

    Waiting and running jobs do, completed and cancelled ones do not; a dead one does if its
    queue's `on_dead` was "hold" when it died, until it is redriven or removed.
    """
    return status not in TERMINAL or (status is JobStatus.DEAD and dead_holds)


def check_on_dead(on_dead: str) -> None:
    """Refuse an unknown choice."""
    if on_dead not in get_args(OnDead):
        raise ConfigError(
            f"on_dead is {on_dead!r}; give 'release' (the line goes on) or 'hold' (it waits)"
        )
