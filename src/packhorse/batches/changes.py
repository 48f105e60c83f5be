# SPDX-License-Identifier: MIT
"""Read and change the record of a batch: cancel the batch in steps, run failed items again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from packhorse.core.batches import (
    BatchDocument,
    BatchMoved,
    cancel_told,
    cancelled_batch,
    going_on,
    member_id,
    put_batch,
    read_batch,
)
from packhorse.core.job import JobRecord, JobStatus
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import Record
from packhorse.group_errors import BatchConflict, BatchNotFound
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, store_clock
from packhorse.stores.requests import RedriveAnswer

#: Members cancelled or redriven in one step.
_STEP: Final = 500
#: Tries of a change that conflicts with others.
_TRIES: Final = 100
_RETRIED: Final = frozenset({JobStatus.DEAD, JobStatus.CANCELLED})


class BatchCancelled(msgspec.Struct, frozen=True):
    """How far the cancelling of a batch is."""

    members: int  #: jobs of the batch
    told: int  #: how many of them have been cancelled, or told to stop
    running: int  #: of these, in this call, those that workers hold; workers stop or skip them

    @property
    def is_done(self) -> bool:
        """Whether every member has been cancelled or told to stop."""
        return self.told >= self.members


def stored_batch(store: Store, group: Group) -> Asking[tuple[BatchDocument, int]]:
    """Read a batch and the version of its record; `BatchNotFound` if there is none."""
    record: Record | None = yield store.records.record(group.record)
    if record is None:
        raise BatchNotFound(group.key)
    return read_batch(record.document), record.version


def changed_batch(
    store: Store,
    group: Group,
    change: Callable[[BatchDocument, int], BatchMoved],
    ended: Callable[[BatchDocument], None] = lambda _batch: None,
) -> Asking[tuple[BatchDocument, int]]:
    """Write what `change` makes of a batch at the store's time; try again after a conflict.

    Return the batch and its version. `ended` is called if the batch had not ended before.
    """
    for _ in range(_TRIES):
        before, version = yield from stored_batch(store, group)
        moved = change(before, (yield from store_clock(store.records)))
        if moved.document == before:
            return before, version
        put = put_batch(moved.document, version)
        changed: Changed = yield store.records.change((put,), jobs=moved.jobs)
        if changed.applied:
            if before.finished_us is None:
                ended(moved.document)
            return moved.document, changed.versions[0]
    raise BatchConflict(group.key, "is changed by others all the time; try again")


class BatchChanges:
    """Cancel or retry one batch."""

    def __init__(self, store: Store, group: Group, ended: Callable[[BatchDocument], None]) -> None:
        self._store = store
        self._group = group
        self._ended = ended  #: called with the batch after a change that may have ended it

    def cancel_step(self, running: int) -> Asking[BatchCancelled]:
        """Cancel some members; earlier steps found `running` of them held by workers."""
        batch = yield from self._changed(cancelled_batch)
        begin, gone = batch.cancelled, 0
        end = min(begin + _STEP, batch.members)
        for number in range(begin, end):
            named = member_id(batch.group, number)
            answer: CancelAnswer = yield self._store.jobs.cancel(named)
            running += answer is CancelAnswer.FLAGGED
            gone += answer is CancelAnswer.UNKNOWN
        if end > begin:
            batch = yield from self._changed(
                lambda each, now_us: cancel_told(each, (begin, end), gone, now_us)
            )
        return BatchCancelled(batch.members, batch.cancelled, running)

    def retried(self) -> Asking[int]:
        """Run members again that failed, and those that were not run because of a failure."""
        batch, _ = yield from stored_batch(self._store, self._group)
        if batch.stopped == "cancelled":
            raise BatchConflict(self._group.key, "was cancelled: begin another one")
        numbers = batch.maybe_dead
        yield from self._changed(going_on)
        retried = 0
        for begin in range(0, len(numbers), _STEP):
            part = [member_id(batch.group, number) for number in numbers[begin : begin + _STEP]]
            if len(numbers) == batch.members:
                part = yield from self._retriable(part)
            answers: tuple[RedriveAnswer, ...] = yield self._store.jobs.redrive(part)
            retried += sum(answer is RedriveAnswer.REDRIVEN for answer in answers)
        return retried

    def _retriable(self, job_ids: Sequence[str]) -> Asking[list[str]]:
        found = []
        for job_id in job_ids:
            record = yield self._store.inspection.job(job_id)
            if record is not None and record.status in _RETRIED:
                found.append(job_id)
        return found

    def _changed(self, change: Callable[[BatchDocument, int], BatchMoved]) -> Asking[BatchDocument]:
        changed = yield from changed_batch(self._store, self._group, change, self._ended)
        return changed[0]


def with_start(store: Store, batch: BatchDocument) -> Asking[BatchDocument]:
    """Add when the first member began, which the record of a batch knows only at the end."""
    if batch.started_us is not None or not batch.members:
        return batch
    first: JobRecord | None = yield store.inspection.job(member_id(batch.group, 0))
    if first is None or first.started_us is None:
        return batch
    return msgspec.structs.replace(batch, started_us=first.started_us)
