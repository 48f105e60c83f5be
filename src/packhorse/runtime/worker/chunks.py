# SPDX-License-Identifier: MIT
"""Run a chunk of a batch: its task's handler for item after item, or for some side by side.

What became of an item is kept with the job soon after its end, while the next ones run, so that an
attempt that is interrupted is followed by one that runs those which are left. Items that failed
and may be tried again make the whole attempt fail, by the policy of the task; the next one runs
them alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from packhorse.context import Context
from packhorse.core.batches import Chunk, ItemError
from packhorse.core.chunks import ITEM_RESULT_BYTES_MAX, ChunkState, ItemState, KeptItem
from packhorse.core.job import AttemptError, DeadReason, Job, Progress
from packhorse.core.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Snoozed,
    Succeeded,
    TimedOut,
    attempt_error,
)
from packhorse.core.policies.retry import wants_retry
from packhorse.core.steps import has_attachments
from packhorse.errors import PackhorseError, StoreUnavailable
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.batch_heads import is_stopped, stopping
from packhorse.runtime.worker.items import ItemRunner, Judge
from packhorse.runtime.worker.outcomes import oversized
from packhorse.runtime.worker.plans import limits_of

#: What has ended is written so long after, together with what ends meanwhile.
_WRITE_AFTER_S: Final = 0.02
#: Before another try to write to a store that cannot be reached.
_PAUSE_S: Final = 0.5
#: Items after which a coroutine that never waits lets others run.
_TURN: Final = 16
#: A longer result of a whole chunk is left where its items are kept.
_RESULT_BYTES_MAX: Final = 512 * 1024
_NEEDS_HUMAN: Final = AttemptError("NeedsHuman", "it waits for a person", "NEEDS_HUMAN")
_TOO_LONG: Final = (
    f"the result of an item of a batch has more than {ITEM_RESULT_BYTES_MAX} bytes: return a "
    "reference, or use task.map(), which has a job for each item"
)
ITEMS_FAILED: Final = "BATCH_ITEMS_FAILED"


class ChunkEnded(NamedTuple):
    """What an attempt at a chunk came to."""

    outcome: Outcome


class ChunkRun:
    """One attempt at a chunk."""

    def __init__(self, attempt: Attempt, context: Context, judge: Judge) -> None:
        job: Job = attempt.job
        self._attempt = attempt
        self._context = context
        self._host = context.host
        self._chunk = msgspec.json.decode(job.payload, type=Chunk)
        kept = context.steps.kept if has_attachments(job) else None
        self._state = ChunkState(len(self._chunk.items), {} if kept is None else kept.values)
        attempt.chunk = self._state
        self._items = ItemRunner(attempt, context, self._chunk, judge)
        self._rule = limits_of(job, attempt.plan).retry
        self._delays: list[int | None] = []  # of failed items: what they asked for
        self._errors: list[ItemError] = []
        self._waits: list[Snoozed] = []
        self._limited: Limited | None = None
        self._lost = False  # others hold the job by now
        self._problem: PackhorseError | None = None
        self._lock = threading.Lock()

    # ---------------------------------------------------------------------------- coroutine tasks

    async def run(self) -> ChunkEnded | None:
        """Run the items of a coroutine task."""
        if await self._host.aask(is_stopped(self._attempt.job)):
            return ChunkEnded(Cancelled())
        news = asyncio.Event()
        writer = asyncio.create_task(self._akeep_writing(news))
        try:
            await self._alanes(news)
        finally:
            writer.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await writer
            if self._is_stopped:
                with suppress(Exception):  # what is not written runs again
                    await self._awrite()
        if self._is_stopped:
            return None
        values, outcome = self._ending()
        if values and not await self._host.aattach(values):
            return None
        if isinstance(outcome, GivenUp) and self._chunk.stop_on_error:
            await self._host.aask(stopping(self._attempt.job))
        return ChunkEnded(outcome)

    async def _alanes(self, news: asyncio.Event) -> None:
        left = iter(self._state.left)
        lanes = min(self._chunk.concurrency, len(self._chunk.items))
        if lanes <= 1:
            await self._alane(left, news)
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(self._alane(left, news))

    async def _alane(self, left: Iterator[int], news: asyncio.Event) -> None:
        for number, index in enumerate(left):
            if self._is_stopped or self._limited is not None:
                return
            self._note(index, await self._items.arun(index))
            news.set()
            if number % _TURN == 0:
                await asyncio.sleep(0)

    async def _akeep_writing(self, news: asyncio.Event) -> None:
        while not self._lost:
            await news.wait()
            await asyncio.sleep(_WRITE_AFTER_S)
            news.clear()
            try:
                await self._awrite()
            except StoreUnavailable:
                news.set()
                await asyncio.sleep(_PAUSE_S)

    async def _awrite(self) -> None:
        values = self._taken()
        try:
            self._lost = bool(values) and not await self._host.aattach(values)
        except PackhorseError as error:
            self._not_written(error)

    # -------------------------------------------------------------------------------- plain tasks

    def run_here(self) -> ChunkEnded | None:
        """Run the items of a plain task, in this thread or in some of their own."""
        if self._host.ask(is_stopped(self._attempt.job)):
            return ChunkEnded(Cancelled())
        news, over = threading.Event(), threading.Event()
        writer = threading.Thread(target=self._keep_writing, args=(news, over), daemon=True)
        writer.start()
        try:
            self._lanes(news)
        finally:
            over.set()
            news.set()
            writer.join()
            if self._is_stopped:
                with suppress(Exception):  # as above
                    self._write()
        if self._is_stopped:
            return None
        values, outcome = self._ending()
        if values and not self._host.attach(values):
            return None
        if isinstance(outcome, GivenUp) and self._chunk.stop_on_error:
            self._host.ask(stopping(self._attempt.job))
        return ChunkEnded(outcome)

    def _lanes(self, news: threading.Event) -> None:
        left = iter(self._state.left)
        lanes = min(self._chunk.concurrency, len(self._chunk.items))
        if lanes <= 1:
            self._lane(left, news)
            return
        with ThreadPoolExecutor(lanes, "packhorse-item") as threads:
            contexts = [contextvars.copy_context() for _ in range(lanes)]
            runs = [threads.submit(each.run, self._lane, left, news) for each in contexts]
        for each in runs:
            each.result()

    def _lane(self, left: Iterator[int], news: threading.Event) -> None:
        while not (self._is_stopped or self._limited is not None):
            with self._lock:
                index = next(left, None)
            if index is None:
                return
            outcome = self._items.run(index)
            with self._lock:
                self._note(index, outcome)
            news.set()

    def _keep_writing(self, news: threading.Event, over: threading.Event) -> None:
        while not (over.is_set() or self._lost):
            news.wait()
            news.clear()
            if over.wait(_WRITE_AFTER_S):
                return
            try:
                self._write()
            except StoreUnavailable:
                news.set()
                over.wait(_PAUSE_S)

    def _write(self) -> None:
        with self._lock:
            values = self._taken()
        try:
            self._lost = bool(values) and not self._host.attach(values)
        except PackhorseError as error:
            self._not_written(error)

    # -------------------------------------------------------------------------------------- both

    @property
    def _is_stopped(self) -> bool:
        return self._lost or self._problem is not None or self._context.cancel_requested

    def _taken(self) -> dict[str, bytes]:
        values = self._state.taken()
        if values:
            done, _ = self._state.counted
            self._host.note_progress(Progress(done, self._state.size))
        return values

    def _not_written(self, error: PackhorseError) -> None:
        self._state.keep_again()
        if isinstance(error, StoreUnavailable):
            raise error
        self._problem = error  # it can never be kept

    def _note(self, index: int, outcome: Outcome) -> None:
        """What an item came to."""
        rule, failures = self._rule, self._attempt.job.failures
        is_last = failures >= rule.max_retries
        match outcome:
            case Succeeded(result):
                if len(result) > ITEM_RESULT_BYTES_MAX:
                    self._note(index, oversized(_TOO_LONG))
                    return
                self._state.note(KeptItem(index, ItemState.DONE, msgspec.Raw(result.encode())))
            case Failed(error):
                again = outcome.asked or wants_retry(rule, outcome.kinds)
                self._fail(index, error, again=again and not is_last)
                self._delays.append(outcome.retry_delay_us)
            case TimedOut(error):
                self._fail(index, error, again=rule.retry_timeouts and not is_last)
                self._delays.append(None)
            case Snoozed() if not outcome.asks:
                self._waits.append(outcome)
            case Limited():
                self._limited = outcome
            case GivenUp(_, error):
                self._fail(index, error, again=False)
            case Snoozed():
                told = outcome.error or _NEEDS_HUMAN
                self._fail(index, told, again=False)
            case _:  # the worker ends the attempt: the item runs again
                return

    def _fail(self, index: int, error: AttemptError, *, again: bool) -> None:
        told = ItemError(error.type, error.message, error.code)
        state = ItemState.AGAIN if again else ItemState.FAILED
        self._state.note(KeptItem(index, state, error=told))
        self._errors.append(told)

    def _ending(self) -> tuple[dict[str, bytes], Outcome]:
        """What is to be kept before the job is settled, and what the attempt came to."""
        state = self._state
        counted = state.counted
        if state.left:
            if self._limited is not None:
                return state.taken(), self._limited
            if self._delays:
                asked = [each for each in self._delays if each is not None]
                delay_us = min(asked, default=None)
                error = self._told(len(self._errors), self._errors[-1])
                failed = Failed(error, asked=True, retry_delay_us=delay_us, counted=counted)
                return state.taken(), failed
            shortest = min(self._waits, key=lambda wait: wait.delay_us)
            return state.taken(), msgspec.structs.replace(shortest, counts=False)
        failed_items = state.failed
        if failed_items:
            last = failed_items[-1].error or ItemError("Exception", "", "EXCEPTION")
            error = self._told(len(failed_items), last)
            given_up = GivenUp(DeadReason.POISON_MESSAGE, error, counted=counted)
            return state.ended(), given_up
        results = state.results
        if len(results) <= _RESULT_BYTES_MAX:
            return {}, Succeeded(results, counted=counted)
        state.keep_again()
        return state.taken(), Succeeded("null", counted=counted)

    def _told(self, number: int, last: ItemError) -> AttemptError:
        size, first = self._state.size, self._chunk.first
        message = (
            f"{number} of {size} items failed, from number {first}; the last: "
            f"{last.type}: {last.message}"
        )
        return attempt_error("BatchItemsFailed", message, ITEMS_FAILED, reason="batch_items_failed")
