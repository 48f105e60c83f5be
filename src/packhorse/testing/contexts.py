# SPDX-License-Identifier: MIT
"""A context for a handler that a test calls directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from packhorse.attempt_host import DetachedHost
from packhorse.context import Context, detached_job
from packhorse.core.approvals import Approval
from packhorse.core.clock import new_id
from packhorse.core.job import Job, Progress
from packhorse.tools import NO_TOOLS, Tools


class RecordingContext(Context):
    """A context that records progress; `request_cancel()` cancels it."""

    __slots__ = ("_recorder",)

    def __init__(
        self,
        job: Job,
        *,
        state: Mapping[str, Any],
        tools: Tools = NO_TOOLS,
        signals: Mapping[str, Sequence[Any]] | None = None,
        max_tokens: int | None = None,
        approval: Approval | None = None,
    ) -> None:
        self._recorder = RecordingHost(signals)
        super().__init__(
            job, self._recorder, worker="test", state=state, tools=tools, max_tokens=max_tokens
        )
        self.approval = approval

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
    signals: Mapping[str, Sequence[Any]] | None = None,
    max_tokens: int | None = None,
    approval: Approval | None = None,
) -> RecordingContext:
    """Make a context as a worker does; `state` is what lifespan hooks would yield.

    `tools` are those that the handler may use, by name. `signals` are values by name, for
    `ctx.wait_for`; `ctx.sleep` does not wait. `max_tokens` is the limit of `ctx.spend`, `approval`
    what `ctx.approval` is.
    """
    job = msgspec.structs.replace(
        detached_job(task),
        id=job_id or new_id(),
        queue=queue,
        tenant=tenant,
        fence=attempt,
        attempts=attempt - 1,
    )
    return RecordingContext(
        job,
        state=state or {},
        tools=Tools(tools or {}, task=task),
        signals=signals,
        max_tokens=max_tokens,
        approval=approval,
    )


class RecordingHost(DetachedHost):
    """The `packhorse.attempt_host.AttemptHost` of a test."""

    def __init__(self, signals: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__()
        self.noted: list[Progress] = []
        self.lost = False
        for name, values in (signals or {}).items():
            self.signals[name] = tuple(map(msgspec.json.encode, values))

    def note_progress(self, progress: Progress) -> None:
        self.noted.append(progress)

    def lease_lost(self) -> bool:
        return self.lost
