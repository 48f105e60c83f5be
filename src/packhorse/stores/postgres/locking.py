# SPDX-License-Identifier: MIT
"""Who may change what at the same time; the one place where the order of locks is written down.

A queue is *plain* when nothing but priority and order of arrival decides about its jobs: no limits,
no ordering, concurrency or rate keys, no tenants, no depth, not closed, nobody's shelf. What is not
plain is *special*, and written down in one row, which changes only under the exclusive lock on
everything. Locks are taken in this order, each kind sorted by name, all for one transaction:

1. `all`: shared by nearly everybody; exclusive for whatever changes what is special, and for verbs
   that think of more than the jobs and queues they name (redrive, upkeep, declarations, removal,
   the submit of a job that waited for its key). These run alone and are written as if alone.
2. `tasks`: by verbs about special queues that hold jobs of limited tasks, whose limits reach over
   all queues.
3. `queue:<name>`: by verbs about a special queue. Plain queues need none.
4. `key:<kind, tenant, task, key>`: by submits that want a unique or an idempotency key.
5. Rows of jobs, in order of id. Claims never wait for one, they skip it.

So verbs about plain queues run side by side, and those about special ones wait for each other
queue by queue. A verb that finds that it needs more than it took is undone and begins again with
that (`Level.allow`): nobody takes a lock late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from packhorse.policies.gates import Gate, GateKind, JobKeys
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.statements import Again, Lock, Send, sql
from packhorse.stores.sql.queue_row import QueueRow
from packhorse.stores.sql.steps import Rows

__all__ = ["ALL", "PLAIN", "Level", "Memory", "Special", "write_special"]

#: The lock on everything, and the one on what reaches over queues.
ALL: Final = "all"
_TASKS: Final = "tasks"
#: Gates that reach over queues.
_TASK_WIDE: Final = (GateKind.TASK_CONCURRENCY, GateKind.TASK_RATE)


class Special(NamedTuple):
    """What is not plain."""

    queues: frozenset[str]
    tasks: frozenset[str]  #: those with limits
    tasked: frozenset[str]  #: special queues that may hold jobs of such tasks

    @classmethod
    def of(cls, row: Iterable[Any]) -> Special:
        return cls(*[frozenset(names) for names in row])


PLAIN: Final = Special(frozenset(), frozenset(), frozenset())


class Memory:
    """What a store object last saw to be special: a hint, so that plans begin with enough."""

    def __init__(self) -> None:
        self.special = PLAIN
        #: Of the last plain job of each task: what it shares with others like it, and how that is
        #: told. It need not be worked out again for the next one.
        self.plain: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}


class Level:
    """How much a plan locks; it begins with what it knows, and begins again if that is too little.

    `alone` is everything; else the special queues in `queues`, and the `keys`.
    """

    def __init__(
        self, memory: Memory | None = None, *, alone: bool = False, keys: Iterable[str] = ()
    ) -> None:
        self.alone = alone
        self._memory = memory or Memory()
        self.queues: frozenset[str] = frozenset()
        self.special = PLAIN
        self._tasks = False
        self._keys = tuple([f"key:{key}" for key in keys])

    @property
    def plain(self) -> bool:
        """Whether it is about plain queues only."""
        return not self.alone and not self.queues

    @property
    def gated_tasks(self) -> frozenset[str]:
        return self.special.tasks

    def enter(self) -> Steps[Special]:
        """The first steps of a plan: take the locks, and see what is special."""
        yield Lock(ALL, shared=not self.alone)
        if not self.alone:
            if self._tasks:
                yield Lock(_TASKS)
            if self.queues:
                yield Lock(*[f"queue:{queue}" for queue in self.queues])
            if self._keys:
                yield Lock(*self._keys)
        [row] = yield Rows(sql("special"))
        self.special = self._memory.special = Special.of(row)
        return self.special

    def expect(self, queues: Iterable[str], special: Special | None = None) -> None:
        """Before it begins: lock these queues, as far as they are special, or were last seen so."""
        special = special or self._memory.special
        self.queues |= special.queues.intersection(queues)
        self._tasks = self._tasks or not special.tasked.isdisjoint(self.queues)

    def allow(self, queues: Iterable[str]) -> None:
        """Go on with these queues; begin again if some are special and not locked."""
        if self.alone:
            return
        before = self.queues, self._tasks
        self.expect(queues, self.special)
        if (self.queues, self._tasks) != before:
            raise Again("it concerns queues that are not plain")

    def go_alone(self) -> None:
        """Begin again alone, unless this is so already."""
        if not self.alone:
            self.alone = True
            raise Again("it concerns more than the jobs it is about")

    def asks_gates(self, queue: str) -> bool:
        """Not of a plain queue: it is nobody's alone, and rows are locked as they are picked."""
        return queue in self.special.queues

    def covers(self, gate: Gate) -> bool:
        """Gates of tasks and of its queues: those of others are opened by who claims from them."""
        return gate.kind in _TASK_WIDE or gate.name[0] in self.queues

    def mark_lined(
        self, jobs: Iterable[tuple[JobKeys, bool]], queues: Mapping[str, QueueRow]
    ) -> Steps[None]:
        """Queues are no longer plain that have jobs of limited tasks, or with keys, from now on."""
        pairs = list(jobs)
        tasked = {job.queue for job, _ in pairs if job.task in self.special.tasks}
        lined = {job.queue for job, own in pairs if own} - tasked
        for unknown, of_tasks in (
            (sorted(tasked - self.special.tasked), True),
            (sorted(queue for queue in lined if not queues[queue].lined), False),
        ):
            if unknown:
                self.go_alone()
                yield Send(sql("queue_lined"), {"queues": unknown, "tasked": of_tasks})
                yield from write_special()


def write_special() -> Steps[None]:
    """Write down anew what is special, after anything that decides about it has changed."""
    yield Send(sql("special_keep"))
