# SPDX-License-Identifier: MIT
"""What a supervised worker tells its supervisor: who it is, what it runs, and how it is."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, Final, Protocol

from packhorse.clock import Clock
from packhorse.config import WorkerOptions
from packhorse.registry import Registry
from packhorse.supervisor.link import Link
from packhorse.supervisor.messages import Hello, Left, Report, Retire, Stuck, TaskRules
from packhorse.worker.attempt import Attempt
from packhorse.worker.tally import Tally

__all__ = ["Reporter", "Standing", "stack_of_task", "stack_of_thread"]

#: Attempts whose durations are looked at for the 95th percentile.
_DURATIONS: Final = 1_024
#: A report goes when something has changed, and after so long anyway.
_SILENCE_S: Final = 10.0
#: Stuck code that is told of; more of it looks the same.
_STUCK_MAX: Final = 20
_FRAMES_MAX: Final = 30


class Standing(Protocol):
    """How the worker is; read from the heartbeat's thread."""

    @property
    def running(self) -> int: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def abandoned(self) -> int: ...
    @property
    def trouble(self) -> str: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def quiet_claims(self) -> bool: ...
    @property
    def ahead(self) -> int: ...
    @property
    def unsettled(self) -> int: ...
    def stuck(self) -> Iterable[Stuck]: ...


class Reporter:
    """Speaks to the supervisor for one worker."""

    def __init__(self, link: Link, standing: Standing, clock: Clock) -> None:
        self.page = link.page
        self._link = link
        self._standing = standing
        self._monotonic = clock.monotonic
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._last: Report | None = None
        self._sent_at = float("-inf")
        self._retired = False
        self.blocked = ""  #: the stack that blocks the event loop, while one does

    def hello(
        self, worker: str, options: WorkerOptions, registry: Registry, label: str, version: str
    ) -> None:
        """Say who this is, before the first claim."""
        link = self._link
        link.send(
            Hello(
                worker=worker,
                pid=os.getpid(),
                url=link.url,
                label=label,
                queues=options.queues,
                tasks={name: _rules(registry, name) for name in registry.names},
                lease_us=options.lease_us,
                concurrency=options.concurrency,
                version=version,
                host=socket.gethostname(),
                stop_grace_us=options.stop_grace_us,
                shutdown_timeout_us=options.shutdown_timeout_us,
                default_timeout_us=options.default_timeout_us,
                app=link.app,
            )
        )

    def ended(self, attempts: Sequence[Attempt]) -> None:
        """Note how long these took."""
        self._durations.extend(attempt.duration for attempt in attempts if attempt.started)

    def beat(self) -> None:
        """Report if there is something to say; called every second by the heartbeat."""
        report = self._report()
        now = self._monotonic()
        if report != self._last or now - self._sent_at >= _SILENCE_S:
            self._last, self._sent_at = report, now
            self._link.send(report)

    def retire(self, reason: str) -> bool:
        """Ask to be replaced; False if that was asked before."""
        if self._retired:
            return False
        self._retired = True
        self._link.send(Retire(reason))
        return True

    def left(self) -> None:
        """The store holds nothing for this worker any more."""
        self.beat()
        self._link.send(Left())

    def _report(self) -> Report:
        standing, tally = self._standing, self._standing.tally
        return Report(
            succeeded=tally.succeeded,
            failed=tally.failed,
            retried=tally.retried,
            dead=tally.dead,
            timed_out=tally.timed_out,
            abandoned=standing.abandoned,
            p95_duration_ms=self._p95_ms(),
            running=standing.running,
            trouble=standing.trouble,
            lease=standing.trusted,
            quiet=standing.quiet_claims,
            stopping=standing.stopping,
            stuck=tuple(standing.stuck())[:_STUCK_MAX],
            blocked=self.blocked,
            ahead=standing.ahead,
            unsettled=standing.unsettled,
        )

    def _p95_ms(self) -> float | None:
        durations = sorted(self._durations.copy())
        if not durations:
            return None
        return round(durations[min(len(durations) - 1, len(durations) * 95 // 100)] * 1000, 3)


def _rules(registry: Registry, name: str) -> TaskRules:
    task = registry.get(name)
    if task is None:
        return TaskRules()
    return TaskRules(task.retry, task.max_snoozes, task.result_keep_us)


def stack_of_thread(ident: int | None) -> str:
    """Where a thread is now."""
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001 - documented, and the only way
    return "" if frame is None else _text(_outward(frame))


def stack_of_task(task: asyncio.Task[Any]) -> str:
    """Where a task waits: from its own coroutine to the innermost one that this awaits."""
    frames: list[FrameType] = []
    inner: Any = task.get_coro()
    while len(frames) < _FRAMES_MAX and (frame := getattr(inner, "cr_frame", None)) is not None:
        frames.append(frame)
        inner = inner.cr_await
    return _text(frames)


def _outward(frame: FrameType) -> list[FrameType]:
    frames: list[FrameType] = []
    found: FrameType | None = frame
    while found is not None and len(frames) < _FRAMES_MAX:
        frames.append(found)
        found = found.f_back
    return frames[::-1]


def _text(frames: Sequence[FrameType]) -> str:
    lines = traceback.format_list(
        traceback.StackSummary.extract((each, each.f_lineno) for each in frames)
    )
    return "".join(lines)
