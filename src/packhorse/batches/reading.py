# SPDX-License-Identifier: MIT
"""Read what the members of a batch came to: the results of their items, and those that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from packhorse.batches.changes import stored_batch
from packhorse.client.registry import TaskDefinition
from packhorse.client.store_access import Connection
from packhorse.client.waiting import next_look
from packhorse.core.batches import (
    BATCH_KIND,
    BatchDocument,
    Chunk,
    ItemError,
    member_id,
    read_chunk,
)
from packhorse.core.chunks import ChunkState, ItemState
from packhorse.core.job import AttemptError, JobRecord, JobStatus
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.journal import Group
from packhorse.core.redaction import redacted_text
from packhorse.group_errors import BatchConflict, BatchItemFailed
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store

R = TypeVar("R")
T = TypeVar("T")

#: Members read at once, where order does not matter.
_WINDOW: Final = 100


#: Members read for one page of failures.
FAILED_MEMBERS: Final = 100


class BatchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a batch that failed for good."""

    index: int  #: in the batch, from 0
    item: Any  #: its arguments by name, as plain JSON data
    type: str
    message: str
    code: str
    job_id: str  #: of the job it belongs to


class FailurePage(msgspec.Struct, frozen=True):
    """Some of the items of a batch that failed, and where the next page begins."""

    failures: tuple[BatchFailure, ...]
    after: int | None = None  #: the number of a member


class Item(msgspec.Struct, Generic[R], frozen=True):
    """An item of a member that has ended."""

    index: int
    result: R | None = None
    failure: BatchFailure | None = None


class MemberReader(Generic[R]):
    """Read the items of members that have ended."""

    def __init__(self, connection: Connection, task: TaskDefinition | None) -> None:
        self._connection = connection
        self._task = task

    def items(
        self, batch: BatchDocument, number: int, *, removed: bool = False
    ) -> Asking[list[Item[R]] | None]:
        """Return the items of a member that were run; None if it has not ended.

        A job that was removed is a `BatchConflict`, unless it may be `removed`: the batch counts
        its items.
        """
        job_id, store = member_id(batch.group, number), self._connection.store
        record: JobRecord | None = yield store.inspection.job(job_id)
        if record is None:
            if removed:
                return []
            raise BatchConflict(
                batch.id,
                f"has lost results that it counts: its job {job_id} (number {number}, from 0) was "
                "deleted after the batch had ended, or was not carried to this store; run its "
                "items in another batch",
            )
        if not record.status.is_final:
            return None
        if batch.single:
            return self._single(record, number)
        chunk = read_chunk(record.payload)
        if record.status is JobStatus.COMPLETED and record.result not in (None, b"null"):
            results = msgspec.json.decode(record.result or b"[]", type=list[msgspec.Raw])
            return [Item(chunk.first + at, self._decoded(each)) for at, each in enumerate(results)]
        kept: Attachments | None = yield store.attachments.attachments(job_id)
        values = {} if kept is None else kept.values
        return list(self._kept(record, chunk, ChunkState(len(chunk.items), values)))

    def _single(self, record: JobRecord, number: int) -> list[Item[R]]:
        if record.status is JobStatus.COMPLETED:
            result = self._decoded(msgspec.Raw(record.result or b"null"))
            return [Item(number, result)]
        if record.status is not JobStatus.DEAD:
            return []
        error = record.error
        failure = ItemError("", "", "") if error is None else _as_item_error(error)
        return [self._failed(record, number, record.payload, failure)]

    def _kept(self, record: JobRecord, chunk: Chunk, state: ChunkState) -> Iterator[Item[R]]:
        is_dead = record.status is JobStatus.DEAD
        error = record.error
        for at, payload in enumerate(chunk.items):
            item, index = state.items.get(at), chunk.first + at
            if item is not None and item.state is ItemState.DONE:
                yield Item(index, self._decoded(item.result))
            elif item is not None and item.error is not None and is_dead:
                yield self._failed(record, index, bytes(payload), item.error)
            elif is_dead and error is not None:  # the job died before it ran this item
                yield self._failed(record, index, bytes(payload), _as_item_error(error))

    def _failed(self, record: JobRecord, index: int, payload: bytes, error: ItemError) -> Item[R]:
        failure = BatchFailure(
            index=index,
            item=msgspec.json.decode(payload),
            type=error.type,
            message=redacted_text(self._connection.bus.redact, error.message),
            code=error.code,
            job_id=record.id,
        )
        return Item(index, failure=failure)

    def _decoded(self, result: msgspec.Raw) -> Any:
        text = bytes(result)
        if self._task is None:
            return msgspec.json.decode(text)
        return self._task.signature.decode_result(text)


