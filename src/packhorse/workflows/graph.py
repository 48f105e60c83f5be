# SPDX-License-Identifier: MIT
"""Nodes of a workflow: before it is started, and those that a running node adds by `ctx.flow`.

`node.result` passes what a node returns to another call: type checkers see the returned type, the
call keeps a reference, and a worker reads the result when the other node starts.

Nodes that an attempt adds are attached to its job, under its fence, and become part of the workflow
when the attempt completes. So an attempt that fails or is stale adds nothing, and no node is added
twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec

from packhorse.call import Call, CallWithResults
from packhorse.core.job import Job, JobOptions, Member, NewJob
from packhorse.core.policies.journal import Group
from packhorse.core.references import ArgumentPlace, Reference, inputs_of
from packhorse.core.workflows import (
    GROWN_BYTES_MAX,
    GROWN_DEPTH_MAX,
    GROWN_LEVELS_MAX,
    GROWN_MAX,
    NODES_MAX,
    NodeDocument,
    OnFailure,
    check_graph,
    node_job_id,
    numbers_text,
    written_node,
)
from packhorse.errors import ConfigError, StepRefused, UsageError
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.workflows.records import GROWN_PREFIX, Addition, growing

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
        if name in self._names:
            raise UsageError(
                f"{self.where}: a node has the name {name!r} already; give this one another name="
            )
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


_PLACES: Final = 4  #: digits of a number in the name of an attachment


class Growing(NamedTuple):
    """A running node, and how to make jobs of the calls it adds."""

    member: Member
    job: Job
    make: Callable[[Call[Any], str], NewJob]


class _GrowthHost(Protocol):
    """What `ctx.flow` asks of the host of an attempt."""

    def attach(self, values: dict[str, bytes]) -> bool: ...
    def aattach(self, values: dict[str, bytes]) -> Awaitable[bool]: ...
    def ask(self, asking: Callable[[Any], Generator[Any, Any, int]]) -> int: ...
    async def aask(self, asking: Callable[[Any], Generator[Any, Any, int]]) -> int: ...


class FlowInRun(Graph):
    """`ctx.flow`: the workflow that this job is a node of."""

    def __init__(self, growing: Growing, host: _GrowthHost) -> None:
        group = Group.of(growing.member.group)
        super().__init__(f"workflow {group.key!r}", tenant=group.tenant)
        self.name = group.key  #: of the workflow
        self.node = growing.member.node  #: the key of this node in it
        self._group = group
        self._growing = growing
        self._host = host
        self._size: int | None = None
        self._bytes = 0

    def add(
        self,
        call: Call[R],
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: FailureChoice = "cancel",
        name: str | None = None,
    ) -> Node[R]:
        """Add a node, which begins when this one has completed; it is stored when this returns.

        `after` may name nodes that this attempt added before. What waits behind this node waits for
        what it added too. An attempt that does not complete adds nothing.
        """
        node = self._placed(call, after, on_failure, name)
        if self._size is None:
            self._size = self._host.ask(self._begun)
        values = self._written()
        self._kept(held=self._host.attach(values))
        return node

    async def aadd(
        self,
        call: Call[R],
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: FailureChoice = "cancel",
        name: str | None = None,
    ) -> Node[R]:
        """As `add`, without blocking the event loop."""
        node = self._placed(call, after, on_failure, name)
        if self._size is None:
            self._size = await self._host.aask(self._begun)
        values = self._written()
        self._kept(held=await self._host.aattach(values))
        return node

    def _begun(self, store: Store) -> Asking[int]:
        return growing(store, self._growing.member)

    def _placed(
        self, call: Call[R], after: Iterable[Node[Any]], on_failure: str, name: str | None
    ) -> Node[R]:
        if self.node.count(".") >= GROWN_LEVELS_MAX:
            raise UsageError(
                f"{self.where}: node {self.node} was added by a node that was added, "
                f"{GROWN_LEVELS_MAX} times over, and may add no more: start another workflow"
            )
        return self.place(call, after, on_failure, name)

    def _written(self) -> dict[str, bytes]:
        """Encode the node added last, and its parents, whose children have changed."""
        documents = self.documents(
            *(self._group, self.node, self._growing.make),
            nodes_max=GROWN_MAX,
            depth_max=GROWN_DEPTH_MAX,
        )
        if (self._size or 0) + len(documents) > NODES_MAX:
            self.nodes.pop()
            raise UsageError(f"{self.where} would have more than {NODES_MAX} nodes")
        node = self.nodes[-1]
        values, fence = {}, self._growing.job.fence
        for number in (*node.parents, node.number):
            key, document = documents[number - 1]
            written_node(self._group, key, document)  # it must fit
            addition = Addition(fence, number, document)
            values[f"{GROWN_PREFIX}{number:0{_PLACES}}"] = msgspec.json.encode(addition)
        self._bytes += len(values[f"{GROWN_PREFIX}{node.number:0{_PLACES}}"])
        if self._bytes > GROWN_BYTES_MAX:
            self.nodes.pop()
            raise UsageError(
                f"{self.where}: what node {self.node} adds has more than {GROWN_BYTES_MAX} bytes; "
                "give the calls references instead of the data"
            )
        return values

    def _kept(self, *, held: bool) -> None:
        if held:
            return
        job_id = self._growing.job.id
        raise StepRefused(
            f"job {job_id} is held by another worker by now, or is over: nothing was added to "
            f"{self.where}; stop here",
            job_id=job_id,
        )
