# SPDX-License-Identifier: MIT
"""Workflows in a store: read, fold, go on with; for workers and for handles alike.

Everything here asks for plans, one after the other, and is run by who has the store. Each
change puts the head of its workflow, so that of two that do the same one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from packhorse.client.sealed_store import sealed_job
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobRecord, JobStatus, Member, NewJob
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.journal import LINES_MAX, Group, JournalLine, member_of
from packhorse.core.policies.records import Add, Put, Record, RecordChange, RecordId
from packhorse.core.sealing import require_open
from packhorse.core.workflow_folding import Asked, Folder, Grown
from packhorse.core.workflows import (
    FAILED_KEPT_US,
    NODE_KIND,
    HeadDocument,
    NodeDocument,
    NodeState,
    NodeView,
    WorkflowState,
    has_key,
    node_id,
    node_job_id,
    node_prefix,
    read_head,
    written_head,
)
from packhorse.errors import StoreError, UsageError
from packhorse.stores.intake import alias_of
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage, store_clock
from packhorse.stores.requests import Submitted
from packhorse.workflows.removal import removed

T = TypeVar("T")
Views = Mapping[str, NodeView]

#: Attachments with nodes that a node adds begin with it.
GROWN_PREFIX: Final = "flow:"
#: After so long a worker goes on with what its beginner has left.
AGAIN_US: Final = 5 * SECOND_US
#: After so long it is looked whether a job has ended that answers for a node.
SAME_US: Final = SECOND_US
_PAGE: Final = 500
_FIRST_PAGE: Final = 20  #: most have fewer nodes, and behind them those of others would be read
#: How often a change is tried again that another one came before.
_TRIES: Final = 100
#: Folds that a handle does for a workflow, when it wants to see what came of its asking.
_FOLDS: Final = 1_000


#: Is told of a workflow that has ended by a change, by who wrote it, so that it is told once.
Ended = Callable[[Group, HeadDocument], None]


class Addition(msgspec.Struct, frozen=True):
    """A node that an attempt adds, as it is kept with its job."""

    fence: int  #: of the attempt; those of earlier ones do not count
    number: int
    node: NodeDocument


class Folds(NamedTuple):
    """What some lines come to."""

    line_ids: tuple[int, ...]
    changes: tuple[RecordChange, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    ended: HeadDocument | None = None  #: the head of a workflow that has ended by it


def read_workflow(store: Store, group: Group) -> Asking[tuple[HeadDocument, int] | None]:
    """The head of a workflow, with its version; None: it is gone, or going."""
    record: Record | None = yield store.records.record(group.record)
    if record is None:
        return None
    head = read_head(record.document)
    return None if head.removing else (head, record.version)


def is_live(head: HeadDocument | None) -> bool:
    """Whether it has not ended."""
    return head is not None and not head.removing and not head.state.is_final


def nodes_of(store: Store, group: Group) -> Asking[list[tuple[str, NodeView]]]:
    """All nodes of a workflow, by their keys."""
    prefix, found, limit = node_prefix(group), list[tuple[str, NodeView]](), _FIRST_PAGE
    after: str | None = RecordId(NODE_KIND, group.tenant, prefix).text
    while after is not None:
        page: RecordPage = yield store.records.records(
            NODE_KIND, tenant=group.tenant, after=after, limit=limit
        )
        after, limit = page.after, _PAGE
        for record in page.records:
            if not record.id.key.startswith(prefix):
                after = None
                break
            found.append((record.id.key.removeprefix(prefix), NodeView.of(record)))
    return sorted(found, key=lambda each: [int(part) for part in each[0].split(".")])


# ---------------------------------------------------------------------------------------- folding


def folded(store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Folds]:
    """What lines of the journal come to; those of a workflow that is gone count nowhere."""
    found = yield from read_workflow(store, group)
    if found is None:
        return Folds(tuple(line.id for line in lines))
    head, version = found
    folder = Folder(group, head)
    yield from _answered(store, group, folder.fold(lines), {})
    is_same = folder.head == head and not folder.changes and not folder.jobs
    if is_same and not folder.has_ended:
        return Folds(tuple(folder.line_ids))
    put = yield from _put(store, group, head, folder, version)
    ended = folder.head if folder.has_ended else None
    return Folds(tuple(folder.line_ids), (put, *folder.changes), tuple(folder.jobs), ended)


def fold_group(store: Store, group: Group, ended: Ended) -> Asking[None]:
    """Fold all lines of a workflow now, as a worker would soon."""
    for _ in range(_FOLDS):
        lines: Sequence[JournalLine] = yield store.journal.journal(group, limit=LINES_MAX)
        if not lines:
            return
        fold = yield from folded(store, group, lines)
        changed: Changed = yield store.journal.fold(
            group, fold.line_ids, fold.changes, jobs=fold.jobs
        )
        if changed.applied and fold.ended is not None:
            ended(group, fold.ended)
        yield from noted(store, group, fold.jobs, changed, ended)


def advanced(
    store: Store,
    group: Group,
    work: Callable[[Folder], Generator[Asked, Any, None]],
    ended: Ended,
    known: Views | None = None,
) -> Asking[HeadDocument | None]:
    """Change a workflow without lines of the journal; returns its head, or None if it is gone.

    `known` are nodes that need not be read, as long as no other process changes the workflow.
    """
    for _ in range(_TRIES):
        found = yield from read_workflow(store, group)
        if found is None:
            return None
        head, version = found
        folder = Folder(group, head)
        yield from _answered(store, group, work(folder), known or {})
        put = yield from _put(store, group, head, folder, version)
        changed: Changed = yield store.records.change(
            (put, *folder.changes), jobs=tuple(folder.jobs)
        )
        if changed.applied:
            if folder.has_ended:
                ended(group, folder.head)
            yield from noted(store, group, folder.jobs, changed, ended)
            return folder.head
        known = None
    raise StoreError(f"workflow {group.key!r} is changed by others all the time; try again")


def begun(
    store: Store, group: Group, ended: Ended, known: Views | None = None
) -> Asking[HeadDocument | None]:
    """Go on until every node without parents is submitted, and everybody was told."""
    while True:

        def work(folder: Folder) -> Generator[Asked, Any, None]:
            rest = range(folder.head.started + 1, folder.head.nodes + 1)
            keys = (str(number) for number in rest)
            if known is not None:
                keys = (key for key in keys if key in known)
            return folder.begin(keys)

        head = yield from advanced(store, group, work, ended, known)
        if head is None or (head.started >= head.nodes and not head.stack):
            return head


# -------------------------------------------------------------------- nodes that are other jobs


def noted(
    store: Store, group: Group, jobs: Sequence[NewJob], changed: Changed, ended: Ended
) -> Asking[None]:
    """Keep which jobs answer for nodes with keys; who dies before leaves it to the next look."""
    for job, answer in zip(jobs, changed.jobs, strict=False):
        if has_key(job) and isinstance(answer, Submitted):
            yield from _noted(store, group, job, (answer.job_id, answer.status), ended)


def _noted(
    store: Store, group: Group, job: NewJob, answer: tuple[str, JobStatus], ended: Ended
) -> Asking[HeadDocument | None]:
    (other, status), member = answer, member_of(job.options)
    key = "" if member is None else member.node
    if other != job.id:
        alias = Put(alias_of(job.id), other.encode(), keep_us=FAILED_KEPT_US)
        yield store.records.change((alias,))
    return (
        yield from advanced(store, group, lambda folder: folder.answered(key, other, status), ended)
    )


def followed(store: Store, group: Group, head: HeadDocument, ended: Ended) -> Asking[bool]:
    """Look whether jobs have ended that answer for nodes of a workflow; says whether one had."""
    before = head.completed + head.failed
    for key, other in head.same.items():
        record: Record | None = yield store.records.record(node_id(group, key))
        if record is None:
            continue
        job = NodeView.of(record).document.job
        found = yield from job_of(store, other or job.id)
        if found is not None:
            head = (yield from _noted(store, group, job, (found.id, found.status), ended)) or head
        elif other:  # it was removed, so it had ended; how, no one knows
            head = (yield from _noted(store, group, job, (other, JobStatus.DEAD), ended)) or head
        else:  # the answer got lost
            changed: Changed = yield store.records.change((), jobs=(job,))
            yield from noted(store, group, (job,), changed, ended)
    return head.completed + head.failed != before


def job_of(store: Store, job_id: str) -> Asking[JobRecord | None]:
    """The job of an id, or the one that answers for it."""
    record: JobRecord | None = yield store.inspection.job(job_id)
    if record is None:
        alias: Record | None = yield store.records.record(alias_of(job_id))
        if alias is not None:
            record = yield store.inspection.job(alias.document.decode())
    return record


def _answered(
    store: Store, group: Group, asking: Generator[Asked, Any, None], known: Views
) -> Asking[None]:
    """Answer what a fold asks for."""
    answer: Any = None
    while True:
        try:
            asked = asking.send(answer)
        except StopIteration:
            return
        if isinstance(asked, Grown):
            answer = yield from _grown(store, group, asked.node)
        elif asked in known:
            answer = known[asked]
        else:
            record: Record | None = yield store.records.record(node_id(group, asked))
            answer = None if record is None else NodeView.of(record)


def _grown(store: Store, group: Group, node: str) -> Asking[list[NodeDocument]]:
    """The nodes that the last attempt of a node added."""
    job_id = node_job_id(group, node)
    record: JobRecord | None = yield store.inspection.job(job_id)
    kept: Attachments | None = yield store.attachments.attachments(job_id)
    if record is None or kept is None:
        return []
    found = [
        msgspec.json.decode(require_open(value, job_id, "steps"), type=Addition)
        for name, value in kept.values.items()
        if name.startswith(GROWN_PREFIX)
    ]
    own = sorted((each.number, each.node) for each in found if each.fence == record.fence)
    return [msgspec.structs.replace(node, job=sealed_job(store, node.job)) for _number, node in own]


def growing(store: Store, member: Member) -> Asking[int]:
    """Note that a running node may add others; returns how many its workflow has."""
    group = Group.of(member.group)
    found = yield from read_workflow(store, group)
    if found is None or found[0].halted:
        raise UsageError(
            f"workflow {group.key!r} was cancelled, or is no longer kept: it takes no more nodes"
        )
    # A hint, by which its fold looks for them: what counts is kept with the job, under its fence.
    yield store.records.change((Add(node_id(group, member.node), {"grows": 1}),))
    return found[0].size


def _put(
    store: Store, group: Group, before: HeadDocument, folder: Folder, version: int
) -> Asking[Put]:
    """The head as it is written, and when it is to be looked at without a line of the journal."""
    after = folder.head
    if after.state.is_final:
        ended_us = None if folder.has_ended else before.ended_us
        if ended_us is None:
            ended_us = yield from store_clock(store.records)
        after = msgspec.structs.replace(after, ended_us=ended_us)
        return written_head(group, after, version, order=ended_us + after.kept_us)
    after = msgspec.structs.replace(after, ended_us=None)
    unfinished = bool(after.stack or after.same) or after.started < after.nodes or after.halted
    again_us = SAME_US if after.same else AGAIN_US
    order = (yield from store_clock(store.records)) + again_us if unfinished else None
    return written_head(group, after, version, order=order)


# -------------------------------------------------------------------------------------- cancelling


def kept_up(store: Store, record: Record, ended: Ended) -> Asking[None]:
    """Do what is due of a workflow without a line: go on, cancel what is left, or remove it."""
    group, head = Group.of(record.id.text), read_head(record.document)
    if head.removing or head.state.is_final or head.state is WorkflowState.BUILDING:
        yield from removed(store, group, record)
        return
    now = yield from begun(store, group, ended)
    if now is not None and now.same:
        yield from followed(store, group, now, ended)
    if head.halted:
        yield from cancelled_jobs(store, group)


def cancelled_jobs(store: Store, group: Group) -> Asking[int]:
    """Cancel the jobs of a workflow that are there; returns how many were."""
    count = 0
    for key, view in (yield from nodes_of(store, group)):
        if view.state is NodeState.SUBMITTED:
            yield store.jobs.cancel(node_job_id(group, key), tenant=group.tenant or None)
            count += 1
    return count


# Known before threads decode them: two that decode the first one at once crash in msgspec.
msgspec.json.Decoder(Addition)
