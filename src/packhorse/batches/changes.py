# SPDX-License-Identifier: MIT
"""Read and change the record of a batch: fill it, cancel it in steps, run failed items again.

A batch is filled from an iterator, whose items are cut into jobs and stored a page at a time. Each
page is stored with the place in the iterator, in one change, so that after a producer died half-way
another one can go on from there. No more than a page is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.call import Call
from packhorse.client.registry import TaskDefinition
from packhorse.client.sealed_store import sealed_job
from packhorse.core.batches import (
    BatchDocument,
    BatchMoved,
    cancel_told,
    cancelled_batch,
    filled,
    going_on,
    member_id,
    put_batch,
    put_owner,
    read_batch,
    sealed_batch,
)
from packhorse.core.codec import PAYLOAD_BYTES_MAX
from packhorse.core.job import JobRecord, JobStatus, NewJob
from packhorse.core.keys import taken_key
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import Record
from packhorse.errors import ConfigError, PayloadError
from packhorse.group_errors import BatchConflict, BatchNotFound
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RefusedJob, store_clock
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
    ended: bool = False  #: the batch had ended before it was cancelled, and stays as it ended

    @property
    def is_done(self) -> bool:
        """Whether every member has been cancelled or told to stop, or none had to be."""
        return self.ended or self.told >= self.members


#: Called with a batch after a change that has ended it.
Ended = Callable[[BatchDocument], None]


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
    ended: Ended = lambda _batch: None,
) -> Asking[tuple[BatchDocument, int]]:
    """Write what `change` makes of a batch at the store's time; try again after a conflict.

    Return the batch and its version. `ended` is called if the batch had not ended before.
    """
    for _ in range(_TRIES):
        before, version = yield from stored_batch(store, group)
        moved = change(before, (yield from store_clock(store.records)))
        if moved.document == before:
            return before, version
        puts = (put_batch(moved.document, version), *put_owner(before, moved.document))
        changed: Changed = yield store.records.change(puts, jobs=moved.jobs)
        if changed.applied:
            if before.finished_us is None:
                ended(moved.document)
            return moved.document, changed.versions[0]
    raise BatchConflict(group.key, "is changed by others all the time; try again")


def cancel_step(store: Store, group: Group, ended: Ended, running: int) -> Asking[BatchCancelled]:
    """Cancel some members; earlier steps found `running` of them held by workers."""
    batch, _ = yield from changed_batch(store, group, cancelled_batch, ended)
    if not batch.is_cancelled:
        return BatchCancelled(batch.members, batch.cancelled, running, ended=True)
    begin, gone = batch.cancelled, 0
    end = min(begin + _STEP, batch.members)
    for number in range(begin, end):
        answer: CancelAnswer = yield store.jobs.cancel(member_id(group, number))
        running += answer is CancelAnswer.FLAGGED
        gone += answer is CancelAnswer.UNKNOWN
    if end > begin:

        def told(each: BatchDocument, now_us: int) -> BatchMoved:
            return cancel_told(each, (begin, end), gone, now_us)

        batch, _ = yield from changed_batch(store, group, told, ended)
    return BatchCancelled(batch.members, batch.cancelled, running)


def retried(store: Store, group: Group, ended: Ended) -> Asking[int]:
    """Run members again that failed, and those that were not run because of a failure."""
    batch, _ = yield from stored_batch(store, group)
    if batch.is_cancelled:
        raise BatchConflict(group.key, "was cancelled: begin another one")
    numbers = batch.maybe_dead
    yield from changed_batch(store, group, going_on, ended)
    count = 0
    for begin in range(0, len(numbers), _STEP):
        part = [member_id(group, number) for number in numbers[begin : begin + _STEP]]
        if len(numbers) == batch.members:
            part = yield from _retriable(store, part)
        answers: tuple[RedriveAnswer, ...] = yield store.jobs.redrive(part)
        count += sum(answer is RedriveAnswer.REDRIVEN for answer in answers)
    return count


def _retriable(store: Store, job_ids: Sequence[str]) -> Asking[list[str]]:
    found = []
    for job_id in job_ids:
        record = yield store.inspection.job(job_id)
        if record is not None and record.status in _RETRIED:
            found.append(job_id)
    return found


def with_start(store: Store, batch: BatchDocument) -> Asking[BatchDocument]:
    """Add when the first member began, which the record of a batch knows only at the end."""
    if batch.started_us is not None or not batch.members:
        return batch
    first: JobRecord | None = yield store.inspection.job(member_id(batch.group, 0))
    if first is None or first.started_us is None:
        return batch
    return msgspec.structs.replace(batch, started_us=first.started_us)


#: Jobs of one change, and bytes of their items.
_PAGE_JOBS: Final = 50
_PAGE_SINGLES: Final = 500
_PAGE_BYTES: Final = 1024 * 1024


def item_payload(task: TaskDefinition, item: Any) -> bytes:
    """Encode an item: arguments by name, or the value of the only parameter."""
    names = task.signature.names
    if isinstance(item, Call):
        if item.definition is not task:
            raise PayloadError(f"a call of task {item.task} was given to a batch of {task.name}")
        return item.payload
    if isinstance(item, Mapping) and (len(names) != 1 or set(item) == set(names)):
        return task.encode((), dict(item))
    return task.encode((item,), {})


def single_job(task: TaskDefinition, job: NewJob, payload: bytes) -> NewJob:
    """Make the job of an item that has one to itself; keys that a caller gave are before others."""
    keys = {}
    if task.concurrency_key is not None and job.concurrency_key is None:
        keys["concurrency_key"] = taken_key(task.concurrency_key, task, payload)
    rates_tenants = task.bound is not None and task.bound.rates_tenants
    if task.rate_key is not None and job.rate_key is None and not rates_tenants:
        keys["rate_key"] = taken_key(task.rate_key, task, payload)
    return msgspec.structs.replace(job, payload=payload, **keys)


def _sealed(store: Store, batch: BatchDocument) -> BatchDocument:
    """Give callbacks their ids, and encrypt their arguments if the store encrypts jobs."""
    named = {
        kind: msgspec.structs.replace(job, id=member_id(batch.group, f"on_{kind}"))
        for kind, job in batch.callbacks.items()
    }
    callbacks = {kind: sealed_job(store, job) for kind, job in named.items()}
    return msgspec.structs.replace(batch, callbacks=callbacks)


class Filler:
    """Fill one batch, as its producer."""

    def __init__(self, store: Store, task: TaskDefinition, batch: BatchDocument) -> None:
        self._store = store
        self._task = task
        self._batch = _sealed(store, batch)
        self._version = 0  #: of its record, as it was written or read last
        self._items: list[bytes] = []
        self._bytes = 0
        self._chunk_bytes = 0
        size = 1 if batch.single else batch.batch_size
        self._page = (_PAGE_SINGLES if batch.single else _PAGE_JOBS) * size
        self._size = size

    @property
    def place(self) -> int:
        """How many items the batch has taken so far."""
        return self._batch.place

    def resume(self, producer: str) -> Asking[None]:
        """Take over a stored batch from the producer it had."""

        def taken_over(batch: BatchDocument, _now_us: int) -> BatchMoved:
            if batch.sealed:
                what = "cancelled" if batch.is_cancelled else "filled"
                raise BatchConflict(batch.id, f"is {what} already: nothing can be added to it")
            return BatchMoved(msgspec.structs.replace(batch, producer=producer))

        changed = yield from changed_batch(self._store, self._batch.group, taken_over)
        self._batch, self._version = changed

    def tell(self, error: BaseException) -> None:
        """Add to the error that ended a producer what became of the batch."""
        if self._version and hasattr(error, "add_note"):
            error.add_note(
                f"batch {self._batch.id!r} is open, with {self._batch.place} items: go on with "
                "batch.resume(items), or end it with batch.cancel()"
            )

    def add(self, item: Any) -> bool:
        """Take an item; return whether the page is full, and must be written."""
        payload = item_payload(self._task, item)
        at_chunk = len(self._items) % self._size == 0
        self._chunk_bytes = len(payload) + (0 if at_chunk else self._chunk_bytes)
        if self._chunk_bytes > PAYLOAD_BYTES_MAX:
            raise PayloadError(
                f"{self._size} items of batch {self._batch.id!r} have more than "
                f"{PAYLOAD_BYTES_MAX} bytes together: give a smaller batch_size, or references"
            )
        self._items.append(payload)
        self._bytes += len(payload)
        is_whole = len(self._items) % self._size == 0
        return is_whole and (len(self._items) >= self._page or self._bytes >= _PAGE_BYTES)

    def write(self, *, last: bool = False) -> Asking[BatchDocument]:
        """Store the page as jobs, with the place behind it; the last one seals the batch."""
        items, self._items, self._bytes = self._items, [], 0
        for _ in range(_TRIES):
            moved = yield from self._moved(items, last=last)
            before = self._batch if self._version else None
            owner = put_owner(before, moved.document)
            puts = (put_batch(moved.document, self._version), *owner)
            changed: Changed = yield self._store.records.change(puts, jobs=moved.jobs)
            if changed.applied:
                self._batch, self._version = moved.document, changed.versions[0]
                self._require_stored(changed)
                return self._batch
            if not self._version:
                raise BatchConflict(
                    self._batch.id,
                    "is there already, of this tenant or of another: resume it, cancel it, or give "
                    "another id",
                )
            place, producer = moved.document.place, self._batch.producer
            place_before = self._batch.place
            stored = yield from stored_batch(self._store, self._batch.group)
            self._batch, self._version = stored
            if self._batch.producer != producer:
                raise BatchConflict(self._batch.id, "is filled by another producer by now")
            if self._batch.place == place and place != place_before:
                return self._batch  # the answer got lost, and it was written
            # One that an error has stopped is filled all the same, or it would never end; the
            # members that come later do not start, and a retry runs them.
            if self._batch.is_cancelled:
                raise BatchConflict(self._batch.id, "was cancelled meanwhile")
        raise BatchConflict(self._batch.id, "is changed by others all the time; resume it")

    def _moved(self, items: Sequence[bytes], *, last: bool) -> Asking[BatchMoved]:
        singles = (
            [single_job(self._task, self._batch.job, each) for each in items]
            if self._batch.single
            else ()
        )
        moved = filled(self._batch, items, place=len(items), singles=singles)
        if not last:
            return moved
        ended = sealed_batch(moved.document, (yield from store_clock(self._store.records)))
        return BatchMoved(ended.document, (*moved.jobs, *ended.jobs))

    def _require_stored(self, changed: Changed) -> None:
        """Raise if jobs were refused; the store keeps them as dead letters."""
        refused = [one for one in changed.jobs if isinstance(one, RefusedJob)]
        if refused:
            raise ConfigError(
                f"{len(refused)} jobs of batch {self._batch.id!r} were refused, and are dead "
                f"letters: {refused[0].reason}; batch.retry_failed() runs them once that is mended"
            )
