# SPDX-License-Identifier: MIT
"""What ties a handler's context to the worker that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.context import Context
from packhorse.job import JobRecord, JobStatus, Progress
from packhorse.stores.protocol import Store
from packhorse.worker.attempt import Attempt
from packhorse.worker.lease import OwnLease
from packhorse.worker.progress import ProgressBoard

__all__ = ["ContextMaker"]


class ContextMaker:
    """Makes contexts for attempts of one worker."""

    def __init__(self, store: Store, lease: OwnLease, progress: ProgressBoard, worker: str) -> None:
        self.store = store
        self.lease = lease
        self.progress = progress
        self.worker = worker
        self.state: Mapping[str, Any] = {}  #: what the lifespan hooks yielded

    def make(self, attempt: Attempt) -> Context:
        """The context of one attempt."""
        link = _Link(self, attempt)
        return Context(attempt.job, link, worker=self.worker, state=self.state)


class _Link:
    """The `packhorse.context.Link` of one attempt."""

    __slots__ = ("_attempt", "_maker")

    def __init__(self, maker: ContextMaker, attempt: Attempt) -> None:
        self._maker = maker
        self._attempt = attempt

    def note_progress(self, progress: Progress) -> None:
        self._maker.progress.note(self._attempt, progress)

    def lease_lost(self) -> bool:
        return self._maker.lease.lost_since(self._attempt.epoch)

    def still_mine(self) -> bool:
        store = self._maker.store
        return self._is_mine(store.run(store.inspection.job(self._attempt.job.id)))

    async def astill_mine(self) -> bool:
        store = self._maker.store
        return self._is_mine(await store.arun(store.inspection.job(self._attempt.job.id)))

    def _is_mine(self, record: JobRecord | None) -> bool:
        if record is None or record.status is not JobStatus.PROCESSING:
            return False
        return record.fence == self._attempt.job.fence and not record.cancel_requested
