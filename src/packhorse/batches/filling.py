# SPDX-License-Identifier: MIT
"""Fill a batch from an iterator: cut items into jobs, and store them a page at a time.

Each page is stored with the place in the iterator, in one change, so that after a producer died
half-way another one can go on from there. No more than a page is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.batches.changes import changed_batch, stored_batch
from packhorse.call import Call
from packhorse.client.registry import TaskDefinition
from packhorse.client.sealed_store import sealed_job
from packhorse.core.batches import (
    BatchDocument,
    BatchMoved,
    filled,
    member_id,
    put_batch,
    sealed_batch,
)
from packhorse.core.codec import PAYLOAD_BYTES_MAX
from packhorse.core.job import NewJob
from packhorse.core.keys import taken_key
from packhorse.core.policies.records import Put, RecordId
from packhorse.errors import ConfigError, PayloadError
from packhorse.group_errors import BatchConflict
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RefusedJob, store_clock

#: The records that hold the tenant of a batch, by its id.
BATCH_ID_KIND: Final = "batch_id"
#: Jobs of one change, and bytes of their items.
_PAGE_JOBS: Final = 50
_PAGE_SINGLES: Final = 500
_PAGE_BYTES: Final = 1024 * 1024
#: Tries of a change that conflicts with the fold of ended members.
_TRIES: Final = 100


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


def owner_record(batch: BatchDocument) -> Put | None:
    """Return the record that finds the tenant of a batch by its id; None if it has no tenant."""
    if not batch.job.tenant:
        return None
    return Put(RecordId(BATCH_ID_KIND, "", batch.id), batch.job.tenant.encode(), 0)


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
            if batch.sealed or batch.stopped:
                what = batch.stopped or "filled"
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
            puts = [put_batch(moved.document, self._version)]
            owner = owner_record(moved.document) if not self._version else None
            puts += [] if owner is None else [owner]
            changed: Changed = yield self._store.records.change(puts, jobs=moved.jobs)
            if changed.applied:
                self._batch, self._version = moved.document, changed.versions[0]
                self._require_stored(changed)
                return self._batch
            if not self._version:
                raise BatchConflict(self._batch.id, "is there already: resume it, or cancel it")
            place, producer = moved.document.place, self._batch.producer
            before = self._batch.place
            stored = yield from stored_batch(self._store, self._batch.group)
            self._batch, self._version = stored
            if self._batch.producer != producer:
                raise BatchConflict(self._batch.id, "is filled by another producer by now")
            if self._batch.place == place and place != before:
                return self._batch  # the answer got lost, and it was written
            if self._batch.stopped:
                raise BatchConflict(self._batch.id, f"was {self._batch.stopped} meanwhile")
        raise BatchConflict(self._batch.id, "is changed by others all the time; resume it")

    def _moved(self, items: Sequence[bytes], *, last: bool) -> Asking[BatchMoved]:
        singles = [self._single(payload) for payload in items] if self._batch.single else ()
        moved = filled(self._batch, items, place=len(items), singles=singles)
        if not last:
            return moved
        ended = sealed_batch(moved.document, (yield from store_clock(self._store.records)))
        return BatchMoved(ended.document, (*moved.jobs, *ended.jobs))

    def _single(self, payload: bytes) -> NewJob:
        """Make the job of an item that has one to itself."""
        task, keys = self._task, {}
        if task.concurrency_key is not None:
            keys["concurrency_key"] = taken_key(task.concurrency_key, task, payload)
        if task.rate_key is not None:
            keys["rate_key"] = taken_key(task.rate_key, task, payload)
        return msgspec.structs.replace(self._batch.job, payload=payload, **keys)

    def _require_stored(self, changed: Changed) -> None:
        """Raise if jobs were refused; the store keeps them as dead letters."""
        refused = [one for one in changed.jobs if isinstance(one, RefusedJob)]
        if refused:
            raise ConfigError(
                f"{len(refused)} jobs of batch {self._batch.id!r} were refused, and are dead "
                f"letters: {refused[0].reason}; batch.retry_failed() runs them once that is mended"
            )
