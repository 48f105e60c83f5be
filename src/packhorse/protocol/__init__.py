# SPDX-License-Identifier: MIT
"""The worker protocol: the shapes other systems exchange with Packhorse, exactly as they name them.

    vocabulary   enums, `TASK_PRIORITY_VALUES` and the constrained scalars the shapes are made of
    instants     the wire's datetime strings, and microseconds since the epoch
    task         TaskRetryPolicy, Task, TaskExecutionResult and what is nested in them
    queue_config QueueConfig, RateLimit, AutoScale
    batch        BatchTask, BatchProgress
    worker       WorkerConfig, WorkerStats, QueueStats
    shape        the base of all shapes: `parse`, `parse_json`, `create`
    inspection   what msgspec knows of a shape, read once
    reading      plain data or JSON to a shape, or a ShapeError
    refusals     the words of a ShapeError: where, what was wanted, what came
    writing      a shape to plain data or JSON
    schema       a shape's JSON Schema
    settings     settings that are allowed one by one but contradict each other

A shape is built unchecked by its constructor, checked by `parse`, and written by `to_wire` or
`to_json`. Attributes are snake_case in Python and camelCase on the wire; what is absent is `UNSET`.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from packhorse.protocol.batch import BatchProgress, BatchTask, ProgressCallback
from packhorse.protocol.instants import instant_us, wire_datetime
from packhorse.protocol.queue_config import AutoScale, QueueConfig, RateLimit
from packhorse.protocol.reading import parse, parse_json
from packhorse.protocol.schema import json_schema
from packhorse.protocol.settings import check_settings
from packhorse.protocol.shape import Shape
from packhorse.protocol.task import (
    Task,
    TaskError,
    TaskExecutionResult,
    TaskMetadata,
    TaskRetryPolicy,
)
from packhorse.protocol.vocabulary import (
    TASK_PRIORITY_VALUES,
    BackoffStrategy,
    BatchStatus,
    TaskPriority,
    TaskStatus,
)
from packhorse.protocol.worker import Handler, QueueStats, WorkerConfig, WorkerStats
from packhorse.protocol.writing import to_json, to_wire

__all__ = [
    "TASK_PRIORITY_VALUES",
    "UNSET",
    "AutoScale",
    "BackoffStrategy",
    "BatchProgress",
    "BatchStatus",
    "BatchTask",
    "Handler",
    "ProgressCallback",
    "QueueConfig",
    "QueueStats",
    "RateLimit",
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
