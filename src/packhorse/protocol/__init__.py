# SPDX-License-Identifier: MIT
"""The worker protocol: the shapes other systems exchange with Packhorse, exactly as they name them.

    scalars   enums, bounded numbers and texts, datetime strings
    shapes    Task, WorkerConfig, QueueConfig and the others, with `parse`, `parse_json`, `create`;
              WorkerRequest and WorkerResponse, the envelope
    reading   plain data or JSON to a shape, or a ShapeError
    writing   a shape to plain data or JSON
    checks    a shape's JSON Schema; settings that contradict each other

A shape is built unchecked by its constructor, checked by `parse`, and written by `to_wire` or
`to_json`. Attributes are snake_case in Python and camelCase on the wire; what is absent is `UNSET`.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from packhorse.protocol.checks import check_settings, json_schema
from packhorse.protocol.reading import parse, parse_json
from packhorse.protocol.scalars import (
    TASK_PRIORITY_VALUES,
    BackoffStrategy,
    BatchStatus,
    TaskPriority,
    TaskStatus,
    instant_us,
    wire_datetime,
)
from packhorse.protocol.shapes import (
    AnswerError,
    AnswerStatus,
    AutoScale,
    BatchProgress,
    BatchTask,
    Handler,
    Observability,
    ProgressCallback,
    QueueConfig,
    QueueStats,
    RateLimit,
    RequestConstraints,
    RequestTrace,
    Shape,
    Task,
    TaskError,
    TaskExecutionResult,
    TaskMetadata,
    TaskRetryPolicy,
    WorkerConfig,
    WorkerRequest,
    WorkerResponse,
    WorkerStats,
)
from packhorse.protocol.writing import to_json, to_wire

__all__ = [
    "TASK_PRIORITY_VALUES",
    "UNSET",
    "AnswerError",
    "AnswerStatus",
    "AutoScale",
    "BackoffStrategy",
    "BatchProgress",
    "BatchStatus",
    "BatchTask",
    "Handler",
    "Observability",
    "ProgressCallback",
    "QueueConfig",
    "QueueStats",
    "RateLimit",
    "RequestConstraints",
    "RequestTrace",
    "Shape",
    "Task",
    "TaskError",
    "TaskExecutionResult",
    "TaskMetadata",
    "TaskPriority",
    "TaskRetryPolicy",
    "TaskStatus",
    "UnsetType",
    "WorkerConfig",
    "WorkerRequest",
    "WorkerResponse",
    "WorkerStats",
    "check_settings",
    "instant_us",
    "json_schema",
    "parse",
    "parse_json",
    "to_json",
    "to_wire",
    "wire_datetime",
]
