# SPDX-License-Identifier: MIT
"""Describe workflows and their nodes for users, and explain why a node does not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from math import inf
from typing import Final

import msgspec

from packhorse.core.clock import to_datetime
from packhorse.core.job import DeadReason, JobRecord, JobStatus
from packhorse.core.job_info import Explanation, Reason, shown
from packhorse.core.policies.explain import ReasonCode
from packhorse.core.policies.journal import WORKFLOW_KIND, Group
from packhorse.core.workflows import (
    NODE_KIND,
    HeadDocument,
    NodeState,
    NodeView,
    WorkflowState,
    has_key,
    node_job_id,
    numbers_in,
    owner_of,
    read_head,
)
from packhorse.errors import JobNotFound
from packhorse.events import EventBus
from packhorse.events.groups import (
    CancelledWorkflow,
    CompletedWorkflow,
    EndedWorkflow,
    FailedWorkflow,
)
from packhorse.group_errors import WorkflowFailed
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage
from packhorse.workflows.records import Ended, job_of, nodes_of, read_workflow

_PAGE: Final = 500
#: Pages searched for a node by the id that its job will have.
_PAGES_MAX: Final = 100
#: Nodes that an explanation names.
_NAMED: Final = 10


class WorkflowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow in numbers."""

    name: str
    run: str
    tenant: str
    state: WorkflowState
    nodes: int
    completed: int
    failed: int  #: ended in another way: dead, cancelled
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def id(self) -> str:
        """The name and this run of it."""
        return f"{self.name}#{self.run}"


