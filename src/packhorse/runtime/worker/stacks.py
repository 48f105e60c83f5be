# SPDX-License-Identifier: MIT
"""Stacks of running handlers, and the worker's answers to requests for them in the store.

Orders to pause or resume claiming are read in the same beat.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from packhorse.client.worker_signals import (
    QUIET_KIND,
    STACKS_KIND,
    HandlerStack,
    WorkerStacks,
    quiet_id,
    read_quiet,
    read_stacks,
    stacks_id,
    stacks_put,
)
from packhorse.core.policies.records import Remove
from packhorse.core.redaction import redacted_text
from packhorse.runtime.worker.attempt import Attempt, Stage

if TYPE_CHECKING:
    from packhorse.runtime.worker.worker_runtime import WorkerRuntime

#: Records of these kinds are questions or orders to some worker.
HEARD_TOPICS: Final = (f"record:{STACKS_KIND}", f"record:{QUIET_KIND}")
_FRAMES_MAX: Final = 30
#: Handlers, and bytes, of one answer.
_HANDLERS_MAX: Final = 100
_BYTES_MAX: Final = 48 * 1024
_STACK_MAX: Final = 4_000
#: Between two looks whether one asks, while nothing says so.
_LOOK_S: Final = 10.0
#: How long processes may take to tell where they are.
_PROCESSES_S: Final = 0.5
_OURS: Final = str(Path(__file__).resolve().parents[2])


class StackAnswers:
    """Answers for one worker, in the heartbeat's thread, which no handler can block."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime
        self._asked = True
        self._look_at = float("-inf")

    def asked(self) -> None:
        """Look soon whether a request is for this worker."""
        self._asked = True
        self._runtime.heartbeat.look_now()

    def beat(self) -> None:
        """Read requests and orders from the store, if there may be any, and answer them."""
        runtime = self._runtime
        now = runtime.monotonic()
        # While the event loop is blocked it hears no wake-up, and is what one wants to see.
        if not (self._asked or now >= self._look_at or runtime.heartbeat.loop_blocked):
            return
        self._asked, self._look_at = False, now + _LOOK_S
        with contextlib.suppress(Exception):  # it is asked again
            self._answer()
        with contextlib.suppress(Exception):
            self._apply_quiet()

    def _answer(self) -> None:
        store, worker = self._runtime.env.store, self._runtime.worker
        record = store.run(store.records.record(stacks_id(worker)))
        asked = read_stacks(record)
        if record is None or asked is None or asked.answered:
            return
        found = list(self._stacks())
        shown: list[HandlerStack] = []
        left = _BYTES_MAX
        for one in sorted(found, key=lambda each: -each.seconds)[:_HANDLERS_MAX]:
            left -= len(msgspec.json.encode(one))
            if left > 0:
                shown.append(one)
        answer = WorkerStacks(
            worker=worker,
            by=asked.by,
            answered=True,
            more=len(found) - len(shown),
            stacks=tuple(shown),
        )
        store.run(store.records.change((stacks_put(answer, record.version),)))

    def _apply_quiet(self) -> None:
        """Pause or resume claiming as ordered, and remove the order to confirm it."""
        store, runtime = self._runtime.env.store, self._runtime
        record = store.run(store.records.record(quiet_id(runtime.worker)))
        order = read_quiet(record)
        if record is not None and order is not None:
            runtime.loop.call_soon_threadsafe(runtime.told_quiet, order.quiet)
            store.run(store.records.change((Remove(record.id, record.version),)))

    def _stacks(self) -> Iterator[HandlerStack]:
        runtime = self._runtime
        threads = dict(runtime.threads.threads())
        running = [each for each in list(runtime.slots.held) if each.stage is Stage.RUNNING]
        processes = self._processes(running)
        for attempt in running:
            if attempt in processes:
                yield self._told(attempt, "process", processes[attempt])
            elif attempt in threads:
                yield self._told(attempt, "thread", stack_of_thread(threads[attempt], own=False))
            else:
                yield self._told(attempt, "coroutine", self._coroutine(attempt))

    def _coroutine(self, attempt: Attempt) -> str:
        """Return where a coroutine waits, or, if it runs right now, where the loop's thread is."""
        runtime, tasks = self._runtime, attempt.live_tasks
        if asyncio.current_task(runtime.loop) in tasks:
            return stack_of_thread(runtime.thread, own=False)
        return next((stack_of_task(task, own=False) for task in tasks), "")

    def _processes(self, running: Sequence[Attempt]) -> dict[Attempt, str]:
        processes = self._runtime.processes
        if processes is None or not any(attempt.handler.process for attempt in running):
            return {}
        told = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._runtime.loop.call_soon_threadsafe(processes.ask_where, told.set)
        told.wait(_PROCESSES_S)
        return processes.places()

    def _told(self, attempt: Attempt, kind: str, stack: str) -> HandlerStack:
        job, runtime = attempt.job, self._runtime
        return HandlerStack(
            job_id=job.id,
            task=job.task,
            seconds=round(max(0.0, runtime.monotonic() - attempt.started), 3),
            kind=kind,
            stack=redacted_text(runtime.env.bus.redact, stack[-_STACK_MAX:]),
        )


def stack_of_thread(ident: int | None, *, own: bool = True) -> str:
    """Return the stack of a thread; without `own`, leave out frames of this package."""
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001 - documented, and the only way
    return "" if frame is None else _text(_outward(frame), own=own)


def stack_of_task(task: asyncio.Task[Any], *, own: bool = True) -> str:
    """Return where a task waits: from its coroutine to the innermost one that it awaits."""
    frames: list[FrameType] = []
    inner: Any = task.get_coro()
    while len(frames) < _FRAMES_MAX and (frame := getattr(inner, "cr_frame", None)) is not None:
        frames.append(frame)
        inner = inner.cr_await
    return _text(frames, own=own)


def _outward(frame: FrameType) -> list[FrameType]:
    frames: list[FrameType] = []
    found: FrameType | None = frame
    while found is not None and len(frames) < _FRAMES_MAX:
        frames.append(found)
        found = found.f_back
    return frames[::-1]


def _text(frames: Sequence[FrameType], *, own: bool) -> str:
    if not own:
        ours = [each.f_code.co_filename.startswith(_OURS) for each in frames]
        first = ours.index(True) if True in ours else 0  # before it, what started the thread
        both = zip(frames[first:], ours[first:], strict=True)
        frames = [frame for frame, is_ours in both if not is_ours] or frames
    lines = traceback.format_list(
        traceback.StackSummary.extract((each, each.f_lineno) for each in frames)
    )
    return "".join(lines)
