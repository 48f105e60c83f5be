# SPDX-License-Identifier: MIT
"""Write values that jobs keep: steps while they run, and log lines when they end.

A commit costs more than its rows, so jobs that wait at the same moment share one write. One write
is under way at a time; requests that come meanwhile make the next. The event loop writes for
coroutines, the first waiting thread for all threads, so that neither kind waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from packhorse.core.generators import adrive, drive
from packhorse.core.policies.attachments import Attaching
from packhorse.core.redaction import Redact
from packhorse.core.settlement import Verdict
from packhorse.errors import StoreUnavailable
from packhorse.runtime.services.service import in_parts
from packhorse.runtime.worker.attempt import Attempt
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store

_LOG: Final = logging.getLogger("packhorse.worker")
_BATCH_MAX: Final = 500
#: With fewer, a commit takes longer than handlers need to come back.
_HALVED_MIN: Final = 50
#: Of the event loop, in which those who were answered ask again, or end and make room for others.
_ROUNDS: Final = 2
#: Of values in one batch: a store answers no other call while it reads them.
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024


#: Values to keep, and the future of the caller that waits.
_Asked = tuple[Attaching, Future[bool] | asyncio.Future[bool]]


class AttachmentWriter:
    """Keeps values with jobs; answers each caller whether its attempt still held the job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._of_threads: deque[_Asked] = deque()
        self._turn = threading.Lock()
        self._of_loop: deque[_Asked] = deque()
        self._writing: asyncio.Task[None] | None = None
        self.after_write: Callable[[], None] = lambda: None  #: called after each batch

    def keep(self, one: Attaching) -> bool:
        """Keep values before this returns, in the caller's thread."""
        answer: Future[bool] = Future()
        self._of_threads.append((one, answer))
        with self._turn:
            while not answer.done():  # else who had the turn before has written it
                self._write(_next_batch(self._of_threads))
        try:
            return answer.result()
        finally:  # its exception holds this frame: a cycle that would keep it alive
            del answer

    def akeep(self, one: Attaching) -> Awaitable[bool]:
        """As `keep`, without blocking the event loop."""
        loop = self._loop
        if asyncio.get_running_loop() is not loop:  # but a handler's own, in a thread
            return asyncio.to_thread(self.keep, one)
        answer: asyncio.Future[bool] = loop.create_future()
        self._of_loop.append((one, answer))
        if self._writing is None:  # begins when all have asked that can do so now
            self._writing = loop.create_task(self._awrite())
        return answer

    def _write(self, batch: list[_Asked]) -> None:
        try:
            drive(self._work(batch), self._store.run)
        except BaseException:  # this thread is ended from outside: others write the rest
            self._of_threads.extendleft([asked for asked in batch if not asked[1].done()])
            raise
        finally:
            del batch  # as above

    async def _awrite(self) -> None:
        waiting, apart = self._of_loop, self._store.works_apart
        # Where another process writes, a half goes first: while the other half is written then,
        # those of the first go on.
        most = (len(waiting) + 1) // 2 if apart and len(waiting) >= _HALVED_MIN else _BATCH_MAX
        try:
            while waiting:
                await adrive(self._work(_next_batch(waiting, most)), self._store.arun)
                most = _BATCH_MAX
                if apart:
                    self.after_write()
                    continue
                # Those who were answered may ask for their next step, others begin in the place of
                # those who ended, and what these came to is written in the same round: one commit.
                for _ in range(_ROUNDS):
                    await asyncio.sleep(0)
                self.after_write()
                await asyncio.sleep(0)
        finally:
            self._writing = None

    def _work(self, batch: list[_Asked]) -> Generator[Plan[Any], Any, None]:
        """Write a batch and answer each caller; if it fails, one by one: one may be the cause."""
        try:
            verdicts = yield self._store.attachments.attach([one for one, _ in batch])
        except Exception as error:  # noqa: BLE001 - belongs to those who wait
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                _fail(batch, error)
                del batch  # as above: the answers in it have the exception by now
                return
        else:
            for (_, answer), verdict in zip(batch, verdicts, strict=True):
                if not answer.done():  # else its caller was cancelled
                    answer.set_result(verdict is Verdict.APPLIED)
            return
        for asked in batch:
            yield from self._work([asked])


def _fail(batch: list[_Asked], error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)


def _next_batch(waiting: deque[_Asked], most: int = _BATCH_MAX) -> list[_Asked]:
    """Take the next batch: one request per job, so that a later value of a job wins."""
    batch: dict[str, _Asked] = {}
    later: list[_Asked] = []
    size = 0
    while waiting and len(batch) < most and size < _BATCH_BYTES_MAX:
        one, answer = asked = waiting.popleft()
        if one.job_id in batch:
            later.append(asked)
        elif not answer.done():  # else its caller was cancelled
            batch[one.job_id] = asked
            for value in one.values.values():
                size += len(value)
    waiting.extendleft(reversed(later))
    return list(batch.values())


def logged_by(attempt: Attempt, redact: Redact) -> Attaching | None:
    """Return what an attempt has logged so far; None if nothing."""
    lines = None if attempt.running is None else attempt.running.lines
    if lines is None:
        return None
    job = attempt.job
    return Attaching(job.id, job.fence, lines.kept(job.attempt, redact))


class LogWriter:
    """Keeps the log lines of ended attempts until they are written."""

    def __init__(self, store: Store, redact: Redact) -> None:
        self._store = store
        self._redact = redact
        self.kept: dict[Attempt, Attaching] = {}  #: what waits to be written

    def take(self, attempt: Attempt) -> None:
        """Keep the lines of an ended attempt for the next write."""
        logged = logged_by(attempt, self._redact)
        if logged is not None:
            self.kept[attempt] = logged

    def write(self, attempts: Iterable[Attempt]) -> Generator[Plan[Any], Any, None]:
        """Write the lines of these. Drop what the store refuses: the settlement matters more.

        If the store cannot be reached, they are written again with the settlements.
        """
        kept = [each for each in attempts if each in self.kept]
        for batch in in_parts(kept, self._size, most=len(kept), most_bytes=_BATCH_BYTES_MAX):
            yield from self._attach(batch)
            for attempt in batch:
                del self.kept[attempt]

    def forget(self, attempt: Attempt) -> None:
        """Do not write the lines of this one."""
        self.kept.pop(attempt, None)

    def _size(self, attempt: Attempt) -> int:
        return sum(map(len, self.kept[attempt].values.values()))

    def _attach(self, batch: Sequence[Attempt]) -> Generator[Plan[Any], Any, None]:
        try:
            yield self._store.attachments.attach([self.kept[each] for each in batch])
            return
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - of several, one may be what fails
            if len(batch) == 1:
                job = batch[0].job
                about = {"job_id": job.id, "queue": job.queue}
                _LOG.warning("what job %s logged is not kept: %s", job.id, error, extra=about)
                return
        for each in batch:
            yield from self._attach([each])
