# SPDX-License-Identifier: MIT
"""A connection whose submits do not fail while the store is away: they are delivered later."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from packhorse.client.encryption import Sealer
from packhorse.client.registry import Registry
from packhorse.client.spool.file import SpooledSubmission, SpoolFile
from packhorse.client.store_access import Connection
from packhorse.core.clock import Clock
from packhorse.core.interpreter import at_fork
from packhorse.core.job import JobStatus, NewJob
from packhorse.errors import PackhorseError, QueueFull, StoreUnavailable
from packhorse.events import EventBus, JobsSpooled, SpoolDelivered, SpoolRefused
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

    def emptied(self) -> bool:
        """Whether nothing is left, seen under the lock that every submit takes."""
        with self._order:
            self._behind = bool(self.spool.first(1))
            return not self._behind

    def deliver(self, jobs: Sequence[NewJob]) -> object:
        """Give the store what was spooled."""
        return super().submit(jobs, wait_us=0)

    def _set_up(self) -> None:
        """A lock and a delivery of this process; neither comes along in a fork."""
        self._order = threading.Lock()
        self._looked = False
        self._delivery = SpoolDelivery(self)


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


#: Read from the file at once.
_BATCH: Final = 100
#: How long it waits after the store was away, or while another process delivers from the file.
_REST_S: Final = 0.5


class SpoolDelivery:
    """Delivers until the spool is empty, then ends; the next spooled submission starts it again."""

    def __init__(self, connection: SpoolingConnection) -> None:
        self._connection = connection
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._deliver_all, name="packhorse-spool", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End after the submission under way; the rest stays in the file."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _deliver_all(self) -> None:
        while not self._stop.is_set() and (rest_s := self._deliver_some()) is not None:
            self._stop.wait(rest_s)

    def _deliver_some(self) -> float | None:
        """Deliver a batch; return how long to wait then, or None if nothing is left."""
        try:
            with _turn(self._connection.spool) as ours:
                if not ours:
                    return _REST_S
                kept = self._connection.spool.first(_BATCH)
                if not kept and self._connection.emptied():
                    return None
                return 0.0 if self._deliver(kept) else _REST_S
        except StoreUnavailable:  # the file itself: a full disk may be emptied
            return _REST_S

    def _deliver(self, kept: Sequence[SpooledSubmission]) -> bool:
        """Give these to the store one by one; False as soon as it does not take one now."""
        delivered = 0
        try:
            for submission in kept:
                if self._stop.is_set():
                    return True
                self._deliver_one(submission)
                delivered += len(submission.jobs)
        except (StoreUnavailable, QueueFull):
            return False  # order is kept: those behind wait with it
        finally:
            if delivered:
                self._connection.bus.emit(SpoolDelivered(jobs=delivered))
        return True

    def _deliver_one(self, submission: SpooledSubmission) -> None:
        # Ids were made by the caller: delivering again after an answer that was lost is safe.
        try:
            self._connection.deliver(submission.jobs)
        except (StoreUnavailable, QueueFull):
            raise
        except PackhorseError as error:
            self._refuse(submission, error)
        else:
            self._connection.spool.remove(submission.seq)

    def _refuse(self, submission: SpooledSubmission, error: PackhorseError) -> None:
        reason = f"{error.code}: {error}"
        self._connection.spool.refuse(
            submission.seq, reason, now_us=self._connection.clock.now_us()
        )
        self._connection.bus.emit(
            SpoolRefused(
                job_ids=tuple(job.id for job in submission.jobs),
                reason=reason,
                path=str(self._connection.spool.path),
            )
        )


@contextlib.contextmanager
def _turn(file: SpoolFile) -> Iterator[bool]:
    """Whether this process may deliver now; the lock ends with the process that holds it."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:  # one process a spool there, as the documentation says
        yield True
        return
    descriptor = os.open(file.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
