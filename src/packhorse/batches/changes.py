# SPDX-License-Identifier: MIT
"""Changes of a batch by hand: cancel it in steps, run once more what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

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
from packhorse.core.policies.records import Record, RecordId
from packhorse.group_errors import BatchConflict, BatchNotFound
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, store_clock
from packhorse.stores.requests import RedriveAnswer

T = TypeVar("T")

#: Members told in one step.
_STEP: Final = 500
#: How often a change is tried again that another one came before.
_TRIES: Final = 50
_RETRIED: Final = frozenset({JobStatus.DEAD, JobStatus.CANCELLED})


class BatchCancelled(msgspec.Struct, frozen=True):
    """How far a cancel of a batch is."""

    members: int  #: jobs of the batch
    told: int  #: of which so many have been told
    running: int  #: in this call, those that workers hold: what runs is stopped, the rest not begun

    @property
    def is_done(self) -> bool:
        """Whether all have been told."""
        return self.told >= self.members


class BatchChanges:
    """What may be done to one batch."""

    def __init__(
        self,
        store: Store,
        named: RecordId,
        batch_id: str,
        ended: Callable[[BatchDocument], None],
    ) -> None:
        self._store = store
        self._named = named
        self._id = batch_id
        self._ended = ended  #: told of a change by which it ends

    def read(self) -> Asking[Record]:
        """Its record."""
        record: Record | None = yield self._store.records.record(self._named)
        if record is None:
            raise BatchNotFound(self._id)
        return record

    def cancel_step(self, running: int) -> Asking[BatchCancelled]:
        """Cancel some members; `running` were found running by the steps before."""
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
        """Run once more what failed, and what was not run for that."""
        batch = read_batch((yield from self.read()).document)
        if batch.stopped == "cancelled":
            raise BatchConflict(self._id, "was cancelled: begin another one")
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
        """Write what `change` makes of the batch; again, where another change came before."""
        records = self._store.records
        for _ in range(_TRIES):
            record = yield from self.read()
            before = read_batch(record.document)
            moved = change(before, (yield from store_clock(records)))
            if moved.document == before:
                return before
            put = put_batch(moved.document, record.version)
            changed: Changed = yield records.change((put,), jobs=moved.jobs)
            if changed.applied:
                if before.finished_us is None:
                    self._ended(moved.document)
                return moved.document
        raise BatchConflict(self._id, "is changed by others all the time; try again")


def with_start(store: Store, batch: BatchDocument) -> Asking[BatchDocument]:
    """A batch as it is: it begins with its first member, of which its record tells at the end."""
    if batch.started_us is not None or not batch.members:
        return batch
    first: JobRecord | None = yield store.inspection.job(member_id(batch.group, 0))
    if first is None or first.started_us is None:
        return batch
    return msgspec.structs.replace(batch, started_us=first.started_us)
