# SPDX-License-Identifier: MIT
"""One claimed job, from the claim until the store has accepted its settlement."""

from __future__ import annotations

import asyncio
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

from packhorse.core.job import Job
from packhorse.core.outcome import Outcome
from packhorse.core.settlement import Settlement, Verdict

if TYPE_CHECKING:
    from packhorse.context import Context
    from packhorse.core.chunks import ChunkState
    from packhorse.core.job_logs import RunningJob
    from packhorse.runtime.worker.handlers import HandlerSpec


class Stage(IntEnum):
    """How far an attempt is in this worker."""

    WAITING = 0  #: look-ahead: claimed, its handler not begun
    STARTING = 1  #: it has a slot; its coroutine or thread has not begun yet
    RUNNING = 2  #: its handler runs
    ENDED = 3  #: its outcome is with the settler
    ABANDONED = 4  #: its handler would not stop; settled without it


class Ending(Enum):
    """Why this worker ends an attempt that would go on."""

    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    TOO_LATE = "too_late"  #: it has not begun, and what a limit granted it is too old


class SettlementWaiter(msgspec.Struct, eq=False):
    """A caller that waits until the store has accepted the settlement of its job."""

    answer: asyncio.Future[Verdict]
    until: float  #: when to raise the store's error in the caller
    counted: bool = False  #: the store has answered a settlement of this attempt before
    withdrawn: bool = False  #: the caller went while it was written: if that fails, it is dropped


class Attempt(msgspec.Struct, eq=False):
    """The worker's record of one claimed job; touched by its event loop's thread.

    A thread that runs the handler only reads, save `stage` at the start, and `settled`. A struct,
    since it is made once per job.
    """

    job: Job
    handler: HandlerSpec
    epoch: int  #: of the lease it was claimed under
    offset_us: int = 0  #: the store's clock less this worker's monotonic one, at least
    offset_us_max: int = 0  #: the same, at most: by this no job starts after its deadline
    stage: Stage = Stage.WAITING
    arrived: float = 0.0  #: when the claim that brought it was answered
    place: int | None = None  #: on the board that the supervisor sees
    start_by: float | None = None  #: of a limited job: when it must have begun
    begun: bool = False  #: its handler has; `started` says when, and may be 0 by a virtual clock
    started: float = 0.0
    duration: float = 0.0
    timeout_s: float = 0.0
    bound: Ending = Ending.TIMEOUT  #: what it means when `timeout_s` is over
    expires: float = 0.0  #: when to stop it, or, once told to stop, when to abandon it
    ending: Ending | None = None
    outcome: Outcome | None = None  #: of the handler, until events about it are emitted
    cancelling: bool = False  #: `JobCancelling` has been emitted
    context: Context | None = None
    task: asyncio.Task[None] | None = None
    handling: asyncio.Task[None] | None = None  #: of its handler, inside middlewares
    about: dict[str, Any] | None = None  #: its fields in events, made when first needed
    settling: SettlementWaiter | None = None  #: a caller that waits for the store's answer
    settled: Settlement | None = None  #: what a transaction of the handler has already written
    chunk: ChunkState | None = None  #: progress of a chunk
    span: Any = None  #: set and read by the instrument that traces it
    running: RunningJob | None = None  #: with captured log lines; set when it begins

    @property
    def live_tasks(self) -> list[asyncio.Task[None]]:
        """Return its unfinished asyncio tasks, the handler's first."""
        return [each for each in (self.handling, self.task) if each and not each.done()]
