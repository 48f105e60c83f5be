# SPDX-License-Identifier: MIT
"""A batch in the store: how far it is, what came of its items, and verbs that end or retry it.

batch = app.batch(task, items)         or `await app.abatch(...)`, `task.map(items)`
batch.progress(), watch(), wait_ended(), results(), failures(), retry_failed(), cancel()
app.batches.get(batch_id), all()       each verb has an a-twin
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

import msgspec

from packhorse.batches.changes import (
    BatchCancelled,
    Filler,
    cancel_step,
    retried,
    stored_batch,
    with_start,
)
from packhorse.batches.progress import batch_ended, batch_progress
from packhorse.batches.reading import (
    FAILED_MEMBERS,
    BatchFailure,
    FailurePage,
    ItemStream,
    failures_of,
    result_of,
)
from packhorse.client.registry import TaskDefinition
from packhorse.client.store_access import Asks, Connection
from packhorse.client.waiting import next_look
from packhorse.core.batches import BATCH_KIND, BatchDocument, batch_group, owner_id, read_batch
from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.durations import Duration, microseconds
from packhorse.core.generators import awaited, blocking
from packhorse.core.policies.records import Record
from packhorse.errors import ConfigError, ResultTimeout
from packhorse.protocol import BatchProgress
from packhorse.steps.cursor import asynchronous
from packhorse.stores.plan import Asking
from packhorse.stores.records import RecordPage, all_records

__all__ = ["Batch", "BatchCancelled", "BatchPage", "Batches"]

R = TypeVar("R")
T = TypeVar("T")


class Batch(Asks, Generic[R]):
    """A batch by its id; nothing is read before one of its verbs is called."""

    def __init__(
        self,
        batch_id: str,
        connection: Connection,
        *,
        tenant: str = "",
        task: TaskDefinition | None = None,
    ) -> None:
        super().__init__(connection)
        self.id = batch_id
        self.tenant = tenant
        self._task = task
        self._group = batch_group(batch_id, tenant)

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    # ---------------------------------------------------------------------------------- progress

    @blocking
    def progress(self) -> Asking[BatchProgress]:
        """How far it is, in the shape of the worker protocol; counts are exact."""
        return batch_progress((yield from self._document()))

    aprogress = awaited(progress)

    @blocking
    def document(self) -> Asking[BatchDocument]:
        """Everything that the store knows of it."""
        return self._document()

    adocument = awaited(document)

    async def watch(self) -> AsyncIterator[BatchProgress]:
        """How far it is now, and again whenever that changes, until it has ended."""
        store = await self._connection.astore()
        last: BatchProgress | None = None
        with closing(store.wakeups.listen(frozenset({f"record:{BATCH_KIND}"}))) as listener:
            while True:
                batch = await self._connection.adrive(self._document())
                progress = batch_progress(batch)
                if progress != last:
                    last = progress
                    yield progress
                if batch.finished_us is not None:
                    return
                await next_look(listener, self._connection.clock)

    def wait_ended(self, timeout: Duration | None = None) -> BatchProgress:
        """Wait until it has ended; raise `ResultTimeout` after `timeout`."""
        return self._connection.wait(lambda _store: self.await_ended(timeout))

    async def await_ended(self, timeout: Duration | None = None) -> BatchProgress:
        """As `wait_ended`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        left_us = None if timeout is None else microseconds(timeout, setting="timeout")
        left_s = None if left_us is None else left_us / SECOND_US
        try:
            async with asyncio.timeout(left_s):
                return [progress async for progress in self.watch()][-1]
        except TimeoutError:
            raise ResultTimeout(self.id, waited_s=left_s or 0, what="batch") from None

    # ---------------------------------------------------------------------------------- results

    def results(
        self, *, ordered: bool = True, failed: Literal["skip", "raise"] = "skip"
    ) -> Iterator[R]:
        """The results of its items, as soon as they are there: in order, or as members end.

        Items that failed, or were not run, are left out; `failed="raise"` raises the first.
        `BatchConflict` where a job was deleted, so that results are not there any more.
        """
        for item in self._stream.items(ordered=ordered):
            yield from result_of(item, failed)

    async def aresults(
        self, *, ordered: bool = True, failed: Literal["skip", "raise"] = "skip"
    ) -> AsyncIterator[R]:
        """As `results`, for `async for`."""
        async for item in self._stream.aitems(ordered=ordered):
            for result in result_of(item, failed):
                yield result

    @blocking
    def failures(self) -> Asking[list[BatchFailure]]:
        """The items that have failed for good so far, in order, with their errors."""
        page = yield from failures_of(self._connection, self._group)
        return list(page.failures)

    afailures = awaited(failures)

    async def afailure_page(self, after: int = 0) -> FailurePage:
        """Some of the items that have failed, from a bounded number of its jobs."""
        failures = failures_of(self._connection, self._group, after, FAILED_MEMBERS)
        return await self._connection.adrive(failures)

    # ---------------------------------------------------------------------------------- changing

    @blocking
    def retry_failed(self) -> Asking[int]:
        """Run the items that failed once more, and no others; return how many jobs that are."""
        return retried(self._connection.store, self._group, self._report_end)

    aretry_failed = awaited(retry_failed)

    def cancel(self) -> BatchCancelled:
        """End it: nothing more starts, and what runs is stopped. What is done stays done.

        One that has ended already stays as it is; then `ended` of the answer is True.
        """
        return list(self.cancelling())[-1]

    async def acancel(self) -> BatchCancelled:
        """As `cancel`, without blocking the event loop."""
        return [step async for step in self.acancelling()][-1]

    def cancelling(self) -> Iterator[BatchCancelled]:
        """As `cancel`, in steps of bounded size; yield how far it is after each."""
        running = 0
        while True:
            step = self._connection.drive(self._cancel_step(running))
            yield step
            if step.is_done:
                return
            running = step.running

    async def acancelling(self) -> AsyncIterator[BatchCancelled]:
        """As `cancelling`, for `async for`."""
        await self._connection.astore()
        running = 0
        while True:
            step = await self._connection.adrive(self._cancel_step(running))
            yield step
            if step.is_done:
                return
            running = step.running

    def resume(self, items: Iterable[Any]) -> Batch[R]:
        """Go on filling a batch whose producer died; give the same items in the same order.

        Those that are in the store already are skipped, so that none is there twice.
        """
        filler = self._connection.drive(self._resumed())
        self.fill(filler, islice(items, filler.place, None))
        return self

    async def aresume(self, items: Iterable[Any] | AsyncIterable[Any]) -> Batch[R]:
        """As `resume`, without blocking the event loop."""
        filler = await self._connection.adrive(self._resumed())
        await self.afill(filler, asynchronous(items), skip=filler.place)
        return self

    def _resumed(self) -> Asking[Filler]:
        batch = yield from self._document()
        task = self._task or self._connection.registry.get(batch.job.task)
        if task is None:
            raise ConfigError(
                f"batch {self.id!r} is of task {batch.job.task!r}, which this app does not know"
            )
        filler = Filler(self._connection.store, task, batch)
        yield from filler.resume(new_id())
        return filler

    def fill(self, filler: Filler, items: Iterable[Any]) -> None:
        """Store items as jobs of the batch, and seal it; for code that begins a batch."""
        try:
            for item in items:
                if filler.add(item):
                    self._connection.drive(filler.write())
            self._report_end(self._connection.drive(filler.write(last=True)))
        except BaseException as error:
            filler.tell(error)
            raise

    async def afill(self, filler: Filler, items: AsyncIterator[Any], *, skip: int = 0) -> None:
        """As `fill`, without blocking the event loop; skip the first `skip` items."""
        try:
            async for item in items:
                if skip:
                    skip -= 1
                elif filler.add(item):
                    await self._connection.adrive(filler.write())
            self._report_end(await self._connection.adrive(filler.write(last=True)))
        except BaseException as error:
            filler.tell(error)
            raise

    def _report_end(self, batch: BatchDocument) -> None:
        """Emit the event of a batch that ended without a worker: empty, or cancelled."""
        if batch.finished_us is not None:
            self._connection.bus.emit(batch_ended(batch))

    # ------------------------------------------------------------------------------------ asking

    def _cancel_step(self, running: int) -> Asking[BatchCancelled]:
        return cancel_step(self._connection.store, self._group, self._report_end, running)

    def _document(self) -> Asking[BatchDocument]:
        batch, _ = yield from stored_batch(self._connection.store, self._group)
        return (yield from with_start(self._connection.store, batch))

    @property
    def _stream(self) -> ItemStream[R]:
        return ItemStream(self._connection, self._task, self._document)


