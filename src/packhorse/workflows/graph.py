# SPDX-License-Identifier: MIT
"""Nodes of a workflow, before it is started.

`node.result` passes what a node returns to another call: type checkers see the returned type, the
call keeps a reference, and a worker reads the result when the other node starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from packhorse.call import Call, CallWithResults
from packhorse.core.job import JobOptions, NewJob
from packhorse.core.policies.journal import Group
from packhorse.core.references import ArgumentPlace, Reference, inputs_of
from packhorse.core.workflows import NodeDocument, OnFailure, check_graph, node_job_id, numbers_text
from packhorse.errors import ConfigError, UsageError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

FailureChoice = Literal["cancel", "ignore", "run"]
MakeJob = Callable[[Call[Any], str], NewJob]

#: Options that identify a job; the workflow does that for its nodes.
_NOT_FOR_NODES: Final = (*("job_id", "trace_id", "wait", "tx", "notify"),)


class Node(Generic[R_co]):
    """One call of a workflow that is being built."""

    __slots__ = ("call", "graph", "name", "number", "on_failure", "parents")

    def __init__(
        self,
        graph: Graph,
        number: int,
        name: str,
        call: Call[Any],
        *,
        parents: Sequence[int],
        on_failure: OnFailure,
    ) -> None:
        self.graph = graph
        self.number = number
        self.name = name
        self.call = call
        self.parents = tuple(parents)  #: the numbers of those it waits for
        self.on_failure = on_failure

    @property
    def result(self) -> R_co:
        """A reference to what it will return, as an argument of another node's call."""
        return cast("R_co", Reference(self.graph, self.number))

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


class Graph:
    """Nodes, each behind those it waits for."""

    def __init__(self, where: str, *, tenant: str = "") -> None:
        self.where = where  #: for messages
        self.tenant = tenant
        self.nodes: list[Node[Any]] = []
        self._names: dict[str, int] = {}

    def place(
        self,
        call: Call[R],
        after: Iterable[Node[Any]],
        on_failure: str,
        name: str | None,
    ) -> Node[R]:
        """Add a call behind the nodes of `after`, and those whose results are its arguments."""
        self._check(call)
        if on_failure not in set(OnFailure):
            choices = ", ".join(OnFailure)
            raise ConfigError(f"{self.where}: on_failure is {on_failure!r}; give one of {choices}")
        parents = {self._own(each, "after").number for each in after}
        for reference in _references(call):
            if reference.flow is not self:
                raise UsageError(
                    f"{self.where}: a call of task {call.task} has the result of a node of another "
                    "workflow among its arguments; results are known inside one workflow"
                )
            parents.add(reference.number)
        number = len(self.nodes) + 1
        node: Node[R] = Node(
            *(self, number, self._named(call.task if name is None else name), call),
            parents=sorted(parents),
            on_failure=OnFailure(on_failure),
        )
        self.nodes.append(node)
        return node

    def documents(
        self, group: Group, owner: str, make: MakeJob, **bounds: int
    ) -> list[tuple[str, NodeDocument]]:
        """Return its nodes as they are stored, with their keys."""
        beside = f"{owner}." if owner else ""
        keys = {node.number: f"{beside}{node.number}" for node in self.nodes}
        graph = {keys[node.number]: [keys[one] for one in node.parents] for node in self.nodes}
        check_graph(graph, self.where, **bounds)
        children: dict[int, list[int]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            for parent in node.parents:
                children[parent].append(node.number)
        return [
            (
                keys[node.number],
                NodeDocument(
                    node.name,
                    _job(node, group, keys[node.number], make),
                    waits=len(node.parents),
                    parents=numbers_text(node.parents),
                    children=numbers_text(children[node.number]),
                    on_failure=node.on_failure,
                ),
            )
            for node in self.nodes
        ]

    def _own(self, node: object, argument: str) -> Node[Any]:
        if not isinstance(node, Node):
            raise UsageError(f"{self.where}: {argument} has {node!r}, which is no node of it")
        if node.graph is not self:
            raise UsageError(f"{self.where}: {argument} has {node!r} of another workflow")
        return node

    def _named(self, name: str) -> str:
        """Return a name that no other node has; number one that comes again."""
        times = self._names.get(name, 0) + 1
        self._names[name] = times
        return name if times == 1 else self._named(f"{name}-{times}")

    def _check(self, call: object) -> None:
        if not isinstance(call, Call):
            raise UsageError(f"{self.where}: {call!r} is not a call; make one with task.call(...)")
        task, chosen = call.definition, call.choices.values
        for option in _NOT_FOR_NODES:
            if option in chosen:
                raise ConfigError(
                    f"{self.where}: a call of task {task.name} has {option}=, and which job a node "
                    "is follows from its workflow; leave it out"
                )
        unique = chosen.get("unique") or task.unique
        if unique is not None and unique.on_conflict == "keep_latest":
            raise ConfigError(
                f"{self.where}: a call of task {task.name} is unique with keep_latest, so that it "
                "might be dropped for a later one; a node needs another on_conflict"
            )
        if chosen.get("tenant", self.tenant) != self.tenant:
            raise ConfigError(
                f"{self.where} is of tenant {self.tenant!r}, and a call of task {task.name} is for "
                f"{chosen['tenant']!r}; all nodes belong to one"
            )
        if isinstance(call, CallWithResults):
            if unique is not None or "idempotency_key" in chosen:
                raise ConfigError(
                    f"{self.where}: a call of task {task.name} has a unique or idempotency key, "
                    "and not all its arguments are known before it starts; give them as values"
                )
            for key in ("concurrency_key", "rate_key"):
                if getattr(task, key) is not None and key not in chosen:
                    raise ConfigError(
                        f"{self.where}: task {task.name} takes its {key} from its arguments, and "
                        f"not all are known before it starts; give .using({key}=...)"
                    )


def _references(call: Call[Any]) -> list[Reference]:
    places: tuple[ArgumentPlace, ...] = call.places if isinstance(call, CallWithResults) else ()
    return [reference for place in places for reference in place.references]


def _job(node: Node[Any], group: Group, key: str, make: MakeJob) -> NewJob:
    call = node.call
    job = make(call.using(tenant=group.tenant) if group.tenant else call, node_job_id(group, key))
    inputs = inputs_of(call.places) if isinstance(call, CallWithResults) else ()
    options = msgspec.structs.replace(
        job.options or JobOptions(), member=group.member(key), inputs=inputs
    )
    return msgspec.structs.replace(job, options=options)
