# SPDX-License-Identifier: MIT
"""The shapes of the worker protocol, and its envelope: a request to a worker, and the answer.

The protocol leaves the inside of `error` and of a log entry open; they are defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from packhorse.errors import ShapeError
from packhorse.protocol.reading import parse, parse_json
from packhorse.protocol.scalars import (
    AnyInteger,
    BackoffStrategy,
    BatchStatus,
    Count,
    Instant,
    Positive,
    TaskPriority,
    TaskStatus,
    TypeName,
)

Anything = TypeVar("Anything")


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An immutable wire object: snake_case attributes here, camelCase names on the wire.

    The constructor checks types and limits no more than any Python class does; `parse` checks all.
    """

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return a mapping, JSON or an unchecked instance as a checked one, or raise ShapeError."""
        return parse(cls, value)

    @classmethod
    def parse_json(cls, data: str | bytes) -> Self:
        """Return the JSON text `data` checked, or raise ShapeError."""
        return parse_json(cls, data)

    @classmethod
    def create(cls, value: Anything) -> Anything:
        """Return `value` itself: `parse` checks and fills in defaults, this does neither."""
        return value


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


class AnswerStatus(StrEnum):
    """What an attempt came to, as a caller has to act on it."""

    OK = "ok"  #: accept the outputs
    RETRYABLE_ERROR = "retryable_error"  #: safe to try again
    INVALID_REQUEST = "invalid_request"  #: not to be tried again unchanged
    INVALID_OUTPUT = "invalid_output"  #: tried again or given up, by policy
    NEEDS_HUMAN = "needs_human"  #: for a person to decide


class _Envelope(Shape, frozen=True, kw_only=True, rename=str):
    """A shape whose names on the wire are those in Python."""


class AnswerError(_Envelope, frozen=True, kw_only=True):
    """Why an attempt has no valid outputs."""

    code: str  #: stable: `poison_message`, `timeout`, or the worker's own
    message: str = ""
    retryable: bool | UnsetType = UNSET  #: whether it will be, or may be, tried again
    cause: str | UnsetType = UNSET  #: the code of the last attempt, where the job's differs


class Observability(_Envelope, frozen=True, kw_only=True):
    """What is known about the attempt itself."""

    attempt: Positive = 1
    duration_ms: Count = 0
    log_fields: dict[str, Any] = {}


class RequestTrace(_Envelope, frozen=True, kw_only=True):
    """What the request belongs to."""

    trace_id: str


class RequestConstraints(_Envelope, frozen=True, kw_only=True):
    """Limits that a caller asks for; a contract's own are ceilings."""

    timeout_seconds: Positive | UnsetType = UNSET
    max_tokens: Positive | UnsetType = UNSET
    tools_allowed: list[str] | UnsetType = UNSET


class WorkerRequest(_Envelope, frozen=True, kw_only=True):
    """A request to a worker."""

    worker_id: str
    version: str | UnsetType = UNSET
    trace: RequestTrace | UnsetType = UNSET
    inputs: dict[str, Any]
    constraints: RequestConstraints | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class WorkerResponse(_Envelope, frozen=True, kw_only=True):
    """What one attempt came to; a handler may return one too."""

    status: AnswerStatus
    outputs: dict[str, Any] = {}
    error: AnswerError | UnsetType = UNSET
    logs: list[Any] = []
    observability: Observability = Observability()
    artifacts: list[Any] = []
