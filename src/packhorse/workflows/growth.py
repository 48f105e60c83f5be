# SPDX-License-Identifier: MIT
"""The workflow of a running node, as its handler sees it: `ctx.flow`.

Nodes that an attempt adds are attached to its job, under its fence, and become part of the workflow
when the attempt completes. So an attempt that fails or is stale adds nothing, and no node is added
twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from packhorse.call import Call
from packhorse.core.job import Job, Member, NewJob
from packhorse.core.policies.journal import Group
from packhorse.core.workflows import (
    GROWN_BYTES_MAX,
    GROWN_DEPTH_MAX,
    GROWN_LEVELS_MAX,
    GROWN_MAX,
    NODES_MAX,
    written_node,
)
from packhorse.errors import StepRefused, UsageError
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.workflows.graph import FailureChoice, Graph, Node
from packhorse.workflows.records import GROWN_PREFIX, Addition, growing

R = TypeVar("R")

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
