# SPDX-License-Identifier: MIT
"""A task, how it is retried, and what one execution of it came to."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from packhorse.protocol.shape import Shape
from packhorse.protocol.vocabulary import (
    AnyInteger,
    BackoffStrategy,
    Count,
    Instant,
    Positive,
    TaskPriority,
    TaskStatus,
    TypeName,
)

__all__ = ["Task", "TaskError", "TaskExecutionResult", "TaskMetadata", "TaskRetryPolicy"]


class TaskRetryPolicy(Shape, frozen=True, kw_only=True):
    """Whether and when a failed task runs again."""

    max_retries: Count = 3  # after the first execution, so that 0 means exactly one
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    initial_delay_ms: Positive = 1000
    max_delay_ms: Positive = 60_000
    backoff_multiplier: Annotated[float, Meta(gt=0)] = 2  # exponential only


class TaskMetadata(Shape, frozen=True, kw_only=True):
    """What is known about a task besides its work."""

    created_at: Instant | UnsetType = UNSET
    updated_at: Instant | UnsetType = UNSET
    created_by: str | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class Task(Shape, frozen=True, kw_only=True):
    """One unit of work as it travels between systems."""

    id: str
    type: TypeName
    payload: Any  # null is a payload; only the key must be there
    queue: str = "default"
    priority: TaskPriority = TaskPriority.NORMAL
    retry_policy: TaskRetryPolicy | UnsetType = UNSET  # absent: the queue's decides
    timeout_ms: Positive | UnsetType = UNSET
    scheduled_at: Instant | UnsetType = UNSET
    attempts: Count = 0  # executions started so far
    status: TaskStatus = TaskStatus.PENDING
    metadata: TaskMetadata | UnsetType = UNSET


class TaskError(Shape, frozen=True, kw_only=True):
    """Why an execution did not complete."""

    message: str
    stack: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class TaskExecutionResult(Shape, frozen=True, kw_only=True):
    """What one execution of a task came to."""

    task_id: str
    status: TaskStatus
    result: Any | UnsetType = UNSET  # None is a result, and is written as null
    error: TaskError | UnsetType = UNSET
    duration_ms: AnyInteger | UnsetType = UNSET
    started_at: Instant
    completed_at: Instant | UnsetType = UNSET
    attempt: Positive  # the first is 1
    will_retry: bool
