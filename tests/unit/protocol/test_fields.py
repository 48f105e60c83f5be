# SPDX-License-Identifier: MIT
"""The names, defaults and limits of every shape, held against tables written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields

from packhorse import protocol
from packhorse.protocol import (
    UNSET,
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
    to_wire,
)
from tests.unit.protocol.examples import MINIMAL, minimal, refusal

WIRE_NAMES = {
    "TaskRetryPolicy": "maxRetries backoffStrategy initialDelayMs maxDelayMs backoffMultiplier",
    "TaskMetadata": "createdAt updatedAt createdBy tags",
    "Task": "id type payload queue priority retryPolicy timeoutMs scheduledAt attempts status "
    "metadata",
    "TaskError": "message stack code",
    "TaskExecutionResult": "taskId status result error durationMs startedAt completedAt attempt "
    "willRetry",
    "RateLimit": "max duration durationMs",
    "AutoScale": "enabled minWorkers maxWorkers scaleUpThreshold scaleDownThreshold",
    "QueueConfig": "name concurrency rateLimit defaultRetryPolicy deadLetterQueue priority "
    "autoScale",
    "BatchTask": "id type items batchSize queue priority parallel stopOnError onProgress",
    "BatchProgress": "batchId total processed succeeded failed percentage status startedAt "
    "completedAt",
    "WorkerConfig": "name queues queueConfigs pollIntervalMs visibilityTimeoutMs "
    "defaultTimeoutMs shutdownTimeoutMs handlers",
    "QueueStats": "pending active completed failed",
    "WorkerStats": "workerName totalProcessed succeeded failed active avgExecutionMs uptimeMs "
    "queues",
}

WORDS = {
    "TaskPriority": "critical high normal low background",
    "TaskStatus": "pending queued processing completed failed cancelled timeout dead",
    "BatchStatus": "pending running completed failed cancelled",
    "BackoffStrategy": "fixed linear exponential",
}

DEFAULTS: dict[type[Shape], dict[str, Any]] = {
    TaskRetryPolicy: {
        "maxRetries": 3,
        "backoffStrategy": "exponential",
        "initialDelayMs": 1000,
        "maxDelayMs": 60_000,
        "backoffMultiplier": 2,
    },
    Task: {"queue": "default", "priority": "normal", "attempts": 0, "status": "pending"},
    QueueConfig: {"concurrency": 5, "priority": 0},
    AutoScale: {
        "enabled": False,
        "minWorkers": 1,
        "maxWorkers": 10,
        "scaleUpThreshold": 100,
        "scaleDownThreshold": 10,
    },
    BatchTask: {
        "batchSize": 100,
        "queue": "batch",
        "priority": "normal",
        "parallel": True,
        "stopOnError": False,
    },
    BatchProgress: {"processed": 0, "succeeded": 0, "failed": 0},
    WorkerConfig: {
        "pollIntervalMs": 1000,
        "visibilityTimeoutMs": 30_000,
        "defaultTimeoutMs": 300_000,
        "shutdownTimeoutMs": 30_000,
    },
}

#: Each field with a limit: the last values allowed and the first ones refused.
LIMITS: list[tuple[type[Shape], str, list[Any], list[Any]]] = [
    (TaskRetryPolicy, "maxRetries", [0], [-1]),
    (TaskRetryPolicy, "backoffStrategy", ["fixed", "linear"], ["Fixed", "none", ""]),
    (TaskRetryPolicy, "initialDelayMs", [1], [0, -1]),
    (TaskRetryPolicy, "maxDelayMs", [1], [0, -1]),
    (TaskRetryPolicy, "backoffMultiplier", [0.001, 1.5, 2], [0, 0.0, -1]),
    (Task, "id", [""], [1, ["a"]]),
    (Task, "type", ["_", "a9", "send_email"], ["", "9a", "Send", "send email", "sendé"]),
    (Task, "queue", [""], [5]),
    (Task, "priority", ["critical"], ["urgent", "medium", "NORMAL"]),
    (Task, "timeoutMs", [1], [0, -1]),
    (Task, "attempts", [0], [-1]),
    (Task, "status", ["dead"], ["running", "success", "Pending"]),
    (TaskMetadata, "createdBy", [""], [1]),
    (TaskMetadata, "tags", [[], ["a"]], ["a", {"0": "a"}]),
    (TaskError, "message", [""], [1]),
    (TaskError, "code", ["E"], [504]),
    (TaskExecutionResult, "durationMs", [-5, 0], ["5"]),
    (TaskExecutionResult, "attempt", [1], [0, -1]),
    (QueueConfig, "concurrency", [1], [0, -1]),
    (QueueConfig, "priority", [0], [-1]),
    (QueueConfig, "deadLetterQueue", ["dead"], [True]),
    (RateLimit, "max", [1], [0, -1]),
    (RateLimit, "duration", [1], [0, -1]),
    (AutoScale, "minWorkers", [1], [0]),
    (AutoScale, "maxWorkers", [1], [0]),
    (AutoScale, "scaleUpThreshold", [1], [0]),
    (AutoScale, "scaleDownThreshold", [0], [-1]),
    (BatchTask, "type", ["a"], ["A", "a-b"]),
    (BatchTask, "items", [[], [None, 1]], [{}, "abc"]),
    (BatchTask, "batchSize", [1], [0, -1]),
    (BatchTask, "priority", ["low"], ["urgent"]),
    (BatchProgress, "total", [0], [-1]),
    (BatchProgress, "processed", [0], [-1]),
    (BatchProgress, "succeeded", [0], [-1]),
    (BatchProgress, "failed", [0], [-1]),
    (BatchProgress, "percentage", [0, 33.3, 100], [-0.1, 100.1]),
    (BatchProgress, "status", ["running"], ["processing", "dead"]),
    (WorkerConfig, "queues", [["a"]], [[], "a"]),
    (WorkerConfig, "pollIntervalMs", [1], [0]),
    (WorkerConfig, "visibilityTimeoutMs", [1], [0]),
    (WorkerConfig, "defaultTimeoutMs", [1], [0]),
    (WorkerConfig, "shutdownTimeoutMs", [1], [0]),
    (QueueStats, "pending", [0], [-1]),
    (QueueStats, "active", [0], [-1]),
    (QueueStats, "completed", [0], [-1]),
    (QueueStats, "failed", [0], [-1]),
    (WorkerStats, "totalProcessed", [0], [-1]),
    (WorkerStats, "succeeded", [0], [-1]),
    (WorkerStats, "failed", [0], [-1]),
    (WorkerStats, "active", [0], [-1]),
    (WorkerStats, "avgExecutionMs", [0, 0.5], [-0.5]),
    (WorkerStats, "uptimeMs", [0], [-1]),
]
ALLOWED = [(shape, name, value) for shape, name, values, _ in LIMITS for value in values]
FORBIDDEN = [(shape, name, value) for shape, name, _, values in LIMITS for value in values]


@pytest.mark.req("S1-1")
@pytest.mark.parametrize("shape", WIRE_NAMES)
def test_a_shape_has_exactly_its_wire_names(shape: str) -> None:
    found = [field.encode_name for field in fields(getattr(protocol, shape))]
    assert sorted(found) == sorted(WIRE_NAMES[shape].split())


@pytest.mark.req("S1-1")
@pytest.mark.parametrize("enum", WORDS)
def test_an_enum_has_exactly_its_words_in_order(enum: str) -> None:
    assert [str(member.value) for member in getattr(protocol, enum)] == WORDS[enum].split()


@pytest.mark.req("S1-2")
@pytest.mark.parametrize("shape", DEFAULTS)
def test_every_default_is_applied_when_its_key_is_absent(shape: type[Shape]) -> None:
    assert to_wire(shape.parse(minimal(shape))) == {**minimal(shape), **DEFAULTS[shape]}


@pytest.mark.req("S1-3")
@pytest.mark.parametrize(("shape", "name", "value"), ALLOWED)
def test_a_value_at_its_limit_is_accepted(shape: type[Shape], name: str, value: object) -> None:
    assert to_wire(shape.parse(minimal(shape, **{name: value})))[name] == value


@pytest.mark.req("S1-3")
@pytest.mark.parametrize(("shape", "name", "value"), FORBIDDEN)
def test_a_value_beyond_its_limit_is_refused_with_its_path(
    shape: type[Shape], name: str, value: object
) -> None:
    error = refusal(shape, minimal(shape, **{name: value}))
    assert error.path == f"$.{name}"
    assert f"$.{name}" in str(error)
    assert "expected " in str(error)


@pytest.mark.req("S1-3")
@pytest.mark.parametrize(
    ("shape", "wire", "path"),
    [
        (Task, {"retryPolicy": {"maxRetries": -1}}, "$.retryPolicy.maxRetries"),
        (Task, {"metadata": {"tags": ["a", 2]}}, "$.metadata.tags[1]"),
        (TaskExecutionResult, {"error": {"code": "E"}}, "$.error.message"),
        (QueueConfig, {"autoScale": {"minWorkers": 0}}, "$.autoScale.minWorkers"),
        (QueueConfig, {"rateLimit": {"duration": 1}}, "$.rateLimit.max"),
        (
            WorkerConfig,
            {"queueConfigs": [{"name": "a"}, {"name": "b", "concurrency": 0}]},
            "$.queueConfigs[1].concurrency",
        ),
        (WorkerConfig, {"queues": ["a", None]}, "$.queues[1]"),
        (WorkerStats, {"queues": {"mail": {"pending": 0}}}, "$.queues.mail.active"),
        (WorkerStats, {"queues": {"my mail": 1}}, '$.queues["my mail"]'),
    ],
)
def test_a_refusal_inside_a_nested_object_has_the_whole_path(
    shape: type[Shape], wire: dict[str, object], path: str
) -> None:
    assert refusal(shape, minimal(shape, **wire)).path == path


@pytest.mark.req("S1-3")
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (shape, name)
        for shape, wire in MINIMAL.items()
        for name in wire
        if (shape, name) != (RateLimit, "duration")  # has another name: see test_rate_limit.py
    ],
)
def test_a_missing_required_field_is_refused_with_its_own_path(
    shape: type[Shape], name: str
) -> None:
    wire = minimal(shape)
    del wire[name]
    error = refusal(shape, wire)
    assert error.path == f"$.{name}"
    assert "is required" in str(error)


@pytest.mark.parametrize("value", [None, 5, True, [], "[]", b"5", "null"])
def test_what_is_not_an_object_is_refused_at_the_root(value: object) -> None:
    error = refusal(Task, value)
    assert error.path == "$"
    assert "expected an object" in str(error)


@pytest.mark.req("S1-5")
@pytest.mark.parametrize(
    ("shape", "name", "nested"),
    [
        (Task, "retryPolicy", TaskRetryPolicy),
        (QueueConfig, "defaultRetryPolicy", TaskRetryPolicy),
        (QueueConfig, "autoScale", AutoScale),
    ],
)
def test_a_partial_nested_object_is_filled_and_an_absent_one_stays_absent(
    shape: type[Shape], name: str, nested: type[Shape]
) -> None:
    for given, value in DEFAULTS[nested].items():
        filled = to_wire(shape.parse(minimal(shape, **{name: {given: value}})))[name]
        assert filled == DEFAULTS[nested]
    assert name not in to_wire(shape.parse(minimal(shape)))


@pytest.mark.req("S1-20")
def test_a_task_has_a_named_priority_and_a_queue_has_an_integer_one() -> None:
    assert Task.parse(minimal(Task, priority="critical")).priority == "critical"
    assert QueueConfig.parse(minimal(QueueConfig, priority=4)).priority == 4
    assert refusal(Task, minimal(Task, priority=4)).path == "$.priority"
    assert refusal(QueueConfig, minimal(QueueConfig, priority="critical")).path == "$.priority"


@pytest.mark.req("S1-58")
def test_running_is_a_status_of_batches_and_not_of_tasks() -> None:
    progress = BatchProgress.parse(minimal(BatchProgress, status="running"))
    assert progress.status == "running"
    assert refusal(Task, minimal(Task, status="running")).path == "$.status"


@pytest.mark.req("S1-59")
def test_batches_default_to_the_queue_batch_and_single_tasks_to_default() -> None:
    assert BatchTask.parse(minimal(BatchTask)).queue == "batch"
    assert Task.parse(minimal(Task)).queue == "default"


def test_worker_stats_before_the_first_task_need_no_average() -> None:
    stats = WorkerStats.parse(minimal(WorkerStats))
    assert stats.avg_execution_ms is UNSET
    assert "avgExecutionMs" not in to_wire(stats)
