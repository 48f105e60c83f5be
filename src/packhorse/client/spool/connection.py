# SPDX-License-Identifier: MIT
"""A connection whose submits do not fail while the store is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from packhorse.client.connection import Connection
from packhorse.client.registry import Registry
from packhorse.client.sealer import Sealer
from packhorse.client.spool.delivery import SpoolDelivery
from packhorse.client.spool.file import SpoolFile
from packhorse.core.clock import Clock
from packhorse.core.job import JobStatus, NewJob
from packhorse.core.process import at_fork
from packhorse.errors import StoreUnavailable
from packhorse.events import EventBus, JobsSpooled
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Submitted


class SpoolingConnection(Connection):
    """As `Connection`; what the store cannot take now is kept in a file and delivered later.

    While the file holds anything that this process knows of, every submit goes behind it: the
    store sees submissions in the order they were made.
    """

    def __init__(
        self,
        opener: Callable[[], Store],
        *,
        registry: Registry,
        bus: EventBus,
        clock: Clock,
        path: Path,
        sealer: Sealer | None = None,
    ) -> None:
        super().__init__(opener, registry=registry, bus=bus, clock=clock)
        self.spool = SpoolFile(path)
        self._sealer = sealer
        self._looked = False  # whether the file was looked at for what an earlier process left
        self._behind = False  # whether submits go to the file
        self._set_up()
        at_fork(self._set_up)

    def submit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        if self._goes_behind(jobs):
            return _kept(jobs)
        try:
            return super().submit(jobs, wait_us=wait_us, ids_are_new=ids_are_new)
        except StoreUnavailable as error:
            return self._keep(jobs, error)

    async def asubmit(
        self, jobs: Sequence[NewJob], *, wait_us: int | None = None, ids_are_new: bool = False
    ) -> tuple[Submitted, ...]:
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        # Only a look at two flags, unless something was spooled: then a file is written.
        may_wait = not self._looked or self._behind
        if may_wait and await asyncio.to_thread(self._goes_behind, jobs):
            return _kept(jobs)
        try:
            return await super().asubmit(jobs, wait_us=wait_us, ids_are_new=ids_are_new)
        except StoreUnavailable as error:
            return await asyncio.to_thread(self._keep, jobs, error)

    def close(self) -> Store | None:
        """As `Connection.close`; what is spooled stays in the file for the next start."""
        self._delivery.stop()
        self._looked = False
        return super().close()

    def _goes_behind(self, jobs: Sequence[NewJob]) -> bool:
        """Put a submission behind those that wait, if any do."""
        if self._looked and not self._behind:
            return False
        with self._order:
            if not self._looked:
                self._looked = True
                self._behind = bool(self.spool.first(1))
            if not self._behind:
                return False
            self._append(jobs)
        self._tell(jobs)
        return True

    def _keep(self, jobs: Sequence[NewJob], error: StoreUnavailable) -> tuple[Submitted, ...]:
        try:
            with self._order:
                self._behind = True
                self._append(jobs)
        except StoreUnavailable as also:
            raise StoreUnavailable(
                f"{error}; and {also}", job_id=error.job_id, maybe_stored=error.maybe_stored
            ) from error
        self._tell(jobs)
        return _kept(jobs)

    def _append(self, jobs: Sequence[NewJob]) -> None:
        now_us = self.clock.now_us()
        if self._sealer is not None:  # the file is no place for plain values either
            jobs = self._sealer.seal_jobs(jobs)
        self.spool.append([_timed(job, now_us) for job in jobs], now_us=now_us)
        self._delivery.start()

    def _tell(self, jobs: Sequence[NewJob]) -> None:
        # Outside the lock: an observer may submit something itself.
        self.bus.emit(JobsSpooled(jobs=len(jobs), path=str(self.spool.path)))

    def _emptied(self) -> bool:
        """The delivery found nothing more; look again under the lock, which every submit takes."""
        with self._order:
            self._behind = bool(self.spool.first(1))
            return not self._behind

    def _deliver(self, jobs: Sequence[NewJob]) -> object:
        return super().submit(jobs, wait_us=0)

    def _set_up(self) -> None:
        """A lock and a delivery of this process; neither comes along in a fork."""
        self._order = threading.Lock()
        self._looked = False
        self._delivery = SpoolDelivery(
            self.spool, self._deliver, bus=self.bus, clock=self.clock, emptied=self._emptied
        )


def _timed(job: NewJob, now_us: int) -> NewJob:
    """A delay counts from the submit, not from the delivery: it becomes an instant."""
    if job.delay_us == 0 or job.scheduled_us is not None:
        return job
    return msgspec.structs.replace(job, scheduled_us=now_us + job.delay_us, delay_us=0)


def _kept(jobs: Sequence[NewJob]) -> tuple[Submitted, ...]:
    return tuple(
        Submitted(
            job_id=job.id,
            deduplicated=False,
            status=JobStatus.PENDING if job.delay_us or job.scheduled_us else JobStatus.QUEUED,
        )
        for job in jobs
    )
