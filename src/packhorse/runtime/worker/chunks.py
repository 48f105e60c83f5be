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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from packhorse.context import Context
from packhorse.core.batches import Chunk, ItemError, put_batch, read_batch, stopped_batch
from packhorse.core.chunks import ITEM_RESULT_BYTES_MAX, ChunkState, ItemState, KeptItem
from packhorse.core.job import AttemptError, DeadReason, Job, JobOptions, Progress
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
from packhorse.core.policies.journal import Group
from packhorse.core.policies.retry import wants_retry
from packhorse.core.steps import has_attachments
from packhorse.errors import PackhorseError, PayloadError, StoreRefused, StoreUnavailable
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.handlers import rules_of
from packhorse.runtime.worker.items import ItemRunner, Judge
from packhorse.runtime.worker.outcomes import described, kinds_of, oversized
from packhorse.steps import IN_THREAD, ON_LOOP, finished
from packhorse.steps.calls import Calls
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed

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
#: How often to try again to stop a batch whose record changed meanwhile.
_TRIES: Final = 50
T = TypeVar("T")


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
        self._rule = rules_of(job, attempt.handler).retry
        self._delays: list[int | None] = []  # of failed items: what they asked for
        self._errors: list[ItemError] = []
        self._waits: list[Snoozed] = []
        self._limited: Limited | None = None
        self._has_told = False  # how many items are through
        self._lost = False  # others hold the job by now
        self._kept = self._state.counted  # of what is kept: items, and those that failed
        self._unkept: Outcome | None = None  # the store does not take what the items came to
        self._lock = threading.Lock()

    async def run(self, calls: Calls) -> ChunkEnded | None:
        """Run the items: of a coroutine task on its event loop, of a plain one in threads."""
        if await calls.ask(self._host, _is_stopped(self._attempt.job)):
            return ChunkEnded(Cancelled())
        try:
            if calls is ON_LOOP:
                await self._run_on_loop()
            else:
                self._run_in_threads()
        finally:
            if self._is_stopped:
                with suppress(Exception):  # an item that is not written runs again
                    await self._write(calls)
        if self._is_over:
            return None  # what the worker or the store says of the attempt counts
        outcome = self._unkept or await self._ended(calls)
        if outcome is None:
            return None
        if isinstance(outcome, GivenUp) and self._chunk.stop_on_error:
            await calls.ask(self._host, _stop_batch(self._attempt.job))
        return ChunkEnded(outcome)

    async def _ended(self, calls: Calls) -> Outcome | None:
        """Keep the rest; return what the attempt came to, None if others hold the job by now."""
        values, outcome = self._ending()
        if self._has_told:  # a chunk that is over sooner than that saves the write
            self._tell_progress()
        try:
            held = not values or await calls.write(self._host, values)
        except PackhorseError as error:
            if isinstance(error, StoreUnavailable):
                raise
            return self._refused(error)
        return outcome if held else None

    async def _write(self, calls: Calls) -> None:
        """Keep what items came to since the last write."""
        with self._lock:
            values, counted = self._unwritten(), self._state.counted
        try:
            if values and not await calls.write(self._host, values):
                self._lost = True
        except PackhorseError as error:
            self._state.keep_again()
            if isinstance(error, StoreUnavailable):
                raise
            self._unkept = self._refused(error)
        else:
            self._kept = counted

    def _refused(self, error: PackhorseError) -> Outcome:
        """Return the outcome where results cannot be kept: their items do not count as done.

        Not the error itself, whose frames hold this object.
        """
        told = described(error, code=error.code)
        if isinstance(error, PayloadError | StoreRefused):  # no other attempt has less to keep
            return GivenUp(DeadReason.REJECTED, told, counted=self._kept)
        return Failed(told, kinds=kinds_of(type(error)), counted=self._kept)

    @property
    def _lanes(self) -> int:
        """How many items run side by side."""
        return min(self._chunk.concurrency, len(self._chunk.items))

    # ---------------------------------------------------------------------------- coroutine tasks

    async def _run_on_loop(self) -> None:
        news, left = asyncio.Event(), iter(self._state.left)
        writer = asyncio.create_task(self._keep_writing_on_loop(news))
        try:
            if self._lanes <= 1:
                await self._lane_on_loop(left, news)
                return
            async with asyncio.TaskGroup() as group:
                for _ in range(self._lanes):
                    group.create_task(self._lane_on_loop(left, news))
        finally:
            writer.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await writer

    async def _lane_on_loop(self, left: Iterator[int], news: asyncio.Event) -> None:
        for number, index in enumerate(left):
            if self._is_stopped or self._limited is not None:
                return
            self._note(index, await self._items.arun(index))
            news.set()
            if number % _TURN == 0:
                await asyncio.sleep(0)

    async def _keep_writing_on_loop(self, news: asyncio.Event) -> None:
        while not self._lost:
            await news.wait()
            await asyncio.sleep(_WRITE_AFTER_S)
            news.clear()
            try:
                await self._write(ON_LOOP)
            except StoreUnavailable:
                news.set()
                await asyncio.sleep(_PAUSE_S)

    # -------------------------------------------------------------------------------- plain tasks

    def _run_in_threads(self) -> None:
        news, over, left = threading.Event(), threading.Event(), iter(self._state.left)
        writer = threading.Thread(target=self._keep_writing, args=(news, over), daemon=True)
        writer.start()
        try:
            if self._lanes <= 1:
                self._lane(left, news)
                return
            with ThreadPoolExecutor(self._lanes, "packhorse-item") as threads:
                contexts = [contextvars.copy_context() for _ in range(self._lanes)]
                runs = [threads.submit(each.run, self._lane, left, news) for each in contexts]
            for each in runs:
                each.result()
        finally:
            over.set()
            news.set()
            writer.join()

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
                finished(self._write(IN_THREAD))
            except StoreUnavailable:
                news.set()
                over.wait(_PAUSE_S)

    # -------------------------------------------------------------------------------------- both

    @property
    def _is_stopped(self) -> bool:
        return self._is_over or self._unkept is not None

    @property
    def _is_over(self) -> bool:
        """Whether the job is not this attempt's any more, or the worker ends the attempt."""
        return self._lost or self._context.cancel_requested

    def _unwritten(self) -> dict[str, bytes]:
        """Take what is to be written now, and report how many items are through."""
        values = self._state.taken()
        if values:
            self._tell_progress()
        return values

    def _tell_progress(self) -> None:
        done, _ = self._state.counted
        self._host.note_progress(Progress(done, self._state.size))
        self._has_told = True

    def _note(self, index: int, outcome: Outcome) -> None:
        """Note what an item came to."""
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
        """Return what to keep before the job is settled, and what the attempt came to."""
        state = self._state
        counted = state.counted
        if state.left:
            if self._limited is not None:
                return state.taken(), self._limited
            if self._delays:
                asked = [each for each in self._delays if each is not None]
                delay_us = min(asked, default=None)
                error = self._items_failed(len(self._errors), self._errors[-1])
                failed = Failed(error, asked=True, retry_delay_us=delay_us, counted=counted)
                return state.taken(), failed
            shortest = min(self._waits, key=lambda wait: wait.delay_us)
            return state.taken(), msgspec.structs.replace(shortest, counts=False)
        failed_items = state.failed
        if failed_items:
            last = failed_items[-1].error or ItemError("Exception", "", "EXCEPTION")
            error = self._items_failed(len(failed_items), last)
            given_up = GivenUp(DeadReason.POISON_MESSAGE, error, counted=counted)
            return state.ended(), given_up
        results = state.results
        if len(results) <= _RESULT_BYTES_MAX:
            return {}, Succeeded(results, counted=counted)
        state.keep_again()
        return state.taken(), Succeeded("null", counted=counted)

    def _items_failed(self, number: int, last: ItemError) -> AttemptError:
        size, first = self._state.size, self._chunk.first
        message = (
            f"{number} of {size} items failed, from number {first}; the last: "
            f"{last.type}: {last.message}"
        )
        return attempt_error("BatchItemsFailed", message, ITEMS_FAILED, reason="batch_items_failed")


def _group_of(options: str | None) -> Group | None:
    """Return the group that a job is a member of."""
    if options is None or '"member"' not in options:
        return None
    member = msgspec.json.decode(options, type=JobOptions).member
    return None if member is None else Group.of(member.group)


def _is_stopped(job: Job) -> Callable[[Store], Asking[bool]]:
    """Return a verb that reads whether the batch of a job was stopped."""

    def asking(store: Store) -> Asking[bool]:
        group = _group_of(job.options)
        record = None if group is None else (yield store.records.record(group.record))
        return record is not None and bool(read_batch(record.document).stopped)

    return asking


def _stop_batch(job: Job) -> Callable[[Store], Asking[None]]:
    """Return a verb that stops the batch of a job: it starts no further members."""

    def asking(store: Store) -> Asking[None]:
        group = _group_of(job.options)
        if group is None:
            return
        for _ in range(_TRIES):
            record = yield store.records.record(group.record)
            batch = None if record is None else read_batch(record.document)
            if record is None or batch is None or batch.stopped:
                return
            put = put_batch(stopped_batch(batch), record.version)
            changed: Changed = yield store.records.change((put,))
            if changed.applied:
                return

    return asking
