# SPDX-License-Identifier: MIT
"""Many items under one task type, and how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from packhorse.protocol.shape import Shape
from packhorse.protocol.vocabulary import (
    BatchStatus,
    Count,
    Instant,
    Positive,
    TaskPriority,
    TypeName,
)

__all__ = ["BatchProgress", "BatchTask", "ProgressCallback"]

#: Called after each batch with `processed`, `total` and `failed`.
ProgressCallback = Callable[[Mapping[str, int]], object]


class BatchTask(Shape, frozen=True, kw_only=True):
    """Items to be cut into tasks of at most `batchSize` each."""

    id: str
    type: TypeName
    items: list[Any]
    batch_size: Positive = 100
    queue: str = "batch"
    priority: TaskPriority = TaskPriority.NORMAL
    parallel: bool = True
    stop_on_error: bool = False
    on_progress: ProgressCallback | UnsetType = UNSET  # Python only, never on the wire


class BatchProgress(Shape, frozen=True, kw_only=True):
    """How far a batch has come."""

    batch_id: str
    total: Count
    processed: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    percentage: Annotated[float, Meta(ge=0, le=100)]
    status: BatchStatus
    started_at: Instant | UnsetType = UNSET
    completed_at: Instant | UnsetType = UNSET
