# SPDX-License-Identifier: MIT
"""Which verbs may run at the same time; the one place that defines the order of locks.

A queue is *unconstrained* when nothing but priority and order of arrival decides about its jobs
(see `core.constraints`). What is *constrained* is written down in one row of the table `special`,
which changes only under the exclusive lock on everything. Locks are taken in this order, each kind
sorted by name, all for one transaction:

0. `intake`: by the one process that admits what users' transactions ask for; then `record:<id>`: by
   changes of records, and by upkeep that removes some.
1. `all`: shared by nearly all verbs; exclusive for whatever changes what is constrained, and for
   verbs that think of more than the jobs and queues they name (redrive, upkeep, declarations,
   removal, the submit of a job that waited for its key). These run alone.
2. `tasks`: by verbs about constrained queues that hold jobs of limited tasks, whose limits reach
   over all queues.
3. `queue:<name>`: by verbs about a constrained queue. Others need none. A claim needs it only where
   gates may block jobs or some are due, a completion only where an end may release jobs: the table
   `special` says of the other constrained queues that they are `ungated` or `quiet`.
4. `key:<kind, tenant, task, key>`: by submits that want a unique or an idempotency key.
5. Rows of jobs, in order of id. Claims never wait for one, they skip it.

So verbs about unconstrained queues run side by side, and those about others wait for each other
queue by queue. A verb that finds that it needs more than it took is undone and begins again with
that (`LockLevel.allow`): no plan takes a lock late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from packhorse.core.policies.gates import Gate, GateKind, JobKeys
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.statements import Again, Lock, sql
from packhorse.stores.sql.dialect import PlanLocks
from packhorse.stores.sql.rows import QueueRow
from packhorse.stores.sql.statements import Rows, Send, Together

#: The lock on admission.
INTAKE: Final = "intake"
#: The lock on everything, and the one on what reaches over queues.
ALL: Final = "all"
_TASKS: Final = "tasks"
#: Gates that reach over queues.
_TASK_WIDE: Final = (GateKind.TASK_CONCURRENCY, GateKind.TASK_RATE)


class Constrained(NamedTuple):
    """The constrained queues and tasks; among the queues, also `ungated mail` and `quiet mail`."""

    queues: frozenset[str]
    tasks: frozenset[str]  #: those with limits
    tasked: frozenset[str]  #: constrained queues that may hold jobs of such tasks

    @classmethod
    def of(cls, row: Iterable[Any]) -> Constrained:
        return cls(*[frozenset(names) for names in row])

    def gated(self, queues: Iterable[str]) -> list[str]:
        """The queues that a claim must have for itself: gates may block their jobs."""
        return [queue for queue in queues if f"ungated {queue}" not in self.queues]

    def releasing(self, queues: Iterable[str]) -> list[str]:
        """The queues that a completion must have for itself: an end may release other jobs."""
        return [queue for queue in queues if f"quiet {queue}" not in self.queues]


NOTHING_CONSTRAINED: Final = Constrained(frozenset(), frozenset(), frozenset())


class Memory:
    """What a store object last saw to be constrained: a hint, so that plans begin with enough."""

    def __init__(self) -> None:
        self.constrained = NOTHING_CONSTRAINED
        #: The queues of the jobs that were last completed by the general route.
        self.completed: Sequence[str] = ()


class LockLevel(PlanLocks):
    """The locks of a plan, which starts with those it knows of, and again if they do not suffice.

    `alone` is everything; else the constrained queues in `queues`, and the `keys`.
    """

    alone = False

    def __init__(
        self, memory: Memory | None = None, *, alone: bool = False, keys: Iterable[str] = ()
    ) -> None:
        self.alone = alone
        self._memory = memory or Memory()
        self.queues: frozenset[str] = frozenset()
        self.constrained = NOTHING_CONSTRAINED
        self._tasks = False
        self._keys: tuple[str, ...] = ()
        self.want(keys)

    @property
    def unconstrained(self) -> bool:
        """Whether it is about unconstrained queues only."""
        return not self.alone and not self.queues

    @property
    def gated_tasks(self) -> frozenset[str]:
        return self.constrained.tasks

    def enter(self, *asked: Rows, claims: Sequence[str] = ()) -> Steps[list[list[Any]]]:
        """The first steps of a plan: take the locks, see what is constrained, and read `asked`."""
        yield Lock(ALL, shared=not self.alone)
        if not self.alone:
            if self._tasks:
                yield Lock(_TASKS)
            if self.queues:
                yield Lock(*[f"queue:{queue}" for queue in self.queues])
            if self._keys:
                yield Lock(*self._keys)
        answers: list[list[Any]]
        rows, *answers = yield Together((Rows(sql("constrained")), *asked))
        self.constrained = self._memory.constrained = (
            Constrained.of(rows[0]) if rows else NOTHING_CONSTRAINED  # the table was emptied
        )
        self.allow(self.constrained.gated(claims))
        return answers

    def want(self, keys: Iterable[str]) -> None:
        """Before it begins: lock these keys."""
        self._keys = tuple([f"key:{key}" for key in keys])

    def expect(self, queues: Iterable[str], constrained: Constrained | None = None) -> None:
        """Before it begins: lock those of the queues that are constrained, as far as known."""
        constrained = constrained or self._memory.constrained
        self.queues |= constrained.queues.intersection(queues)
        self._tasks = self._tasks or not constrained.tasked.isdisjoint(self.queues)

    def allow(self, queues: Iterable[str]) -> None:
        """Go on with these queues; begin again if some are constrained and not locked."""
        if self.alone:
            return
        before = self.queues, self._tasks
        self.expect(queues, self.constrained)
        if (self.queues, self._tasks) != before:
            raise Again("it concerns queues that are not unconstrained")

    def go_alone(self) -> None:
        """Begin again alone, unless this is so already."""
        if not self.alone:
            self.alone = True
            raise Again("it concerns more than the jobs it is about")

    def asks_gates(self, queue: str) -> bool:
        """Whether claims ask limits: not in queues that no plan has for itself."""
        return self.alone or queue in self.queues

    def covers(self, gate: Gate) -> bool:
        """Whether the plan may open a gate: those of tasks, and of the queues it has locked."""
        return gate.kind in _TASK_WIDE or gate.name[0] in self.queues

    def mark_lined(
        self, jobs: Iterable[tuple[JobKeys, bool]], queues: Mapping[str, QueueRow]
    ) -> Steps[None]:
        """Mark queues constrained that have jobs of limited tasks, or with keys, from now on."""
        pairs = list(jobs)
        tasked = {job.queue for job, _ in pairs if job.task in self.constrained.tasks}
        lined = {job.queue for job, own in pairs if own} - tasked
        for unknown, of_tasks in (
            (sorted(tasked - self.constrained.tasked), True),
            (sorted(queue for queue in lined if not queues[queue].lined), False),
        ):
            if unknown:
                self.go_alone()
                yield Send(sql("queue_lined"), {"queues": unknown, "tasked": of_tasks})
                yield from write_constrained()


def write_constrained() -> Steps[None]:
    """Write down again what is constrained, after anything that decides about it has changed."""
    yield Send(sql("constrained_keep"))