class BatchPage(msgspec.Struct, frozen=True):
    """Some batches, by tenant and id, and where the next page begins."""

    batches: tuple[BatchDocument, ...]
    after: str | None = None


class Batches(Asks):
    """The batches that a store holds, or a tenant's. Every verb has an a-twin."""

    def __init__(self, connection: Connection, tenant: str | None = None) -> None:
        super().__init__(connection)
        self._tenant = tenant

    @blocking
    def get(self, batch_id: str) -> Asking[Batch[Any]]:
        """Find one by its id; `BatchNotFound` if there is none here."""
        records, tenant = self._connection.store.records, self._tenant
        if tenant is None:
            owner: Record | None = yield records.record(owner_id(batch_id))
            tenant = "" if owner is None else owner.document.decode()
        group = batch_group(batch_id, tenant)
        batch, _ = yield from stored_batch(self._connection.store, group)
        task = self._connection.registry.get(batch.job.task)
        return Batch(batch.id, self._connection, tenant=batch.job.tenant, task=task)

    aget = awaited(get)

    @blocking
    def all(self) -> Asking[list[BatchProgress]]:
        """How far each of them is, the newest first."""
        records = self._connection.store.records
        page = yield from all_records(records, BATCH_KIND, tenant=self._tenant)
        found = yield from self._read(page.records)
        newest = sorted(found, key=lambda batch: -batch.created_us)
        return [batch_progress(batch) for batch in newest]

    aall = awaited(all)  # noqa: A003 - the verb above

    async def apage(self, *, limit: int = 50, after: str | None = None) -> BatchPage:
        """Some of them, by tenant and id: one look-up, and one more for each that has not ended."""
        return await self._connection.adrive(self._page(limit, after))

    def _page(self, limit: int, after: str | None) -> Asking[BatchPage]:
        records = self._connection.store.records
        page: RecordPage = yield records.records(
            BATCH_KIND, tenant=self._tenant, after=after, limit=limit
        )
        return BatchPage((yield from self._read(page.records)), page.after)

    def _read(self, records: Iterable[Record]) -> Asking[tuple[BatchDocument, ...]]:
        found = []
        for record in records:
            batch = read_batch(record.document)
            found.append((yield from with_start(self._connection.store, batch)))
        return tuple(found)
