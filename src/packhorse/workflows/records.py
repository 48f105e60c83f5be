# SPDX-License-Identifier: MIT
"""Read, fold and advance a stored workflow; for workers and for handles alike.

Every function yields plans, which its caller runs. Each change puts the head of its workflow, so
that of two callers that do the same, one has a conflict and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.client.sealed_store import sealed_job
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobRecord, JobStatus, Member, NewJob
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.journal import LINES_MAX, Group, JournalLine, member_of
from packhorse.core.policies.records import Add, Put, Record, RecordChange, RecordId, Remove
from packhorse.core.references import Wanted
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
    name_id,
    node_id,
    node_job_id,
    node_prefix,
    read_head,
    written_head,
)
from packhorse.errors import JobConflict, StoreError, UsageError
from packhorse.stores.intake import alias_of
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage, store_clock
from packhorse.stores.requests import Submitted

Views = Mapping[str, NodeView]

#: Names of attachments that hold the nodes a node has added begin with it.
GROWN_PREFIX: Final = "flow:"
#: A worker finishes what the starter of a workflow left undone after this time.
AGAIN_US: Final = 5 * SECOND_US
#: How often a worker checks whether a job that stands in for a node has ended.
SAME_US: Final = SECOND_US
_PAGE: Final = 500
#: Most workflows have fewer nodes, and a larger page would read the nodes of others.
_FIRST_PAGE: Final = 20
#: Tries of a change that conflicts with others.
_TRIES: Final = 100
#: Folds that a handle does itself, to see the effect of what it asked for.
_FOLDS: Final = 1_000


#: Called by the writer of a change that ended a workflow, so that its event is emitted once.
Ended = Callable[[Group, HeadDocument], None]


class Addition(msgspec.Struct, frozen=True):
    """A node that an attempt adds, as it is kept with its job."""

    fence: int  #: of the attempt; additions of earlier attempts do not count
    number: int
    node: NodeDocument


_ADDITIONS: Final = msgspec.json.Decoder(Addition)


class Folds(NamedTuple):
    """What some journal lines change."""

    line_ids: tuple[int, ...]
    changes: tuple[RecordChange, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    ended: HeadDocument | None = None  #: the head, if the workflow ends by it


def read_workflow(store: Store, group: Group) -> Asking[tuple[HeadDocument, int] | None]:
    """Read the head of a workflow with its version; None if it is removed, or being removed."""
    record: Record | None = yield store.records.record(group.record)
    if record is None:
        return None
    head = read_head(record.document)
    return None if head.removing else (head, record.version)


def is_live(head: HeadDocument | None) -> bool:
    """Return whether a workflow has not ended."""
    return head is not None and not head.removing and not head.state.is_final


def nodes_of(store: Store, group: Group) -> Asking[list[tuple[str, NodeView]]]:
    """Read all nodes of a workflow, sorted by their keys."""
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


def job_of(store: Store, job_id: str) -> Asking[JobRecord | None]:
    """Read the job of an id, or the one that stands in for it."""
    record: JobRecord | None = yield store.inspection.job(job_id)
    if record is None:
        alias: Record | None = yield store.records.record(alias_of(job_id))
        if alias is not None:
            record = yield store.inspection.job(alias.document.decode())
    return record


def jobs_of_parents(store: Store, wanted: Wanted, job_id: str) -> Asking[list[JobRecord | None]]:
    """Read the jobs whose results a node takes; None: that one ended and did not complete.

    A result that should be there and is not is an error: it must not become null in silence.
    """
    group, found = Group.of(wanted.member.group), list[JobRecord | None]()
    for key, other in zip(wanted.nodes, wanted.job_ids, strict=True):
        record = yield from job_of(store, other)
        if record is None or record.status is not JobStatus.COMPLETED:
            node: Record | None = yield store.records.record(node_id(group, key))
            parent = None if node is None else NodeView.of(node)
            runs = record is not None and not record.status.is_final
            _require_ended(parent, group, other, job_id, runs=runs)
            record = None
        found.append(record)
    return found


def _require_ended(
    parent: NodeView | None, group: Group, other: str, job_id: str, *, runs: bool
) -> None:
    """Refuse to run a node whose parent has completed, or is being run again."""
    if parent is None:
        why, advice = f"job {other} is not kept any more", "start the workflow again"
    elif runs or not parent.state.has_ended:
        why = f"node {parent.document.name!r} is being run again"
        advice = f"retry this job once job {other} has ended"
    elif parent.state is NodeState.COMPLETED:
        why = f"node {parent.document.name!r} has completed, but the result of job {other} is gone"
        advice = "cancel the workflow, and start it again"
    else:
        return
    raise JobConflict(
        f"{why}, and job {job_id} of workflow {group.key!r} has its result among its arguments; "
        f"{advice}",
        job_id=other,
    )


def growing(store: Store, member: Member) -> Asking[int]:
    """Note that a running node may add others; return how many nodes its workflow has."""
    group = Group.of(member.group)
    found = yield from read_workflow(store, group)
    if found is None or found[0].halted:
        raise UsageError(
            f"workflow {group.key!r} was cancelled, or is no longer kept: it takes no more nodes"
        )
    # Only a hint for the fold to look for them: they are kept with the job, under its fence.
    yield store.records.change((Add(node_id(group, member.node), {"grows": 1}),))
    return found[0].size


class StoredWorkflow:
    """One run of a workflow in a store; `ended` is called when a change of it ends the run."""

    def __init__(self, store: Store, group: Group, ended: Ended) -> None:
        self._store = store
        self._group = group
        self._ended = ended

    # ------------------------------------------------------------------------------- advancing

    def folded(self, lines: Sequence[JournalLine]) -> Asking[Folds]:
        """Return what journal lines change; lines of a removed workflow change nothing."""
        found = yield from read_workflow(self._store, self._group)
        if found is None:
            return Folds(tuple(line.id for line in lines))
        head, version = found
        folder = Folder(self._group, head)
        yield from self._answer(folder.fold(lines), {})
        is_same = folder.head == head and not folder.changes and not folder.jobs
        if is_same and not folder.has_ended:
            return Folds(tuple(folder.line_ids))
        put = yield from self._put_head(head, folder, version)
        ended = folder.head if folder.has_ended else None
        return Folds(tuple(folder.line_ids), (put, *folder.changes), tuple(folder.jobs), ended)

    def fold_all(self) -> Asking[None]:
        """Fold all journal lines of the workflow now, before a worker does."""
        journal = self._store.journal
        for _ in range(_FOLDS):
            lines: Sequence[JournalLine] = yield journal.journal(self._group, limit=LINES_MAX)
            if not lines:
                return
            fold = yield from self.folded(lines)
            changed: Changed = yield journal.fold(
                self._group, fold.line_ids, fold.changes, jobs=fold.jobs
            )
            if changed.applied and fold.ended is not None:
                self._ended(self._group, fold.ended)
            yield from self.note_answers(fold.jobs, changed)

    def advance(
        self, work: Callable[[Folder], Generator[Asked, Any, None]], known: Views | None = None
    ) -> Asking[HeadDocument | None]:
        """Change the workflow without journal lines; return its head, or None if it is removed.

        `known` are nodes that need not be read, unless another process changes the workflow.
        """
        for _ in range(_TRIES):
            found = yield from read_workflow(self._store, self._group)
            if found is None:
                return None
            head, version = found
            folder = Folder(self._group, head)
            yield from self._answer(work(folder), known or {})
            put = yield from self._put_head(head, folder, version)
            changed: Changed = yield self._store.records.change(
                (put, *folder.changes), jobs=tuple(folder.jobs)
            )
            if changed.applied:
                if folder.has_ended:
                    self._ended(self._group, folder.head)
                yield from self.note_answers(folder.jobs, changed)
                return folder.head
            known = None
        raise StoreError(
            f"workflow {self._group.key!r} is changed by others all the time; try again"
        )

    def begin(self, known: Views | None = None) -> Asking[HeadDocument | None]:
        """Advance until every node without parents is submitted, and no node is left to update."""
        while True:

            def work(folder: Folder) -> Generator[Asked, Any, None]:
                rest = range(folder.head.started + 1, folder.head.nodes + 1)
                keys = (str(number) for number in rest)
                if known is not None:
                    keys = (key for key in keys if key in known)
                return folder.begin(keys)

            head = yield from self.advance(work, known)
            if head is None or (head.started >= head.nodes and not head.stack):
                return head

    def keep_up(self, record: Record) -> Asking[None]:
        """Do what is due without a journal line: advance, cancel what is left, or remove it."""
        head = read_head(record.document)
        if head.removing or head.state.is_final or head.state is WorkflowState.BUILDING:
            yield from removed(self._store, self._group, record)
            return
        now = yield from self.begin()
        if now is not None and now.same:
            yield from self.follow(now)
        if head.halted:
            yield from self.cancel_jobs()

    def cancel_jobs(self) -> Asking[int]:
        """Cancel the jobs of the workflow; return how many there were."""
        count, group = 0, self._group
        for key, view in (yield from nodes_of(self._store, group)):
            if view.state is NodeState.SUBMITTED:
                yield self._store.jobs.cancel(node_job_id(group, key), tenant=group.tenant or None)
                count += 1
        return count

    # ----------------------------------------------------------- nodes that are other jobs

    def note_answers(self, jobs: Sequence[NewJob], changed: Changed) -> Asking[None]:
        """Note which jobs stand in for nodes with keys; `follow` repeats it after a crash."""
        for job, answer in zip(jobs, changed.jobs, strict=False):
            if has_key(job) and isinstance(answer, Submitted):
                yield from self._note(job, answer.job_id, answer.status)

    def _note(self, job: NewJob, other: str, status: JobStatus) -> Asking[HeadDocument | None]:
        """Note that the job `other`, of this status, stands in for the job of a node."""
        member = member_of(job.options)
        key = "" if member is None else member.node
        if other != job.id:
            alias = Put(alias_of(job.id), other.encode(), keep_us=FAILED_KEPT_US)
            yield self._store.records.change((alias,))
        return (yield from self.advance(lambda folder: folder.answered(key, other, status)))

    def follow(self, head: HeadDocument) -> Asking[bool]:
        """Check whether jobs that stand in for nodes have ended; return whether one has."""
        before, records = head.completed + head.failed, self._store.records
        for key, other in head.same.items():
            record: Record | None = yield records.record(node_id(self._group, key))
            if record is None:
                continue
            job = NodeView.of(record).document.job
            found = yield from job_of(self._store, other or job.id)
            if found is not None:
                head = (yield from self._note(job, found.id, found.status)) or head
            elif other:  # it was removed, so it had ended; how is not known any more
                head = (yield from self._note(job, other, JobStatus.DEAD)) or head
            else:  # the answer was lost: submit it again
                changed: Changed = yield records.change((), jobs=(job,))
                yield from self.note_answers((job,), changed)
        return head.completed + head.failed != before

    # --------------------------------------------------------------------------- for a folder

    def _answer(self, asking: Generator[Asked, Any, None], known: Views) -> Asking[None]:
        """Read what a folder asks for, until it is done."""
        answer: Any = None
        while True:
            try:
                asked = asking.send(answer)
            except StopIteration:
                return
            if isinstance(asked, Grown):
                answer = yield from self._added_nodes(asked.node)
            elif asked in known:
                answer = known[asked]
            else:
                named = node_id(self._group, asked)
                record: Record | None = yield self._store.records.record(named)
                answer = None if record is None else NodeView.of(record)

    def _added_nodes(self, node: str) -> Asking[list[NodeDocument]]:
        """Read the nodes that the last attempt of a node added."""
        store, job_id = self._store, node_job_id(self._group, node)
        record: JobRecord | None = yield store.inspection.job(job_id)
        kept: Attachments | None = yield store.attachments.attachments(job_id)
        if record is None or kept is None:
            return []
        found = [
            _ADDITIONS.decode(require_open(value, job_id, "steps"))
            for name, value in kept.values.items()
            if name.startswith(GROWN_PREFIX)
        ]
        own = sorted((each.number, each.node) for each in found if each.fence == record.fence)
        return [msgspec.structs.replace(each, job=sealed_job(store, each.job)) for _, each in own]

    def _put_head(self, before: HeadDocument, folder: Folder, version: int) -> Asking[Put]:
        """Return the put of the head, with the time when a worker must look at it again."""
        after, group = folder.head, self._group
        if after.state.is_final:
            ended_us = None if folder.has_ended else before.ended_us
            if ended_us is None:
                ended_us = yield from store_clock(self._store.records)
            after = msgspec.structs.replace(after, ended_us=ended_us)
            return written_head(group, after, version, order=ended_us + after.kept_us)
        after = msgspec.structs.replace(after, ended_us=None)
        unfinished = bool(after.stack or after.same) or after.started < after.nodes or after.halted
        again_us = SAME_US if after.same else AGAIN_US
        order = (yield from store_clock(self._store.records)) + again_us if unfinished else None
        return written_head(group, after, version, order=order)


def drop_head(group: Group, head: HeadDocument, version: int) -> Put:
    """Return the put that hides a workflow; `removed` deletes it, now or later."""
    gone = msgspec.structs.replace(head, removing=True)
    return written_head(group, gone, version, order=0)


def removed(store: Store, group: Group, record: Record) -> Asking[None]:
    """Remove a workflow in bounded parts, its head last."""
    head, version = read_head(record.document), record.version
    if not head.removing:
        changed: Changed = yield store.records.change((drop_head(group, head, version),))
        if not changed.applied:
            return
        version = changed.versions[0]
    prefix = node_prefix(group)
    while True:
        page: RecordPage = yield store.records.records(
            NODE_KIND,
            tenant=group.tenant,
            after=RecordId(NODE_KIND, group.tenant, prefix).text,
            limit=min(_PAGE, head.size + 1),
        )
        own = [each.id for each in page.records if each.id.key.startswith(prefix)]
        if not own:
            break
        yield store.records.change([Remove(named) for named in own])
    last: list[RecordChange] = [Remove(group.record, version)]
    name: Record | None = yield store.records.record(name_id(group.tenant, group.key))
    if name is not None and name.document == group.run.encode():
        last.append(Remove(name.id, name.version))
    yield store.records.change(last)
