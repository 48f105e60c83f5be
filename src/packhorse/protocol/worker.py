# SPDX-License-Identifier: MIT
"""How a worker is configured, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from packhorse.protocol.queue_config import QueueConfig
from packhorse.protocol.shape import Shape
from packhorse.protocol.vocabulary import Count, Positive

__all__ = ["Handler", "QueueStats", "WorkerConfig", "WorkerStats"]

#: What runs the tasks of one type.
Handler = Callable[..., Any]


class WorkerConfig(Shape, frozen=True, kw_only=True):
    """Which queues a worker serves, and how patiently."""

    name: str
    queues: Annotated[list[str], Meta(min_length=1)]
    queue_configs: list[QueueConfig] | UnsetType = UNSET
    poll_interval_ms: Positive = 1000
    visibility_timeout_ms: Positive = 30_000
    default_timeout_ms: Positive = 300_000
    shutdown_timeout_ms: Positive = 30_000
    handlers: dict[str, Handler] | UnsetType = UNSET  # by task type; Python only, never on the wire


class QueueStats(Shape, frozen=True, kw_only=True):
    """One queue's counts as a worker sees them."""

    pending: Count
    active: Count
    completed: Count
    failed: Count


class WorkerStats(Shape, frozen=True, kw_only=True):
    """What a worker has done since it started."""

    worker_name: str
    total_processed: Count
    succeeded: Count
    failed: Count
    active: Count
    avg_execution_ms: Annotated[float, Meta(ge=0)] | UnsetType = UNSET  # absent until there is one
    uptime_ms: Count
    queues: dict[str, QueueStats] | UnsetType = UNSET
