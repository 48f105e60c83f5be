# SPDX-License-Identifier: MIT
"""Start a workflow, cancel it, and retry what is dead in it.

A small workflow is stored in one change, with the jobs of the nodes that may begin. A large one is
stored in parts, and sealed by the last: before that none of it runs, so that a producer killed
half-way leaves records that another start of the name replaces, or a worker removes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.client.sealed_store import sealed_job
from packhorse.core.policies.journal import WORKFLOW_KIND, Group
from packhorse.core.policies.records import Add, Put, Record, RecordChange, Remove
from packhorse.core.workflow_folding import Asked, Folder
from packhorse.core.workflows import (
    UNSEALED_US,
    HeadDocument,
    NodeDocument,
    NodeState,
    NodeView,
    WorkflowState,
    has_key,
    name_id,
    node_id,
    node_job_id,
    written_head,
    written_node,
)
from packhorse.errors import StoreError, UsageError
from packhorse.stores.intake import alias_of
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, store_clock
from packhorse.stores.requests import RedriveAnswer
from packhorse.workflows.records import (
    AGAIN_US,
    SAME_US,
    Ended,
    StoredWorkflow,
    drop_head,
    is_live,
    nodes_of,
    read_workflow,
)

#: Limits of one change: nodes, bytes of their documents, and jobs.
_PART_NODES: Final = 400
_PART_BYTES: Final = 768 * 1024
_PART_JOBS: Final = 200
_TRIES: Final = 20
#: Jobs redriven in one call of the store.
_REDRIVEN: Final = 200


class WorkflowPlan(NamedTuple):
    """A workflow to start."""

    group: Group
    nodes: Sequence[tuple[str, NodeDocument]]
    last: str  #: the nodes whose results are the workflow's
    many: bool  #: the result is a list


class Started(NamedTuple):
    """A workflow that runs."""

    group: Group
    deduplicated: bool  #: one of this name was running already


def workflow_group(tenant: str, name: str, run: str) -> Group:
    """The group of one run of a name."""
    return Group(WORKFLOW_KIND, tenant, name, run)


# ---------------------------------------------------------------------------------------- starting


def started(store: Store, plan: WorkflowPlan, ended: Ended) -> Asking[Started]:
    """Store a workflow and begin it; if one of its name runs, return that one."""
    group = plan.group
    nodes = [
        (key, msgspec.structs.replace(node, job=sealed_job(store, node.job)))
        for key, node in plan.nodes
    ]
    plan = plan._replace(nodes=nodes)
    for _ in range(_TRIES):
        name: Record | None = yield store.records.record(name_id(group.tenant, group.key))
        if name is not None:
            answer = yield from _running(store, plan, name.document.decode(), ended)
            if answer is not None:
                return answer
        version = 0 if name is None else name.version
        put = Put(name_id(group.tenant, group.key), group.run.encode(), version)
        if (yield from _stored(store, plan, put, ended)):
            return Started(group, deduplicated=False)
    raise StoreError(f"workflow {group.key!r} is started by others all the time; try again")


def _running(store: Store, plan: WorkflowPlan, run: str, ended: Ended) -> Asking[Started | None]:
    """Return the newest run of the name if it lives or is this one; None: start another."""
    other = plan.group._replace(run=run)
    found = yield from read_workflow(store, other)
    if found is None or (other != plan.group and not is_live(found[0])):
        return None
    if found[0].state is not WorkflowState.BUILDING:
        return Started(other, deduplicated=other != plan.group)
    if other == plan.group:  # an earlier try of this call began to write it
        yield from _write_rest(store, plan, ended)
        return Started(other, deduplicated=False)
    # None of it has run. Its producer, if it lives, gets this run as its answer.
    yield store.records.change((drop_head(other, *found),))
    return None


def _stored(store: Store, plan: WorkflowPlan, name: Put, ended: Ended) -> Asking[bool]:
    """Write the head, and all nodes if they are few; False if another start was faster."""
    group, nodes = plan.group, plan.nodes
    now = yield from store_clock(store.records)
    head = HeadDocument(group.key, now, len(nodes), plan.last, plan.many)
    roots = [(key, node) for key, node in nodes if not node.waits]
    puts = [written_node(group, key, node) for key, node in nodes]
    small = len(nodes) + len(roots) <= _PART_NODES and len(roots) <= _PART_JOBS
    if not small or sum(len(put.document) for put in puts) > _PART_BYTES:
        put = written_head(group, head, 0, order=now + UNSEALED_US)
        changed: Changed = yield store.records.change((name, put))
        if changed.applied:
            yield from _write_rest(store, plan, ended)
        return changed.applied
    state = WorkflowState.RUNNING if nodes else WorkflowState.COMPLETED
    same = {key: "" for key, node in roots if has_key(node.job)}
    order = now + SAME_US if same else None
    head = msgspec.structs.replace(head, state=state, started=len(nodes), same=same)
    if not nodes:
        head = msgspec.structs.replace(head, ended_us=now)
        order = now + head.kept_us
    begun_now = [Add(node_id(group, key), {"state": int(NodeState.SUBMITTED)}) for key, _ in roots]
    changes: list[RecordChange] = [name, written_head(group, head, 0, order=order)]
    jobs = tuple(node.job for _, node in roots)
    changed = yield store.records.change((*changes, *puts, *begun_now), jobs=jobs)
    if changed.applied and not nodes:
        ended(group, head)
    yield from StoredWorkflow(store, group, ended).note_answers(jobs, changed)
    return changed.applied


def _write_rest(store: Store, plan: WorkflowPlan, ended: Ended) -> Asking[None]:
    """Write the nodes that are not stored yet, seal the workflow and begin it."""
    group, nodes = plan.group, plan.nodes
    left = [written_node(group, key, node) for key, node in nodes]
    while left:
        size = 0
        part: list[Put] = []
        for put in left[:_PART_NODES]:
            size += len(put.document)
            if part and size > _PART_BYTES:
                break
            part.append(put)
        changed: Changed = yield store.records.change(part)
        if changed.applied:
            left = left[len(part) :]
        else:  # written by an earlier try
            there = {part[at].id for at in changed.conflicts}
            left = [put for put in left if put.id not in there]
    if not (yield from _sealed(store, group)):
        raise UsageError(
            f"workflow {group.key!r} was started by another producer meanwhile, or took longer "
            "than an hour to be written; nothing of this one runs: start it again"
        )
    roots = {key: NodeView(node, {}) for key, node in nodes if not node.waits}
    yield from StoredWorkflow(store, group, ended).begin(roots)


def _sealed(store: Store, group: Group) -> Asking[bool]:
    found = yield from read_workflow(store, group)
    if found is None:
        return False
    head, version = found
    if head.state is not WorkflowState.BUILDING:
        return True
    now = yield from store_clock(store.records)
    sealed = msgspec.structs.replace(head, state=WorkflowState.RUNNING)
    put = written_head(group, sealed, version, order=now + AGAIN_US)
    changed: Changed = yield store.records.change((put,))
    return changed.applied


# --------------------------------------------------------------------------- cancelling, retrying


def cancelled(store: Store, group: Group, ended: Ended) -> Asking[bool]:
    """Cancel a workflow: its jobs, and the nodes behind them; False if it had ended."""
    found = yield from read_workflow(store, group)
    if found is None or not is_live(found[0]):
        return False
    if found[0].state is WorkflowState.BUILDING:
        changed: Changed = yield store.records.change((drop_head(group, *found),))
        return changed.applied

    def halt(folder: Folder) -> Generator[Asked, Any, None]:
        folder.head = msgspec.structs.replace(folder.head, halted=True)
        return folder.go_on()

    workflow = StoredWorkflow(store, group, ended)
    yield from workflow.advance(halt)
    halted = yield from workflow.begin()
    if halted is not None:
        yield from workflow.follow(halted)
    yield from workflow.cancel_jobs()
    yield from workflow.fold_all()
    return True


def retried(store: Store, group: Group, ended: Ended) -> Asking[int]:
    """Retry nodes that are dead or were cancelled, and revive the nodes behind them."""
    name: Record | None = yield store.records.record(name_id(group.tenant, group.key))
    if name is not None and name.document.decode() != group.run:
        other = yield from read_workflow(store, group._replace(run=name.document.decode()))
        if other is not None and is_live(other[0]):
            raise UsageError(
                f"workflow {group.key!r} runs again already, so that this earlier run of it stays "
                "as it is; wait for the other one, or cancel it"
            )
    workflow = StoredWorkflow(store, group, ended)
    yield from workflow.fold_all()

    def resume(folder: Folder) -> Generator[Asked, Any, None]:
        folder.head = msgspec.structs.replace(folder.head, halted=False)
        return folder.go_on()

    yield from workflow.advance(resume)
    nodes = yield from nodes_of(store, group)
    states = {key: view.state for key, view in nodes}
    over = [key for key, state in states.items() if state in (NodeState.DEAD, NodeState.CANCELLED)]
    others = yield from _without_stand_ins(
        store, group, [each for each in nodes if each[0] in over]
    )
    answers = yield from _redriven(store, group, [key for key in over if key not in others])
    yield from workflow.fold_all()
    again = [key for key, state in states.items() if state is NodeState.DROPPED]
    # The job of a node may have been deleted since: the workflow keeps what it takes to submit it.
    again += [*others, *(key for key in answers if answers[key] is RedriveAnswer.UNKNOWN)]
    for key in again:

        def revive(folder: Folder, key: str = key) -> Generator[Asked, Any, None]:
            return folder.revived(key)

        yield from workflow.advance(revive)
    yield from workflow.begin()
    return len(again) + sum(each is RedriveAnswer.REDRIVEN for each in answers.values())


def _redriven(store: Store, group: Group, keys: Sequence[str]) -> Asking[dict[str, RedriveAnswer]]:
    """Redrive the jobs of nodes; return the answer for each."""
    answers: list[RedriveAnswer] = []
    for at in range(0, len(keys), _REDRIVEN):
        ids = [node_job_id(group, key) for key in keys[at : at + _REDRIVEN]]
        answers += yield store.jobs.redrive(ids, tenant=group.tenant or None)
    return dict(zip(keys, answers, strict=True))


def _without_stand_ins(
    store: Store, group: Group, nodes: Sequence[tuple[str, NodeView]]
) -> Asking[list[str]]:
    """Forget the jobs that stood in for ended nodes; return these nodes, to submit them again."""
    found = []
    for key, view in nodes:
        named = alias_of(node_job_id(group, key))
        if has_key(view.document.job) and (yield store.records.record(named)) is not None:
            yield store.records.change((Remove(named),))
            found.append(key)
    return found
