# SPDX-License-Identifier: MIT
"""How a queue is configured."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from packhorse.errors import ShapeError
from packhorse.protocol.shape import Shape
from packhorse.protocol.task import TaskRetryPolicy
from packhorse.protocol.vocabulary import Count, Positive

__all__ = ["AutoScale", "QueueConfig", "RateLimit"]


class RateLimit(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `max` starts in any window of so many milliseconds."""

    # Unknown names are refused here and dropped by every other shape: a window that is silently
    # dropped leaves the queue unthrottled.

    max: Positive
    duration: Positive | UnsetType = UNSET
    duration_ms: Positive | UnsetType = UNSET  # the same under its name in later versions

    @property
    def window_ms(self) -> int:
        """The window in milliseconds, whichever name it came under."""
        self.cross_check("$")
        return self.duration_ms or self.duration or 0

    def cross_check(self, path: str) -> None:
        """Refuse a rate limit without a window, or with two that differ."""
        if not self.duration and not self.duration_ms:
            raise ShapeError(
                "the window is missing: give its milliseconds as duration or durationMs", path=path
            )
        if self.duration and self.duration_ms and self.duration != self.duration_ms:
            raise ShapeError(
                f"duration is {self.duration} and durationMs is {self.duration_ms}: "
                "both name the window, so give one of them, or the same value twice",
                path=path,
            )


class AutoScale(Shape, frozen=True, kw_only=True):
    """How the number of workers follows the size of the queue."""

    enabled: bool = False
    min_workers: Positive = 1
    max_workers: Positive = 10
    scale_up_threshold: Positive = 100  # queue size
    scale_down_threshold: Count = 10  # queue size


class QueueConfig(Shape, frozen=True, kw_only=True):
    """A named queue with its own limits."""

    name: str
    concurrency: Positive = 5
    rate_limit: RateLimit | UnsetType = UNSET
    default_retry_policy: TaskRetryPolicy | UnsetType = UNSET
    dead_letter_queue: str | UnsetType = UNSET
    priority: Count = 0  # among queues, lower is served first; not a task's priority
    auto_scale: AutoScale | UnsetType = UNSET
