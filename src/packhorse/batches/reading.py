# SPDX-License-Identifier: MIT
"""Read what the members of a batch came to: the results of their items, and those that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from packhorse.client.connection import Connection
from packhorse.client.registry import TaskDefinition
from packhorse.client.waiting import WAIT_FLOOR_S
from packhorse.core.batches import (
    BATCH_KIND,
    BatchDocument,
    Chunk,
    ItemError,
    member_id,
    read_batch,
)
from packhorse.core.chunks import ChunkState, ItemState
from packhorse.core.clock import pass_idle
from packhorse.core.job import AttemptError, JobRecord, JobStatus
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.records import Record, RecordId
from packhorse.core.redaction import redacted_text
from packhorse.group_errors import BatchItemFailed, BatchNotFound
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store

R = TypeVar("R")
T = TypeVar("T")

#: Members that are looked at together where results come as they end.
_WINDOW: Final = 100


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
    after: int | None = None  #: a number of a member


class Item(msgspec.Struct, Generic[R], frozen=True):
    """An item of a member that has ended."""

    index: int
    result: R | None = None
    failure: BatchFailure | None = None


class MemberReader(Generic[R]):
    """Reads members of a batch that have ended."""

    def __init__(self, connection: Connection, task: TaskDefinition | None) -> None:
        self._connection = connection
        self._task = task

    def items(self, batch: BatchDocument, number: int) -> Asking[list[Item[R]] | None]:
        """What the items of a member came to, those that were not run left out.

        None: it has not ended.
        """
        job_id, store = member_id(batch.group, number), self._connection.store
        record: JobRecord | None = yield store.inspection.job(job_id)
        if record is None:
            return []  # removed, or never stored
        if not record.status.is_final:
            return None
        if batch.single:
            return self._single(record, number)
        chunk = msgspec.json.decode(record.payload, type=Chunk)
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
        told = ItemError("", "", "") if error is None else _as_item_error(error)
        return [self._failed(record, number, record.payload, told)]

    def _kept(self, record: JobRecord, chunk: Chunk, state: ChunkState) -> Iterator[Item[R]]:
        is_dead = record.status is JobStatus.DEAD
        error = record.error
        for at, payload in enumerate(chunk.items):
            item, index = state.items.get(at), chunk.first + at
            if item is not None and item.state is ItemState.DONE:
                yield Item(index, self._decoded(item.result))
            elif item is not None and item.error is not None and is_dead:
                yield self._failed(record, index, bytes(payload), item.error)
            elif is_dead and error is not None:  # it died before it came to this one
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
    """The items of a batch as its members end."""

    def __init__(
        self,
        connection: Connection,
        task: TaskDefinition | None,
        document: Callable[[], Asking[BatchDocument]],
    ) -> None:
        self._connection = connection
        self._reader: MemberReader[R] = MemberReader(connection, task)
        self._document = document
        self._window: dict[int, None] = {}  # members that are looked at
        self._after = 0

    def items(self, *, ordered: bool) -> Iterator[Item[R]]:
        """In order, or as members end; waits for those that have not."""
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
        """Look at the next members; says whether there are any, or may be."""
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
        """Wait until the batch, or the first member looked at, has moved on."""
        number = next(iter(self._window), None)
        topics = {f"record:{BATCH_KIND}"}
        if number is not None:
            topics.add(f"job:{member_id(batch.group, number)}")
        listener = store.wakeups.listen(frozenset(topics))
        try:
            if number is not None:
                await store.arun(store.jobs.await_finish(member_id(batch.group, number)))
            if not await listener.wait(WAIT_FLOOR_S):
                pass_idle(self._connection.clock, WAIT_FLOOR_S)
        finally:
            listener.close()


def _as_item_error(error: AttemptError) -> ItemError:
    return ItemError(error.type, error.message, error.code)


def failures_of(
    connection: Connection, named: RecordId, batch_id: str
) -> Asking[list[BatchFailure]]:
    """The items of a batch that have failed for good, in order."""
    record: Record | None = yield connection.store.records.record(named)
    if record is None:
        raise BatchNotFound(batch_id)
    batch = read_batch(record.document)
    reader: MemberReader[Any] = MemberReader(connection, None)
    found: list[BatchFailure] = []
    for number in batch.maybe_dead if batch.failed else ():
        items = yield from reader.items(batch, number)
        found += [item.failure for item in items or () if item.failure is not None]
    return sorted(found, key=lambda failure: failure.index)


def failure_page(
    connection: Connection, named: RecordId, batch_id: str, after: int
) -> Asking[FailurePage]:
    """Failed items of the members from number `after` on, of at most a hundred of them."""
    record: Record | None = yield connection.store.records.record(named)
    if record is None:
        raise BatchNotFound(batch_id)
    batch = read_batch(record.document)
    reader: MemberReader[Any] = MemberReader(connection, None)
    left = [number for number in batch.maybe_dead if number >= after] if batch.failed else []
    found: list[BatchFailure] = []
    for number in left[:_WINDOW]:
        items = yield from reader.items(batch, number)
        found += [item.failure for item in items or () if item.failure is not None]
    ordered = sorted(found, key=lambda failure: failure.index)
    return FailurePage(tuple(ordered), left[_WINDOW] if len(left) > _WINDOW else None)


def result_of(item: Item[R], failed: str) -> Iterator[R]:
    """The result of an item; of one that failed, nothing, or what is raised."""
    if item.failure is None:
        yield item.result  # type: ignore[misc]  # None is a result too
    elif failed == "raise":
        raise BatchItemFailed(item.failure.job_id, item.failure.index, item.failure.message)
