# SPDX-License-Identifier: MIT
"""Run one item of a chunk as if it were a job of its own, and say what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final, cast

import msgspec

from packhorse.attempt_host import AttemptHost, HostTransaction
from packhorse.context import Context
from packhorse.core.batches import Chunk
from packhorse.core.clock import SECOND_US
from packhorse.core.durations import Duration
from packhorse.core.job import Job, Progress
from packhorse.core.outcome import Cancelled, Outcome, TimedOut, attempt_error
from packhorse.core.policies.attachments import Attachments
from packhorse.errors import UsageError
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.handlers import (
    HandlerSpec,
    UnreadableArguments,
    read_arguments,
    too_large,
)
from packhorse.runtime.worker.outcomes import oversized, raised

#: What a result of a task means.
Judge = Callable[..., Outcome]
_STEPS: Final = "item:"


class ItemRunner:
    """Runs the items of one attempt at a chunk."""

    def __init__(self, attempt: Attempt, context: Context, chunk: Chunk, judge: Judge) -> None:
        handler = attempt.handler.item
        if handler is None:
            raise UsageError(f"job {attempt.job.id} is no chunk of a batch")
        self._handler: HandlerSpec = handler
        self._attempt = attempt
        self._context = context
        self._chunk = chunk
        self._judge = judge
        self._timeout_s = chunk.item_timeout_us / SECOND_US

    async def arun(self, index: int) -> Outcome:
        """Run an item of a coroutine task."""
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                value = self._call(index)
                return self._judged(await value)
        except BaseException as error:
            if self._is_ended:
                if isinstance(error, asyncio.CancelledError):
                    raise
                return Cancelled()
            if limit.expired():
                message = f"the item exceeded {round(self._timeout_s * 1000)}ms timeout"
                told = attempt_error("Timeout", message, "TASK_TIMEOUT", reason="job_timeout")
                return TimedOut(told)
            return _raised(error)

    def run(self, index: int) -> Outcome:
        """Run an item of a plain task in this thread."""
        try:
            return self._judged(self._call(index))
        except BaseException as error:  # noqa: BLE001 - as above
            return Cancelled() if self._is_ended else _raised(error)

    @property
    def _is_ended(self) -> bool:
        """Whether the worker ends the attempt, so that what the item came to does not count."""
        return self._attempt.ending is not None or self._context.cancel_requested

    def _call(self, index: int) -> Any:
        handler, whole = self._handler, self._attempt.job
        payload = bytes(self._chunk.items[index]).decode()
        # Its keys for outside systems are its own, and the same on every attempt.
        trace_id = f"{whole.trace_id}:{index}"
        job = msgspec.structs.replace(whole, payload=payload, trace_id=trace_id)
        arguments = read_arguments(handler, job)
        if not handler.wants_context:
            return handler.function(**arguments)
        return handler.function(self._item_context(index, job), **arguments)

    def _item_context(self, index: int, job: Job) -> Context:
        host = cast("AttemptHost", _ItemHost(self._context, index))
        return _ItemContext(job, host, self._context, self._handler)

    def _judged(self, value: Any) -> Outcome:
        outcome = self._judge(self._handler, value, job_id=self._attempt.job.id)
        problem = too_large(self._handler, outcome)
        return outcome if problem is None else oversized(problem)


def _raised(error: BaseException) -> Outcome:
    if isinstance(error, UnreadableArguments) and isinstance(error.__cause__, Exception):
        return raised(error.__cause__, code="INVALID_REQUEST")
    return raised(error)


class _ItemContext(Context):
    """The context of one item: it is told to stop with its chunk."""

    __slots__ = ("_whole",)

    def __init__(self, job: Job, link: AttemptHost, whole: Context, handler: HandlerSpec) -> None:
        super().__init__(
            *(job, link),
            worker_id=handler.worker_id,
            state=whole.state,
            tools=handler.tools,
            max_tokens=handler.max_tokens,
        )
        self._whole = whole

    @property
    def cancel_requested(self) -> bool:
        return self._whole.cancel_requested

    def wait_cancelled(self, timeout: Duration | None = None) -> bool:
        return self._whole.wait_cancelled(timeout)

    async def await_cancelled(self, timeout: Duration | None = None) -> bool:
        return await self._whole.await_cancelled(timeout)


class _ItemHost:
    """The `attempt_host.AttemptHost` of an item: its steps are kept apart from the others'."""

    def __init__(self, whole: Context, index: int) -> None:
        self._whole = whole
        self._host = whole.host
        self._prefix = f"{_STEPS}{index}:"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def note_progress(self, progress: Progress) -> None:
        """The chunk says how far it is; an item does not."""

    def attachments(self, store: Any) -> Generator[Any, Any, Attachments]:
        kept = yield from self._host.attachments(store)
        at, prefix = len(self._prefix), self._prefix
        values = {
            name[at:]: value for name, value in kept.values.items() if name.startswith(prefix)
        }
        return msgspec.structs.replace(kept, values=values)

    def attach(self, values: dict[str, bytes]) -> bool:
        return self._host.attach({self._prefix + name: each for name, each in values.items()})

    async def aattach(self, values: dict[str, bytes]) -> bool:
        own = {self._prefix + name: each for name, each in values.items()}
        return await self._host.aattach(own)

    def transaction(self) -> HostTransaction:
        raise UsageError(
            "ctx.transaction() completes a job, and an item of a batch shares its job with "
            "others: use task.map(), which has a job for each item"
        )
