# SPDX-License-Identifier: MIT
"""A context for a handler that a test calls directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from packhorse.context import Context, detached_job
from packhorse.core.clock import new_id
from packhorse.core.job import Job, Progress
from packhorse.tools import NO_TOOLS, Tools

__all__ = ["RecordingContext", "RecordingHost", "make_context"]


class RecordingContext(Context):
    """A context that records progress; `request_cancel()` cancels it."""

    __slots__ = ("_recorder",)

    def __init__(self, job: Job, *, state: Mapping[str, Any], tools: Tools = NO_TOOLS) -> None:
        self._recorder = RecordingHost()
        super().__init__(job, self._recorder, worker="test", state=state, tools=tools)

    @property
    def noted(self) -> tuple[Progress, ...]:
        """What the handler reported, in order."""
        return tuple(self._recorder.noted)

    def lose_lease(self) -> None:
        """Simulate a lost lease."""
        self._recorder.lost = True


def make_context(
    *,
    state: Mapping[str, Any] | None = None,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    task: str = "",
    queue: str = "default",
    tenant: str = "",
    attempt: int = 1,
    job_id: str | None = None,
) -> RecordingContext:
    """Make a context as a worker does; `state` is what lifespan hooks would yield.

    `tools` are those that the handler may use, by name.
    """
    job = msgspec.structs.replace(
        detached_job(task),
        id=job_id or new_id(),
        queue=queue,
        tenant=tenant,
        fence=attempt,
        attempts=attempt - 1,
    )
    return RecordingContext(job, state=state or {}, tools=Tools(tools or {}, task=task))


class RecordingHost:
    """The `packhorse.context.AttemptHost` of a test."""

    def __init__(self) -> None:
        self.noted: list[Progress] = []
        self.lost = False

    def note_progress(self, progress: Progress) -> None:
        self.noted.append(progress)

    def lease_lost(self) -> bool:
        return self.lost

    def still_mine(self) -> bool:
        return not self.lost

    async def astill_mine(self) -> bool:
        return not self.lost
