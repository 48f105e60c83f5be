# SPDX-License-Identifier: MIT
"""A workflow as the store holds it: a head, a record for each node, and the words for both.

Documents of nodes are written once. What changes is counted beside them: how many of its parents
have ended, how many of those failed, and where the node stands. Every change of a node puts the
head too, whose version decides between two processes: so each reads what the one before wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import NewJob
from packhorse.core.keys import derived_id
from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX, Put, Record, RecordId
from packhorse.errors import ConfigError, UsageError

NODE_KIND: Final = "workflow_node"
NAME_KIND: Final = "workflow_name"

NODES_MAX: Final = 10_000  #: of one workflow
DEPTH_MAX: Final = 1_000  #: nodes on the longest way through one workflow
GROWN_MAX: Final = 500  #: nodes that one node may add while it runs
GROWN_BYTES_MAX: Final = 512 * 1024  #: of all of them
GROWN_DEPTH_MAX: Final = 100
GROWN_LEVELS_MAX: Final = 10  #: nodes that were added by nodes that were added ...
NAME_BYTES_MAX: Final = 200
#: A workflow whose producer has stopped half-way goes after so long; nothing of it has run.
UNSEALED_US: Final = 3_600 * SECOND_US
#: How long one is kept after its end.
WORKFLOW_KEPT_US: Final = 24 * 3_600 * SECOND_US
#: The same if it failed: an operator may want to try its dead nodes again.
FAILED_KEPT_US: Final = 30 * 24 * 3_600 * SECOND_US

#: The head of an ended workflow that no worker removes goes so much later.
_LEFT_US: Final = 365 * 24 * 3_600 * SECOND_US


class OnFailure(StrEnum):
    """What becomes of a node when one of its parents does not complete."""

    CANCEL = "cancel"  #: it is cancelled, and with it what waits behind it
    IGNORE = "ignore"  #: it runs as if the parent had completed, without a result
    RUN = "run"  #: it runs all the same, and the workflow has failed all the same


class NodeState(IntEnum):
    """Where a node stands; the number is kept as a counter, so it never changes its meaning."""

    WAITING = 0  #: for its parents
    SUBMITTED = 1  #: its job is there
    COMPLETED = 2
    DEAD = 3
    CANCELLED = 4  #: its job was
    BLOCKED = 5  #: a parent did not complete, so it was never submitted
    DROPPED = 6  #: the workflow was cancelled before it was submitted

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it by itself."""
        return self > NodeState.SUBMITTED

    @property
    def word(self) -> str:
        """As people are told; of one that was submitted, the status of its job says more."""
        return _WORDS[self]


_WORDS: Final = (
    *("waiting", "submitted", "completed", "dead"),
    *("cancelled", "cancelled", "cancelled"),
)


class WorkflowState(StrEnum):
    """Where a workflow stands."""

    BUILDING = "building"  #: its nodes are being written; nothing has run
    RUNNING = "running"
    COMPLETED = "completed"  #: every node did, or its failure is ignored
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it has ended, unless nodes are tried again."""
        return self not in (WorkflowState.BUILDING, WorkflowState.RUNNING)


class Telling(msgspec.Struct, frozen=True, array_like=True):
    """The children of a node are being told that it ended, or that it has not ended after all."""

    node: str
    ended: bool
    ok: bool  #: it completed, and all that it added
    told: int = 0  #: children that were told
    ignored: bool = True  #: all of them ignore its failure


class HeadDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workflow without its nodes."""

    name: str
    created_us: int
    nodes: int  #: as it was started
    last: str = ""  #: the node whose result is the workflow's, or several: `numbers_text`
    many: bool = False  #: the results of those, as a list
    state: WorkflowState = WorkflowState.BUILDING
    started: int = 0  #: nodes without parents were submitted up to this one
    grown: int = 0  #: nodes added while it ran
    completed: int = 0
    failed: int = 0  #: ended in another way
    ignored: int = 0  #: of those, whose failure all children ignore
    halted: bool = False  #: it was cancelled: no node begins any more
    removing: bool = False  #: its time is over, and its nodes are being removed
    stack: tuple[Telling, ...] = ()  #: what is left of a fold that was too large
    line: int = 0  #: of the journal, whose fold that is
    ended_us: int | None = None
    same: dict[str, str] = {}  #: nodes that another job may answer for, and which: "" is not known

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return self.nodes + self.grown

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return self.completed + self.failed

    @property
    def kept_us(self) -> int:
        """How long it is kept after its end."""
        return FAILED_KEPT_US if self.state is WorkflowState.FAILED else WORKFLOW_KEPT_US


class NodeDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as it is written once; numbers are those of nodes beside it."""

    name: str
    job: NewJob
    waits: int = 0  #: for so many parents
    parents: str = ""
    children: str = ""
    on_failure: OnFailure = OnFailure.CANCEL


# ------------------------------------------------------------------------------------- as records


def name_id(tenant: str, name: str) -> RecordId:
    """The record that knows the newest run of a name."""
    return RecordId(NAME_KIND, tenant, name)


def node_prefix(group: Group) -> str:
    """What the keys of all nodes of a workflow begin with."""
    return f"{group.record.key}/"


def node_id(group: Group, node: str) -> RecordId:
    """The record of a node."""
    return RecordId(NODE_KIND, group.tenant, f"{node_prefix(group)}{node}")


def node_job_id(group: Group, node: str) -> str:
    """The id of a node's job follows from workflow, run and node, so that none is there twice."""
    return derived_id("workflow", group.text, node)


def has_key(job: NewJob) -> bool:
    """Whether another job may answer for one."""
    return job.unique is not None or job.idempotency is not None


def owner_of(node: str) -> str:
    """The node that added this one while it ran; empty: it was there from the start."""
    return node.rpartition(".")[0]


#: A head, and a node, from the documents of their records.
read_head: Final = msgspec.json.Decoder(HeadDocument).decode
read_node: Final = msgspec.json.Decoder(NodeDocument).decode


def written_head(
    group: Group, head: HeadDocument, expected: int, *, order: int | None = None
) -> Put:
    """A head as its record; the order says when it is to be looked at without a line.

    That of an ended workflow expires, long after a worker removes it: so stores know that it has
    ended, and no longer spare its members.
    """
    keep_us = head.kept_us + _LEFT_US if head.state.is_final else None
    return Put(group.record, msgspec.json.encode(head), expected, order=order, keep_us=keep_us)


def written_node(group: Group, key: str, node: NodeDocument) -> Put:
    """A node as its record, which must be new."""
    text = msgspec.json.encode(node)
    if len(text) > DOCUMENT_BYTES_MAX:
        raise ConfigError(
            f"node {node.name!r} takes {len(text)} bytes, and {DOCUMENT_BYTES_MAX} are kept of "
            "one: give its call a reference instead of the data, or keep the data as an artifact"
        )
    return Put(node_id(group, key), text, 0)


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers as one short text: `1-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def numbers_in(text: str) -> list[int]:
    """The numbers of such a text."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


# -------------------------------------------------------------------------------------- decisions


def next_state(node: NodeDocument, told: int, failed: int, *, halted: bool = False) -> NodeState:
    """What becomes of a node that has not begun, when so many parents ended, and some failed."""
    if failed and node.on_failure is OnFailure.CANCEL:
        return NodeState.BLOCKED
    if told < node.waits:
        return NodeState.WAITING
    return NodeState.DROPPED if halted else NodeState.SUBMITTED


class Depths(NamedTuple):
    """How long the ways through a graph are."""

    longest: int
    of: dict[str, int]


def check_graph(
    parents: Mapping[str, Sequence[str]],
    where: str,
    *,
    nodes_max: int = NODES_MAX,
    depth_max: int = DEPTH_MAX,
) -> Depths:
    """Refuse a graph with a cycle, or one that is too large; says how deep each node lies."""
    if len(parents) > nodes_max:
        raise UsageError(
            f"{where} has {len(parents)} nodes, and {nodes_max} are taken: use a batch inside a "
            "node, or several workflows"
        )
    unknown = next((one for each in parents.values() for one in each if one not in parents), None)
    if unknown is not None:
        raise UsageError(f"{where}: node {unknown!r} is waited for, and is none of its nodes")
    waits = {node: len(set(each)) for node, each in parents.items()}
    children: dict[str, list[str]] = {node: [] for node in parents}
    for node, each in parents.items():
        for parent in set(each):
            children[parent].append(node)
    depth = {node: 1 for node, count in waits.items() if not count}
    ready = list(depth)
    for node in ready:  # grows as nodes become ready
        for child in children[node]:
            depth[child] = max(depth.get(child, 0), depth[node] + 1)
            waits[child] -= 1
            if not waits[child]:
                ready.append(child)
    if len(ready) < len(parents):
        left = sorted(node for node, count in waits.items() if count)
        raise UsageError(
            f"{where} has a cycle: {', '.join(left[:10])} wait for each other, so none would run"
        )
    longest = max(depth.values(), default=0)
    if longest > depth_max:
        raise UsageError(
            f"{where} is {longest} nodes deep, and {depth_max} are taken: put what follows one "
            "another into the steps of one node"
        )
    return Depths(longest, depth)


class NodeView(NamedTuple):
    """A node and its counters, as they were read."""

    document: NodeDocument
    counters: Mapping[str, int]

    @classmethod
    def of(cls, record: Record) -> NodeView:
        """From its record."""
        return cls(read_node(record.document), record.counters)

    @property
    def state(self) -> NodeState:
        """Where it stands."""
        return NodeState(self.counters.get("state", 0))