class WorkflowPage(msgspec.Struct, frozen=True):
    """Some workflows, and where the next page begins."""

    workflows: tuple[WorkflowInfo, ...]
    after: str | None = None


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its state."""

    key: str  #: its number, after the key of the node that added it
    name: str
    task: str
    queue: str
    #: `waiting`, the status of its job, or how it ended
    state: str
    job_id: str
    has_job: bool = False  #: it has begun
    on_failure: str = "cancel"
    parents: tuple[str, ...] = ()  #: the names of those it waits for
    behind: tuple[str, ...] = ()  #: the nodes that wait or ended because this one did not complete
    reason: str = ""  #: of one that is dead
    same_as: str = ""  #: the id of another job that stands in for it, by a key of its call


def workflow_info(group: Group, head: HeadDocument) -> WorkflowInfo:
    """Describe a workflow."""
    return shown(WorkflowInfo, group, head, name=group.key, nodes=head.size)


def ends_told(bus: EventBus, worker: str = "") -> Ended:
    """Return a function that emits the event of a workflow that has ended."""
    return lambda group, head: bus.emit(_event(group, head, worker))


def _event(group: Group, head: HeadDocument, worker: str) -> EndedWorkflow:
    kinds: dict[WorkflowState, type[EndedWorkflow]] = {
        WorkflowState.COMPLETED: CompletedWorkflow,
        WorkflowState.CANCELLED: CancelledWorkflow,
    }
    return kinds.get(head.state, FailedWorkflow)(
        worker=worker,
        workflow=group.key,
        run=group.run,
        tenant=group.tenant,
        nodes=head.size,
        completed=head.completed,
        failed=head.failed,
    )


def all_workflows(store: Store, tenant: str | None, limit: int) -> Asking[list[WorkflowInfo]]:
    """List workflows by tenant and name."""
    found: list[WorkflowInfo] = []
    after: str | None = None
    while len(found) < limit:
        page = yield from workflow_page(store, tenant, _PAGE, after)
        found += page.workflows
        after = page.after
        if after is None:
            break
    return found[:limit]


def workflow_page(
    store: Store, tenant: str | None, limit: int, after: str | None
) -> Asking[WorkflowPage]:
    """Read one page of workflows by tenant and name, in one query."""
    page: RecordPage = yield store.records.records(
        WORKFLOW_KIND, tenant=tenant, after=after, limit=limit
    )
    heads = [(record.id.text, read_head(record.document)) for record in page.records]
    shown = tuple(workflow_info(Group.of(text), head) for text, head in heads if not head.removing)
    return WorkflowPage(shown, page.after)


def node_infos(store: Store, group: Group) -> Asking[list[NodeInfo]]:
    """Describe the nodes of a workflow, with the status of those jobs that have begun."""
    views = dict((yield from nodes_of(store, group)))
    jobs: dict[str, JobRecord | None] = {}
    for key, view in views.items():
        if view.state in _SHOWN or (has_key(view.document.job) and view.state.has_ended):
            jobs[key] = yield from job_of(store, node_job_id(group, key))
    names = {key: view.document.name for key, view in views.items()}
    children = {key: _beside(key, view.document.children) for key, view in views.items()}
    return [
        NodeInfo(
            key=key,
            name=_name(key, names),
            task=view.document.job.task,
            queue=view.document.job.queue,
            state=_state(view, jobs.get(key)),
            job_id=node_job_id(group, key),
            has_job=NodeState.SUBMITTED <= view.state <= NodeState.CANCELLED,
            on_failure=str(view.document.on_failure),
            parents=tuple(_name(one, names) for one in _beside(key, view.document.parents)),
            behind=tuple(_name(one, names) for one in _behind(key, views, children)),
            reason=_reason(jobs.get(key)),
            same_as=_other(node_job_id(group, key), jobs.get(key)),
        )
        for key, view in views.items()
    ]


def _name(key: str, names: dict[str, str]) -> str:
    owner = owner_of(key)
    return f"{_name(owner, names)}/{names[key]}" if owner in names else names[key]


def _beside(key: str, numbers: str) -> list[str]:
    owner = owner_of(key)
    return [f"{owner}.{one}" if owner else str(one) for one in numbers_in(numbers)]


def _behind(key: str, views: dict[str, NodeView], children: dict[str, list[str]]) -> list[str]:
    """Return the nodes that wait for a node that did not complete, or were dropped with it."""
    if views[key].state not in (NodeState.DEAD, NodeState.CANCELLED):
        return []
    found: dict[str, None] = {}
    left = list(children[key])
    while left:
        one = left.pop(0)
        if one in found or one not in views or views[one].state not in _NOT_BEGUN:
            continue
        found[one] = None
        left += children[one]
    return list(found)


_NOT_BEGUN: Final = (NodeState.WAITING, NodeState.BLOCKED, NodeState.DROPPED)


def _state(view: NodeView, record: JobRecord | None) -> str:
    if view.state is NodeState.SUBMITTED and record is not None:
        return str(record.status)
    return view.state.word


_SHOWN: Final = (NodeState.SUBMITTED, NodeState.DEAD)


def _other(job_id: str, record: JobRecord | None) -> str:
    return "" if record is None or record.id == job_id else record.id


def _reason(record: JobRecord | None) -> str:
    if record is None or record.status is not JobStatus.DEAD:
        return ""
    if record.dead_reason is DeadReason.REJECTED and record.error is not None:
        return f"{record.dead_reason}: {record.error.message}"
    return str(record.dead_reason or "")


def failure_of(
    store: Store, name: str, nodes: Sequence[NodeInfo], asked: NodeInfo
) -> Asking[WorkflowFailed]:
    """Return the error for a node that did not complete: it names the one that ended so first."""
    ended = []
    for node in _causes(nodes, asked):
        record = yield from job_of(store, node.job_id)
        finished_us = None if record is None else record.finished_us
        ended.append((inf if finished_us is None else finished_us, node, record))
    _, node, record = min(ended, key=lambda each: each[0], default=(inf, asked, None))
    reason = _reason(record)
    if record is not None and reason == record.dead_reason and record.error is not None:
        reason += f": {record.error.type}: {record.error.message}"
    return WorkflowFailed(
        name,
        node=node.name,
        state=node.state,
        asked=asked.name,
        job_id=(node.same_as or node.job_id) if node.has_job else "",
        reason=reason,
    )


def _causes(nodes: Sequence[NodeInfo], asked: NodeInfo) -> list[NodeInfo]:
    """Return the nodes that began and did not complete, of those that a node waited for."""
    by_name, grown = {node.name: node for node in nodes}, defaultdict[str, list[NodeInfo]](list)
    for node in nodes:
        grown[owner_of(node.key)].append(node)
    found: dict[str, NodeInfo] = {}
    seen, left = {asked.name}, [asked]
    while left:
        node = left.pop()
        if node.has_job and node.state in ("dead", "cancelled"):
            found[node.name] = node
            continue
        parents = (by_name[name] for name in node.parents if name in by_name)
        behind = grown[node.key] if node.has_job else parents
        more = [each for each in behind if each.name not in seen]
        seen.update(each.name for each in more)
        left += more
    return list(found.values())


def explained_node(node: NodeInfo, nodes: Sequence[NodeInfo], now_us: int) -> Explanation:
    """Explain why a node has not begun: which nodes it waits for."""
    states = {each.name: each.state for each in nodes}
    jobs = {each.name: each.job_id for each in nodes if each.has_job}
    left = [name for name in node.parents if states.get(name) not in _ENDED]
    failed = [name for name in node.parents if states.get(name) in ("dead", "cancelled")]
    if node.state != "waiting":
        named = ", ".join(failed[:_NAMED]) or "its workflow was cancelled"
        text = f"it never began, and is {node.state}: {named}"
        if failed:
            text = f"it never began, because {named} did not complete"
        code = ReasonCode.FINISHED
    else:
        named = ", ".join(f"{name} ({states[name]})" for name in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        text = f"it waits for {len(left)} of {len(node.parents)} nodes: {named}{more}"
        code = ReasonCode.WAITS_FOR_NODES
    about = tuple(jobs[name] for name in (left or failed)[:_NAMED] if name in jobs)
    reason = Reason(code=code, text=text, jobs=about, count=len(left))
    return Explanation(
        job_id=node.job_id,
        status=JobStatus.PENDING if node.state == "waiting" else JobStatus.CANCELLED,
        queue=node.queue,
        task=node.task,
        at=to_datetime(now_us),
        reasons=(reason,),
    )


def explained_job(store: Store, job_id: str, tenant: str | None) -> Asking[Explanation]:
    """Explain a node by the id that its job will have; `JobNotFound` if there is none.

    Ids are derived from nodes and cannot be reversed, so this searches all nodes, up to a bound.
    """
    after, text = None, job_id.encode()
    for _ in range(_PAGES_MAX):
        page: RecordPage = yield store.records.records(
            NODE_KIND, tenant=tenant, after=after, limit=_PAGE
        )
        for record in page.records:
            if text not in record.document:
                continue
            job = NodeView.of(record).document.job
            member = None if job.options is None else job.options.member
            if job.id != job_id or member is None:
                continue
            group = Group.of(member.group)
            found = yield from read_workflow(store, group)
            if found is None:
                continue
            nodes = yield from node_infos(store, group)
            node = next(each for each in nodes if each.job_id == job_id)
            return explained_node(node, nodes, page.now_us)
        after = page.after
        if after is None:
            break
    raise JobNotFound(job_id)


_ENDED: Final = ("completed", "dead", "cancelled")
