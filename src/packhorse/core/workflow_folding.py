# SPDX-License-Identifier: MIT
"""What the ends of its nodes come to for a workflow: who may begin, who is cancelled, who is done.

A generator asks for the nodes it has to see, one at a time, and says at last what to write. It
does a bounded part: where a node has more children than fit, or a failure cascades further, the
head keeps a stack of who is still to be told, which the next fold goes on with.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import JobStatus, NewJob
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.records import Add, RecordChange
from packhorse.core.workflows import (
    HeadDocument,
    NodeDocument,
    NodeState,
    NodeView,
    Telling,
    WorkflowState,
    has_key,
    next_state,
    node_id,
    node_job_id,
    numbers_in,
    owner_of,
    written_node,
)

#: Nodes changed, and jobs submitted, by one fold.
CHANGES_FOLDED_MAX: Final = 400
JOBS_FOLDED_MAX: Final = 200
#: Bytes of the arguments of those jobs.
_BYTES_FOLDED_MAX: Final = 512 * 1024
_ENDS: Final = MappingProxyType(
    {
        JobStatus.COMPLETED: NodeState.COMPLETED,
        JobStatus.DEAD: NodeState.DEAD,
        JobStatus.CANCELLED: NodeState.CANCELLED,
    }
)


class Grown(NamedTuple):
    """Asks which nodes the last attempt of this one added."""

    node: str


#: A node's key asks for the node, `Grown` for what it added.
Asked = str | Grown
Folding = Generator[Asked, Any, None]


@dataclass(slots=True)
class _Node:
    """A node that was read, and what the fold makes of it."""

    document: NodeDocument
    before: dict[str, int]
    state: NodeState
    told: int  #: parents that have ended
    failed: int  #: of those
    grows: int  #: it may have added nodes
    open: int  #: nodes that it added and that have not ended
    harmed: int  #: those that failed

    @classmethod
    def of(cls, view: NodeView) -> _Node:
        counts = view.counters
        others = (counts.get(name, 0) for name in ("told", "failed", "grows", "open", "harmed"))
        return cls(view.document, dict(counts), view.state, *others)

    @property
    def is_over(self) -> bool:
        return self.state.has_ended and not self.open

    @property
    def is_ok(self) -> bool:
        return self.state is NodeState.COMPLETED and not self.harmed

    def deltas(self) -> dict[str, int]:
        after = {
            "state": int(self.state),
            **{name: getattr(self, name) for name in ("told", "failed", "open", "harmed")},
        }
        moved = {name: value - self.before.get(name, 0) for name, value in after.items()}
        return {name: by for name, by in moved.items() if by}


@dataclass(slots=True)
class Folder:
    """Works out one fold of one workflow."""

    group: Group
    head: HeadDocument
    line_ids: list[int] = field(default_factory=list)  #: that are dealt with
    jobs: list[NewJob] = field(default_factory=list)
    _nodes: dict[str, _Node | None] = field(default_factory=dict)
    _new: dict[str, NodeDocument] = field(default_factory=dict)
    _stack: list[Telling] = field(default_factory=list)
    _bytes: int = 0
    _before: HeadDocument = field(init=False)
    _took_back: bool = False  #: that a node had ended

    def __post_init__(self) -> None:
        self._before = self.head

    def fold(self, lines: Sequence[JournalLine]) -> Folding:
        """Take in as many lines as there is room for."""
        yield from self._resumed()
        for line in lines:
            if line.id == self.head.line:  # its telling went on, and has come to an end or not
                if not self._stack:
                    self._take(line)
                continue
            if self._stack or not self._has_room:
                break
            yield from self._line(line)
            yield from self._tell()
            if self._stack:
                self._put(line=line.id)
                break
            self._take(line)
        self._close()

    def go_on(self) -> Folding:
        """Go on with what is left of an earlier fold, or of the start."""
        yield from self._resumed()
        self._close()

    def begin(self, keys: Iterator[str]) -> Folding:
        """Submit nodes that have no parents, as far as there is room; the head says how far."""
        yield from self._resumed()
        for key in keys:
            if self._stack or not self._has_room:
                break
            node = yield from self._node(key)
            if node is not None and not node.document.waits and node.state is NodeState.WAITING:
                self._decide(key, node)
                yield from self._tell()
            self._put(started=int(key))
        else:
            self._put(started=self.head.nodes)
        self._close()

    def revived(self, key: str) -> Folding:
        """A node may begin after all that was dropped, or whose end was another job's."""
        yield from self._resumed()
        node = yield from self._node(key)
        if not self._stack and node is not None and node.state in _REVIVED:
            self._unend(key, node)
            node.state = NodeState.WAITING
            yield from self._tell()
            self._decide(key, node)
            yield from self._tell()
        self._close()

    def answered(self, key: str, job_id: str, status: JobStatus) -> Folding:
        """The job of a node with a key was stored, or another one answers for it, as it stands.

        The node ends with that one, which stays as it is when the workflow is cancelled.
        """
        yield from self._resumed()
        node = yield from self._node(key)
        waits = node is not None and node.state is NodeState.SUBMITTED and key in self.head.same
        if node is not None and waits and not self._stack:
            self._let_go(key)
            if job_id == node_job_id(self.group, key):
                pass
            elif status.is_final or self.head.halted:
                self._end(key, node, _ENDS[status] if status.is_final else NodeState.DROPPED)
                yield from self._tell()
            else:
                self._put(same={**self.head.same, key: job_id})
        self._close()

    @property
    def changes(self) -> tuple[RecordChange, ...]:
        """What to write, besides the head."""
        found: list[RecordChange] = [
            written_node(self.group, key, document) for key, document in self._new.items()
        ]
        for key, node in self._nodes.items():
            if node is not None and (deltas := node.deltas()):
                found.append(Add(node_id(self.group, key), deltas))
        return tuple(found)

    # ------------------------------------------------------------------------------------ lines

    def _line(self, line: JournalLine) -> Folding:
        node = yield from self._node(line.node)
        if node is None or line.job_id != node_job_id(self.group, line.node):
            return
        self._let_go(line.node)
        if not line.status.is_final:
            if node.state in (NodeState.COMPLETED, NodeState.DEAD, NodeState.CANCELLED):
                self._unend(line.node, node)
                node.state = NodeState.SUBMITTED
            return
        if node.state is not NodeState.SUBMITTED:
            return
        state = _ENDS[line.status]
        if state is NodeState.COMPLETED and node.grows:
            yield from self._grow(line.node, node)
        self._end(line.node, node, state)

    def _let_go(self, key: str) -> None:
        if key in self.head.same:
            self._put(same={one: other for one, other in self.head.same.items() if one != key})

    def _end(self, key: str, node: _Node, state: NodeState) -> None:
        node.state = state
        completed = state is NodeState.COMPLETED
        self._count(completed=completed, failed=not completed)
        if node.is_over:
            self._stack.append(Telling(key, ended=True, ok=node.is_ok))

    def _unend(self, key: str, node: _Node) -> None:
        self._took_back = True
        completed = node.state is NodeState.COMPLETED
        self._count(completed=-completed, failed=-(not completed))
        if node.is_over:
            self._stack.append(Telling(key, ended=False, ok=node.is_ok))

    def _grow(self, key: str, node: _Node) -> Folding:
        """Add what its last attempt added; one that ran before has its nodes already."""
        if (yield from self._node(f"{key}.1")) is not None:
            return
        grown: Sequence[NodeDocument] = yield Grown(key)
        for number, document in enumerate(grown, 1):
            own = f"{key}.{number}"
            self._new[own] = document
            self._nodes[own] = _Node.of(NodeView(document, {}))
        node.open += len(grown)
        self._put(grown=self.head.grown + len(grown))
        for number in range(1, len(grown) + 1):
            own = f"{key}.{number}"
            found = yield from self._node(own)
            if found is not None and not found.document.waits:
                self._decide(own, found)

    # ---------------------------------------------------------------------------------- telling

    def _tell(self) -> Folding:
        """Tell children until none is left to be told, or there is no more room."""
        while self._stack and self._has_room:
            telling = self._stack.pop()
            node = yield from self._node(telling.node)
            if node is None:
                continue
            children = numbers_in(node.document.children)
            if telling.told < len(children):
                self._stack.append(msgspec.structs.replace(telling, told=telling.told + 1))
                child = f"{_beside(telling.node)}{children[telling.told]}"
                yield from self._told(child, telling)
            else:
                yield from self._told_all(telling, has_children=bool(children))

    def _told(self, key: str, telling: Telling) -> Folding:
        child = yield from self._node(key)
        if child is None:
            return
        if child.document.on_failure != "ignore" and telling.ignored:
            self._stack[-1] = msgspec.structs.replace(self._stack[-1], ignored=False)
        if child.state not in _NOT_BEGUN:
            return
        by = 1 if telling.ended else -1
        child.told += by
        child.failed += 0 if telling.ok else by
        if child.state in (NodeState.WAITING, NodeState.BLOCKED):
            self._decide(key, child)

    def _told_all(self, telling: Telling, *, has_children: bool) -> Folding:
        by = 1 if telling.ended else -1
        if not telling.ok and telling.ignored and has_children:
            self._count(ignored=by)
        owner_key = owner_of(telling.node)
        if not owner_key:
            return
        owner = yield from self._node(owner_key)
        if owner is None:
            return
        was_over, was_ok = owner.is_over, owner.is_ok
        owner.open -= by
        owner.harmed += 0 if telling.ok else by
        if was_over and not owner.is_over:
            self._stack.append(Telling(owner_key, ended=False, ok=was_ok))
        elif owner.is_over and not was_over:
            self._stack.append(Telling(owner_key, ended=True, ok=owner.is_ok))

    def _decide(self, key: str, node: _Node) -> None:
        """Let a node that has not begun become what its parents make of it."""
        was = node.state
        now = next_state(node.document, node.told, node.failed, halted=self.head.halted)
        if now is was:
            return
        if was is NodeState.BLOCKED:
            self._unend(key, node)
            node.state = NodeState.WAITING
        if now.has_ended:
            self._end(key, node, now)
        elif now is NodeState.SUBMITTED:
            node.state, job = now, node.document.job
            self.jobs.append(job)
            self._bytes += len(job.payload)
            if has_key(job):
                self._put(same={**self.head.same, key: ""})

    # ------------------------------------------------------------------------------------- head

    def _resumed(self) -> Folding:
        self._stack = list(self.head.stack)
        yield from self._tell()

    def _node(self, key: str) -> Generator[Asked, Any, _Node | None]:
        if key not in self._nodes:
            view: NodeView | None = yield key
            self._nodes[key] = None if view is None else _Node.of(view)
        return self._nodes[key]

    @property
    def _has_room(self) -> bool:
        changed = len(self._nodes) < CHANGES_FOLDED_MAX
        return changed and len(self.jobs) < JOBS_FOLDED_MAX and self._bytes < _BYTES_FOLDED_MAX

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of what was begun."""
        return not self.head.stack

    @property
    def has_ended(self) -> bool:
        """Whether the workflow ends by it, be it once more after nodes were tried again."""
        had_ended = self._before.state.is_final and not self._took_back
        return self.head.state.is_final and not had_ended

    def _take(self, line: JournalLine) -> None:
        self.line_ids.append(line.id)

    def _put(self, **fields: Any) -> None:
        self.head = msgspec.structs.replace(self.head, **fields)

    def _count(self, **by: int) -> None:
        self._put(**{name: getattr(self.head, name) + each for name, each in by.items()})

    def _close(self) -> None:
        self._put(stack=tuple(self._stack))
        if self.is_done:
            self._put(line=0)
        head = self.head
        if head.state is WorkflowState.BUILDING or head.started < head.nodes:
            return
        over = head.ended == head.size and self.is_done
        self._put(state=_outcome(head) if over else WorkflowState.RUNNING)


_REVIVED: Final = (NodeState.DROPPED, NodeState.DEAD, NodeState.CANCELLED)
_NOT_BEGUN: Final = (NodeState.WAITING, NodeState.BLOCKED, NodeState.DROPPED)


def _outcome(head: HeadDocument) -> WorkflowState:
    if head.failed == head.ignored:
        return WorkflowState.COMPLETED
    return WorkflowState.CANCELLED if head.halted else WorkflowState.FAILED


def _beside(key: str) -> str:
    """What the keys of the nodes beside this one begin with."""
    owner = owner_of(key)
    return f"{owner}." if owner else ""
