# SPDX-License-Identifier: MIT
"""What a handler may raise, or return, to say something other than "done" or "failed".

They derive from `BaseException`, so that a handler's own `except Exception` does not swallow them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packhorse.core.clock import to_datetime
from packhorse.core.durations import Duration, microseconds
from packhorse.core.job import AttemptError


class JobSignal(BaseException):
    """A handler's word to the worker."""


class Retry(JobSignal):
    """Run this job again: counts as a failure; `delay` replaces the policy's own."""

    def __init__(self, delay: Duration | None = None, *, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.delay_us = None if delay is None else microseconds(delay, setting="delay")


class Snooze(JobSignal):
    """Call me again after `delay`; nothing failed, no retry is used up."""

    def __init__(self, delay: Duration) -> None:
        super().__init__("the handler asked to wait")
        self.delay_us = microseconds(delay, setting="delay")


class RateLimited(JobSignal):
    """Another system's limit was met: this job, and others of its task and rate key, wait so long.

    Nothing failed and nothing is used up; the job keeps its place.
    """

    def __init__(self, retry_after: Duration) -> None:
        super().__init__("the handler met a rate limit")
        self.retry_after_us = microseconds(retry_after, setting="retry_after")


class BreakerOpen(JobSignal):
    """A circuit breaker is open: the call was not tried, and the job waits until it may be.

    Nothing failed and nothing is used up. A handler that can do without the call catches it.
    """

    code: Final = "breaker_open"

    def __init__(self, name: str, retry_us: int, delay_us: int) -> None:
        self.name = name
        self.retry_at = to_datetime(retry_us)  #: when a call may be tried again
        self.delay_us = max(0, delay_us)
        moment = self.retry_at.isoformat().replace("+00:00", "Z")
        super().__init__(f"breaker {name!r} is open, and lets no call through until {moment}")


class Reject(JobSignal):
    """Never run this job again: it becomes a dead letter with reason `rejected`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NeedsHuman(JobSignal):
    """A person must decide: the job waits without a slot until it is approved or declined.

    Once approved the handler runs again, with `ctx.approval`. `outputs` are shown to the person.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: str = "NEEDS_HUMAN",
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.outputs = outputs


class Suspend(JobSignal):
    """A step sleeps or waits: end the attempt; with `waits` a signal ends that, seen so many.

    With an `error` it is a person that is waited for.
    """

    def __init__(
        self, delay_us: int, *, waits: int | None = None, error: AttemptError | None = None
    ) -> None:
        super().__init__("a step of the handler waits")
        self.delay_us = delay_us
        self.waits = waits
        self.error = error


class Declined(JobSignal):
    """A person declined what the handler had asked: the job is a dead letter."""
