# SPDX-License-Identifier: MIT
"""Wire objects that the tests start from, and how they look at a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from packhorse.errors import ShapeError
from packhorse.protocol import (
    AutoScale,
    BatchProgress,
    BatchTask,
    QueueConfig,
    QueueStats,
    RateLimit,
    Shape,
    Task,
    TaskError,
    TaskExecutionResult,
    TaskMetadata,
    TaskRetryPolicy,
    WorkerConfig,
    WorkerStats,
    parse,
)

STARTED: Final = "2026-01-31T09:30:00Z"

#: The least that each object shape takes.
MINIMAL: Final[Mapping[type[Shape], Mapping[str, Any]]] = {
    TaskRetryPolicy: {},
    TaskMetadata: {},
    Task: {"id": "task-1", "type": "send_email", "payload": {"to": "a@example.com"}},
    TaskError: {"message": "boom"},
    TaskExecutionResult: {
        "taskId": "task-1",
        "status": "completed",
        "startedAt": STARTED,
        "attempt": 1,
        "willRetry": False,
    },
    RateLimit: {"max": 100, "duration": 60_000},
    AutoScale: {},
    QueueConfig: {"name": "mail"},
    BatchTask: {"id": "batch-1", "type": "import_rows", "items": []},
    BatchProgress: {"batchId": "batch-1", "total": 10, "percentage": 0, "status": "pending"},
    WorkerConfig: {"name": "worker-1", "queues": ["default"]},
    QueueStats: {"pending": 0, "active": 0, "completed": 0, "failed": 0},
    WorkerStats: {
        "workerName": "worker-1",
        "totalProcessed": 0,
        "succeeded": 0,
        "failed": 0,
        "active": 0,
        "uptimeMs": 0,
    },
}


def minimal(shape: type[Shape], /, **members: object) -> dict[str, Any]:
    """Return the least wire object of a shape, with `members` set on top."""
    return {**MINIMAL[shape], **members}


def refusal(shape: type[Shape], wire: object) -> ShapeError:
    """Return the error with which `wire` is refused; fail if it is taken."""
    with pytest.raises(ShapeError) as caught:
        parse(shape, wire)
    return caught.value
