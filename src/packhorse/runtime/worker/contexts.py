# SPDX-License-Identifier: MIT
"""Make the contexts of handlers, tied to the worker that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.context import Context
from packhorse.core.job import JobRecord, JobStatus, Progress
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.heartbeat import WorkerLease
from packhorse.runtime.worker.progress import ProgressWriter
from packhorse.stores.protocol import Store

__all__ = ["ContextFactory"]


class ContextFactory:
    """Makes contexts for attempts of one worker."""

    def __init__(
        self, store: Store, lease: WorkerLease, progress: ProgressWriter, worker: str
    ) -> None:
        self.store = store
        self.lease = lease
        self.progress = progress
        self.worker = worker
        self.state: Mapping[str, Any] = {}  #: what the lifespan hooks yielded

    def make(self, attempt: Attempt) -> Context:
        """The context of one attempt."""
        link = _ContextLink(self, attempt)
        return Context(
            attempt.job, link, worker=self.worker, state=self.state, tools=attempt.plan.tools
        )


class _ContextLink:
    """The `packhorse.context.AttemptHost` of one attempt."""

    __slots__ = ("_attempt", "_factory")

    def __init__(self, factory: ContextFactory, attempt: Attempt) -> None:
        self._factory = factory
        self._attempt = attempt

    def note_progress(self, progress: Progress) -> None:
        self._factory.progress.note(self._attempt, progress)

    def lease_lost(self) -> bool:
        return self._factory.lease.lost_since(self._attempt.epoch)

    def still_mine(self) -> bool:
        store = self._factory.store
        return self._is_mine(store.run(store.inspection.job(self._attempt.job.id)))

    async def astill_mine(self) -> bool:
        store = self._factory.store
        return self._is_mine(await store.arun(store.inspection.job(self._attempt.job.id)))

    def _is_mine(self, record: JobRecord | None) -> bool:
        if record is None or record.status is not JobStatus.PROCESSING:
            return False
        return record.fence == self._attempt.job.fence and not record.cancel_requested