class ItemStream(Generic[R]):
    """Yield the items of a batch as its members end."""

    def __init__(
        self,
        connection: Connection,
        task: TaskDefinition | None,
        document: Callable[[], Asking[BatchDocument]],
    ) -> None:
        self._connection = connection
        self._reader: MemberReader[R] = MemberReader(connection, task)
        self._document = document
        self._window: dict[int, None] = {}  # members that are awaited, in order
        self._after = 0

    def items(self, *, ordered: bool) -> Iterator[Item[R]]:
        """Yield items in order, or as members end; wait for members that have not."""
        while True:
            batch = self._connection.drive(self._document())
            if not self._fill(batch, ordered=ordered):
                return
            ended = self._connection.drive(self._ended(batch))
            yield from ended
            if not ended:
                self._connection.wait(partial(self._moved_on, batch=batch))

    async def aitems(self, *, ordered: bool) -> AsyncIterator[Item[R]]:
        """As `items`, for `async for`."""
        store = await self._connection.astore()
        while True:
            batch = await self._connection.adrive(self._document())
            if not self._fill(batch, ordered=ordered):
                return
            ended = await self._connection.adrive(self._ended(batch))
            for item in ended:
                yield item
            if not ended:
                await self._moved_on(store, batch)

    def _fill(self, batch: BatchDocument, *, ordered: bool) -> bool:
        """Add members to the window; return whether there are any, or may be later."""
        most = 1 if ordered else _WINDOW
        while len(self._window) < most and self._after < batch.members:
            self._window[self._after] = None
            self._after += 1
        return bool(self._window) or batch.finished_us is None

    def _ended(self, batch: BatchDocument) -> Asking[list[Item[R]]]:
        found: list[Item[R]] = []
        for number in list(self._window):
            items = yield from self._reader.items(batch, number)
            if items is not None:
                del self._window[number]
                found += items
        return found

    async def _moved_on(self, store: Store, batch: BatchDocument) -> None:
        """Wait until the batch or the first awaited member has changed."""
        number = next(iter(self._window), None)
        topics = {f"record:{BATCH_KIND}"}
        if number is not None:
            topics.add(f"job:{member_id(batch.group, number)}")
        with closing(store.wakeups.listen(frozenset(topics))) as listener:
            if number is not None:
                await store.arun(store.jobs.await_finish(member_id(batch.group, number)))
            await next_look(listener, self._connection.clock)


def _as_item_error(error: AttemptError) -> ItemError:
    return ItemError(error.type, error.message, error.code)


def failures_of(
    connection: Connection, group: Group, after: int = 0, most: int | None = None
) -> Asking[FailurePage]:
    """Return the items that have failed for good, in order, from member number `after` on.

    It reads all members that may have failed, or at most `most` of them.
    """
    batch, _ = yield from stored_batch(connection.store, group)
    reader: MemberReader[Any] = MemberReader(connection, None)
    left = [number for number in batch.maybe_dead if number >= after] if batch.failed else []
    most = len(left) if most is None else most
    found: list[BatchFailure] = []
    for number in left[:most]:
        items = yield from reader.items(batch, number, removed=True)
        found += [item.failure for item in items or () if item.failure is not None]
    ordered = sorted(found, key=lambda failure: failure.index)
    return FailurePage(tuple(ordered), left[most] if len(left) > most else None)


def result_of(item: Item[R], failed: str) -> Iterator[R]:
    """Yield the result of an item; skip one that failed, or raise its failure."""
    if item.failure is None:
        yield item.result  # type: ignore[misc]  # None is a result too
    elif failed == "raise":
        raise BatchItemFailed(item.failure.job_id, item.failure.index, item.failure.message)
