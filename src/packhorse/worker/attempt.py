# SPDX-License-Identifier: MIT
"""One job in this worker's hands, from the claim until its settlement is accepted."""

from __future__ import annotations

import asyncio
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from packhorse.job import Job
from packhorse.outcome import Outcome

if TYPE_CHECKING:
    from packhorse.context import Context
    from packhorse.worker.plans import CallPlan

__all__ = ["Attempt", "Ending", "Stage"]


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
    TOO_LATE = "too_late"  #: a limit let it start a while ago, and others count on that


class Attempt:
    """The worker's record of one claimed job; touched by its event loop's thread.

    A thread that runs the handler only reads, save `stage` at the start.
    """

    __slots__ = (
        *("about", "bound", "cancelling", "context", "duration", "ending", "epoch", "expires"),
        *("job", "offset_us", "outcome", "place", "plan", "stage", "start_by", "started", "task"),
        *("timeout_s",),
    )

    def __init__(self, job: Job, plan: CallPlan, epoch: int, offset_us: int) -> None:
        self.job = job
        self.plan = plan
        self.epoch = epoch  #: of the lease it was claimed under
        self.offset_us = offset_us  #: the store's clock less this worker's monotonic one
        self.stage = Stage.WAITING
        self.place: int | None = None  #: on the board that the supervisor sees
        self.start_by: float | None = None  #: of a limited job: its grant is too old after that
        self.started = 0.0
        self.duration = 0.0
        self.timeout_s = 0.0
        self.bound = Ending.TIMEOUT  #: what it means when `timeout_s` is over
        self.expires = 0.0  #: when to stop it, or, once told to stop, when to abandon it
        self.ending: Ending | None = None
        self.outcome: Outcome | None = None  #: what the handler came to, while others may follow
        self.cancelling = False  #: the start of its cancellation has been told
        self.context: Context | None = None
        self.task: asyncio.Task[None] | None = None
        self.about: dict[str, Any] | None = None  #: its fields in events, when somebody listens
