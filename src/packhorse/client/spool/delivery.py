# SPDX-License-Identifier: MIT
"""Brings what was spooled to the store, in order, on a thread of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final

from packhorse.client.spool.file import SpooledSubmission, SpoolFile
from packhorse.core.clock import Clock
from packhorse.core.job import NewJob
from packhorse.errors import PackhorseError, QueueFull, StoreUnavailable
from packhorse.events import EventBus, SpoolDelivered, SpoolRefused

#: Read from the file at once.
_BATCH: Final = 100
#: How long it waits after the store was away: doubled each time, up to the second.
_REST_S_FIRST: Final = 0.1
_REST_S_MAX: Final = 5.0
#: How long it waits while another process delivers from the same file.
_TURN_S: Final = 0.5


class _Went(Enum):
    """How one turn went."""

    EMPTY = auto()  # nothing is left
    WELL = auto()
    ELSEWHERE = auto()  # another process delivers
    BADLY = auto()  # the store, or the file, is away


class SpoolDelivery:
    """Delivers until the spool is empty, then ends; the next spooled submission starts it again."""

    def __init__(
        self,
        file: SpoolFile,
        submit: Callable[[Sequence[NewJob]], object],
        *,
        bus: EventBus,
        clock: Clock,
        emptied: Callable[[], bool],
    ) -> None:
        self._file = file
        self._submit = submit
        self._bus = bus
        self._clock = clock
        self._emptied = emptied  #: told when nothing is left; False: something came meanwhile
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
        rest_s = _REST_S_FIRST
        while not self._stop.is_set():
            match self._deliver_some():
                case _Went.EMPTY:
                    return
                case _Went.WELL:
                    rest_s = _REST_S_FIRST
                case _Went.ELSEWHERE:
                    self._stop.wait(_TURN_S)
                case _Went.BADLY:
                    self._stop.wait(rest_s)
                    rest_s = min(rest_s * 2, _REST_S_MAX)

    def _deliver_some(self) -> _Went:
        try:
            with _turn(self._file) as ours:
                if not ours:
                    return _Went.ELSEWHERE
                kept = self._file.first(_BATCH)
                if not kept and self._emptied():
                    return _Went.EMPTY
                return _Went.WELL if self._deliver(kept) else _Went.BADLY
        except StoreUnavailable:  # the file itself: a full disk may be emptied
            return _Went.BADLY

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
                self._bus.emit(SpoolDelivered(jobs=delivered))
        return True

    def _deliver_one(self, submission: SpooledSubmission) -> None:
        # Ids were made by the caller: delivering again after an answer that was lost is safe.
        try:
            self._submit(submission.jobs)
        except (StoreUnavailable, QueueFull):
            raise
        except PackhorseError as error:
            self._refuse(submission, error)
        else:
            self._file.remove(submission.seq)

    def _refuse(self, submission: SpooledSubmission, error: PackhorseError) -> None:
        reason = f"{error.code}: {error}"
        self._file.refuse(submission.seq, reason, now_us=self._clock.now_us())
        self._bus.emit(
            SpoolRefused(
                job_ids=tuple(job.id for job in submission.jobs),
                reason=reason,
                path=str(self._file.path),
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
