# SPDX-License-Identifier: MIT
"""What makes a job or a queue need more than a store's fast path: the one definition of it.

Jobs and queues without constraints are *unconstrained*: priority and order of arrival alone decide
about them. A store may have a fast path for those, which may also know some constraints; everything
else takes its general path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Flag, auto
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from packhorse.core.job import NewJob, RateRule


class Constraint(Flag):
    """One reason why a store must look at more than priority and order of arrival."""

    KEY = auto()  #: the job wants a unique or idempotency key, which one job holds at a time
    ORDER = auto()  #: the job has an ordering key
    LIMIT = auto()  #: the job has a limit's key or a weight; the queue or a task has a limit
    TENANT = auto()  #: the job has a tenant; the queue has had jobs of tenants
    DELAY = auto()  #: the job is not due at once
    DEADLINE = auto()  #: the job has a deadline
    TAGS = auto()  #: the job has tags
    DEPTH = auto()  #: the queue is bounded in jobs or bytes, or the store in bytes
    AGEING = auto()  #: waiting raises the priority in this queue
    CLOSED = auto()  #: the queue takes no jobs: it is closed, or a dead-letter shelf


UNCONSTRAINED: Final = Constraint(0)

#: Fields of a job: the value of jobs without the constraint, and the constraint of all others.
_FIELDS: Final[Mapping[str, tuple[object, Constraint]]] = MappingProxyType(
    {
        "unique": (None, Constraint.KEY),
        "idempotency": (None, Constraint.KEY),
        "ordering_key": (None, Constraint.ORDER),
        "concurrency_key": (None, Constraint.LIMIT),
        "rate_key": (None, Constraint.LIMIT),
        "weight": (1, Constraint.LIMIT),
        "tenant": ("", Constraint.TENANT),
        "delay_us": (0, Constraint.DELAY),
        "scheduled_us": (None, Constraint.DELAY),
        "deadline_us": (None, Constraint.DEADLINE),
        "tags": ((), Constraint.TAGS),
    }
)
_RULES: Final = tuple(_FIELDS.values())
_NEUTRAL: Final = tuple(neutral for neutral, _ in _RULES)
_values: Final = attrgetter(*_FIELDS)


class QueueRules(Protocol):
    """What of a queue's settings constrains it; `QueueSettings` have it."""

    @property
    def concurrency(self) -> int | None: ...
    @property
    def rate(self) -> RateRule | None: ...
    @property
    def tenant_rate(self) -> RateRule | None: ...
    @property
    def max_depth(self) -> int | None: ...
    @property
    def max_bytes(self) -> int | None: ...
    @property
    def ageing_us(self) -> int | None: ...


def job_constraints(job: NewJob) -> Constraint:
    """Return the constraints of a job by itself, whatever its queue and its task add."""
    values = _values(job)
    if values == _NEUTRAL:  # most jobs; compared in C
        return UNCONSTRAINED
    found = UNCONSTRAINED
    for value, (neutral, constraint) in zip(values, _RULES, strict=True):
        if value != neutral:
            found |= constraint
    return found


def are_alike(jobs: Sequence[NewJob]) -> bool:
    """Whether jobs differ in id, payload and trace id only, so that one constrains as all do."""
    if len(jobs) < 2:  # noqa: PLR2004 - one job is like itself
        return True
    first = jobs[0]
    job_id, payload, trace_id = first.id, first.payload, first.trace_id
    like_first = msgspec.structs.replace  # batches are large: copied and compared in C
    return all(
        first == like_first(job, id=job_id, payload=payload, trace_id=trace_id) for job in jobs[1:]
    )


def queue_constraints(
    settings: QueueRules,
    *,
    closed: bool = False,
    shelf: bool = False,
    tenanted: bool = False,
    limited_tasks: bool = False,
    full_store: bool = False,
) -> Constraint:
    """Return the constraints that a queue adds to its jobs.

    `shelf`: it is a dead-letter shelf. `tenanted`: jobs of tenants were submitted to it.
    `limited_tasks`: a task of its jobs has a limit. `full_store`: the store may be full.
    """
    limits = (settings.concurrency, settings.rate, settings.tenant_rate)
    found = UNCONSTRAINED
    if limited_tasks or any(limit is not None for limit in limits):
        found |= Constraint.LIMIT
    if full_store or settings.max_depth is not None or settings.max_bytes is not None:
        found |= Constraint.DEPTH
    if settings.ageing_us is not None:
        found |= Constraint.AGEING
    if tenanted:
        found |= Constraint.TENANT
    if closed or shelf:
        found |= Constraint.CLOSED
    return found
