# SPDX-License-Identifier: MIT
"""What a handler may raise, or return, to say something other than "done" or "failed".

They derive from `BaseException`, so that a handler's own `except Exception` does not swallow them.
"""

from __future__ import annotations

from packhorse.core.durations import Duration, microseconds

__all__ = ["JobSignal", "RateLimited", "Reject", "Retry", "Snooze", "Suspend"]


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


class Reject(JobSignal):
    """Never run this job again: it becomes a dead letter with reason `rejected`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Suspend(JobSignal):
    """A step sleeps or waits: end the attempt; with `waits` a signal ends that, seen so many."""

    def __init__(self, delay_us: int, *, waits: int | None = None) -> None:
        super().__init__("a step of the handler waits")
        self.delay_us = delay_us
        self.waits = waits
