# SPDX-License-Identifier: MIT
"""The progress of a batch: in the shape of the worker protocol, and passed to `on_progress`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from packhorse.client.store_access import Connection
from packhorse.core.batches import BatchDocument
from packhorse.errors import PackhorseError, StoreUnavailable
from packhorse.events.groups import CancelledBatch, CompletedBatch, EndedBatch, FailedBatch
from packhorse.group_errors import BatchNotFound
from packhorse.protocol import UNSET, BatchProgress, wire_datetime
from packhorse.protocol.scalars import BatchStatus

_LOG: Final = logging.getLogger("packhorse")
#: Between two looks at a batch whose members are folded by another process.
_LOOK_S: Final = 1.0

#: Called with `processed`, `total` and `failed`.
OnProgress = Callable[[Mapping[str, int]], object]


def batch_progress(batch: BatchDocument) -> BatchProgress:
    """Describe the progress of a batch."""
    started_us, finished_us = batch.started_us, batch.finished_us
    return BatchProgress(
        batch_id=batch.id,
        total=batch.items,
        processed=batch.processed,
        succeeded=batch.succeeded,
        failed=batch.failed,
        percentage=batch.percentage,
        status=BatchStatus(batch.status),
        started_at=UNSET if started_us is None else wire_datetime(started_us),
        completed_at=UNSET if finished_us is None else wire_datetime(finished_us),
    )


def batch_ended(batch: BatchDocument, worker: str = "") -> EndedBatch:
    """Make the event of a batch that has ended."""
    kinds: dict[str, type[EndedBatch]] = {"completed": CompletedBatch, "cancelled": CancelledBatch}
    return kinds.get(batch.status, FailedBatch)(
        worker=worker,
        batch=batch.id,
        task=batch.job.task,
        tenant=batch.job.tenant,
        total=batch.items,
        succeeded=batch.succeeded,
        failed=batch.failed,
    )


class ProgressWatchers:
    """The `on_progress` functions of this process, called after each member of a batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[
            str, tuple[OnProgress, int]
        ] = {}  # with the number of ends it was called for

    def add(self, batch_id: str, function: OnProgress) -> None:
        """Call a function whenever the batch has made progress."""
        with self._lock:
            self._functions[batch_id] = (function, 0)

    def wants(self, batch_id: str) -> bool:
        """Return whether a batch has a function to call."""
        return batch_id in self._functions

    def tell(self, batch: BatchDocument) -> None:
        """Call the function of a batch, once for each progress; log what it raises."""
        with self._lock:
            function, told = self._functions.get(batch.id, (None, 0))
            if function is None:
                return
            self._functions[batch.id] = (function, max(told, batch.news))
            if batch.finished_us is not None:
                del self._functions[batch.id]
        if batch.news <= told:
            return
        news: dict[str, Any] = {
            "processed": batch.processed,
            "total": batch.items,
            "failed": batch.failed,
        }
        try:
            function(news)
        except Exception:  # noqa: BLE001 - it is the user's
            _LOG.exception("on_progress of batch %s raised; the batch goes on", batch.id)


def follow(
    watchers: ProgressWatchers,
    batch_id: str,
    read: Callable[[], Awaitable[BatchDocument]],
    connection: Connection,
) -> Callable[[], None]:
    """Return the loop of a thread that follows a batch whose members other processes may run.

    It does not repeat what a worker of this process has reported meanwhile.
    """

    async def look() -> None:
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        before: BatchDocument | None = None
        while watchers.wants(batch_id):
            await asyncio.sleep(_LOOK_S)
            if before is not None:
                watchers.tell(before)  # one round late: a worker of this process reports first
            try:
                before = await read()
            except BatchNotFound:
                continue  # it is just being begun
            except StoreUnavailable:
                continue

    def run() -> None:
        try:
            connection.wait(lambda _store: look())
        except PackhorseError:
            return  # the app was closed

    return run
