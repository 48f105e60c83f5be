# SPDX-License-Identifier: MIT
"""The upstream test-suite of the worker protocol, case by case (REQUIREMENTS 2.12)."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.errors import ShapeError
from packhorse.protocol import (
    TASK_PRIORITY_VALUES,
    UNSET,
    BatchProgress,
    BatchTask,
    QueueConfig,
    Task,
    TaskExecutionResult,
    TaskPriority,
    TaskRetryPolicy,
    TaskStatus,
    WorkerConfig,
    WorkerStats,
    parse,
    to_wire,
)

pytestmark = pytest.mark.req("S1-4")

PRIORITIES = ["critical", "high", "normal", "low", "background"]
STATUSES = [
    "pending",
    "queued",
    "processing",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "dead",
]


@pytest.mark.parametrize("word", PRIORITIES)
def test_each_of_the_five_priorities_is_accepted(word: str) -> None:
    assert parse(TaskPriority, word) == word


@pytest.mark.parametrize("word", ["urgent", "medium"])
def test_a_priority_outside_the_five_is_rejected(word: str) -> None:
    with pytest.raises(ShapeError, match="'critical', 'high', 'normal', 'low', 'background'"):
        parse(TaskPriority, word)


def test_priorities_map_to_the_values_0_to_4() -> None:
    assert TASK_PRIORITY_VALUES == {
        "critical": 0,
        "high": 1,
        "normal": 2,
        "low": 3,
        "background": 4,
    }


@pytest.mark.parametrize("word", STATUSES)
def test_each_of_the_eight_statuses_is_accepted(word: str) -> None:
    assert parse(TaskStatus, word) == word


@pytest.mark.parametrize("word", ["running", "success"])
def test_a_status_outside_the_eight_is_rejected(word: str) -> None:
    with pytest.raises(ShapeError, match="'timeout', 'dead'"):
        parse(TaskStatus, word)


def test_a_full_retry_policy_is_accepted() -> None:
    wire = {
        "maxRetries": 5,
        "backoffStrategy": "exponential",
        "initialDelayMs": 2000,
        "maxDelayMs": 120_000,
        "backoffMultiplier": 3,
    }
    assert to_wire(TaskRetryPolicy.parse(wire)) == wire


def test_an_empty_retry_policy_gets_every_default() -> None:
    assert to_wire(TaskRetryPolicy.parse({})) == {
        "maxRetries": 3,
        "backoffStrategy": "exponential",
        "initialDelayMs": 1000,
        "maxDelayMs": 60_000,
        "backoffMultiplier": 2,
    }


@pytest.mark.parametrize("strategy", ["fixed", "linear", "exponential"])
def test_each_backoff_strategy_alone_is_accepted_and_kept(strategy: str) -> None:
    assert TaskRetryPolicy.parse({"backoffStrategy": strategy}).backoff_strategy == strategy


def test_zero_retries_are_accepted() -> None:
    assert TaskRetryPolicy.parse({"maxRetries": 0}).max_retries == 0


def test_negative_retries_are_rejected() -> None:
    with pytest.raises(ShapeError) as caught:
        TaskRetryPolicy.parse({"maxRetries": -1})
    assert caught.value.path == "$.maxRetries"


def minimal_task(**members: object) -> dict[str, Any]:
    return {"id": "task-1", "type": "send_email", "payload": {"to": "a@example.com"}, **members}


def test_a_minimal_task_is_accepted() -> None:
    task = Task.parse(minimal_task())
    assert (task.id, task.type, task.payload) == ("task-1", "send_email", {"to": "a@example.com"})


def test_a_minimal_task_gets_its_defaults() -> None:
    task = Task.parse(minimal_task())
    assert (task.queue, task.priority, task.attempts, task.status) == (
        "default",
        "normal",
        0,
        "pending",
    )


@pytest.mark.parametrize("name", ["send_email", "process_payment", "generate_report"])
def test_a_snake_case_task_type_is_accepted(name: str) -> None:
    assert Task.parse(minimal_task(type=name)).type == name


@pytest.mark.parametrize("name", ["SendEmail", "send-email", "sendEmail", "123_invalid"])
def test_a_task_type_that_is_not_snake_case_is_rejected(name: str) -> None:
    with pytest.raises(ShapeError) as caught:
        Task.parse(minimal_task(type=name))
    assert caught.value.path == "$.type"


def test_a_task_with_all_fields_is_accepted_and_keeps_the_order_of_its_tags() -> None:
    wire = minimal_task(
        queue="notifications",
        priority="high",
        retryPolicy={
            "maxRetries": 5,
            "backoffStrategy": "exponential",
            "initialDelayMs": 1000,
            "maxDelayMs": 60_000,
        },
        timeoutMs=300_000,
        scheduledAt="2026-01-31T09:30:00Z",
        attempts=0,
        status="pending",
        metadata={
            "createdAt": "2026-01-31T09:00:00Z",
            "updatedAt": "2026-01-31T09:00:00Z",
            "createdBy": "user-1",
            "tags": ["welcome", "email", "onboarding"],
        },
    )
    task = Task.parse(wire)
    assert task.metadata
    assert task.metadata.tags == ["welcome", "email", "onboarding"]
    written = to_wire(task)
    assert written.pop("retryPolicy") == {**wire.pop("retryPolicy"), "backoffMultiplier": 2}
    assert written == wire


@pytest.mark.parametrize("word", PRIORITIES)
def test_a_task_keeps_each_priority(word: str) -> None:
    assert Task.parse(minimal_task(priority=word)).priority == word


@pytest.mark.parametrize("word", STATUSES)
def test_a_task_keeps_each_status(word: str) -> None:
    assert Task.parse(minimal_task(status=word)).status == word


def test_a_completed_result_is_accepted() -> None:
    wire = {
        "taskId": "task-1",
        "status": "completed",
        "result": {"messageId": "m-1"},
        "durationMs": 1500,
        "startedAt": "2026-01-31T09:30:00Z",
        "completedAt": "2026-01-31T09:30:01.500Z",
        "attempt": 1,
        "willRetry": False,
    }
    assert to_wire(TaskExecutionResult.parse(wire)) == wire


def test_a_failed_result_with_its_error_is_accepted() -> None:
    wire = {
        "taskId": "task-1",
        "status": "failed",
        "error": {
            "message": "Connection timeout",
            "stack": "Error: Connection timeout\n    at send",
            "code": "ETIMEDOUT",
        },
        "durationMs": 5000,
        "startedAt": "2026-01-31T09:30:00Z",
        "completedAt": "2026-01-31T09:30:05Z",
        "attempt": 2,
        "willRetry": True,
    }
    assert to_wire(TaskExecutionResult.parse(wire)) == wire


def test_a_timeout_result_without_duration_is_accepted() -> None:
    wire = {
        "taskId": "task-1",
        "status": "timeout",
        "error": {"message": "Task exceeded 300000ms timeout", "code": "TASK_TIMEOUT"},
        "startedAt": "2026-01-31T09:30:00Z",
        "attempt": 1,
        "willRetry": False,
    }
    result = TaskExecutionResult.parse(wire)
    assert result.duration_ms is UNSET
    assert to_wire(result) == wire


def test_a_queue_config_with_only_a_name_is_accepted() -> None:
    config = QueueConfig.parse({"name": "notifications"})
    assert (config.name, config.concurrency, config.priority) == ("notifications", 5, 0)


def test_a_queue_config_with_a_rate_limit_is_accepted() -> None:
    config = QueueConfig.parse({"name": "api", "rateLimit": {"max": 100, "duration": 60_000}})
    assert config.rate_limit
    assert (config.rate_limit.max, config.rate_limit.window_ms) == (100, 60_000)


def test_a_queue_config_with_auto_scaling_is_accepted() -> None:
    scale = {
        "enabled": True,
        "minWorkers": 2,
        "maxWorkers": 20,
        "scaleUpThreshold": 200,
        "scaleDownThreshold": 20,
    }
    config = QueueConfig.parse({"name": "jobs", "autoScale": scale})
    assert to_wire(config)["autoScale"] == scale


def test_a_queue_config_with_dead_letters_and_a_partial_retry_policy_is_accepted() -> None:
    config = QueueConfig.parse(
        {
            "name": "jobs",
            "deadLetterQueue": "jobs_dead",
            "defaultRetryPolicy": {"maxRetries": 5, "backoffStrategy": "linear"},
        }
    )
    assert config.dead_letter_queue == "jobs_dead"
    assert config.default_retry_policy == TaskRetryPolicy.parse(
        {"maxRetries": 5, "backoffStrategy": "linear"}
    )


def test_a_minimal_batch_is_accepted_with_its_defaults() -> None:
    batch = BatchTask.parse({"id": "batch-1", "type": "import_rows", "items": [1, 2, 3]})
    assert (batch.batch_size, batch.queue, batch.priority, batch.parallel, batch.stop_on_error) == (
        100,
        "batch",
        "normal",
        True,
        False,
    )


def test_a_batch_with_its_own_settings_is_accepted() -> None:
    wire = {
        "id": "batch-1",
        "type": "import_rows",
        "items": [{"row": number} for number in range(500)],
        "batchSize": 50,
        "queue": "imports",
        "priority": "low",
        "parallel": False,
        "stopOnError": True,
    }
    assert to_wire(BatchTask.parse(wire)) == wire


def test_a_batch_half_way_is_accepted() -> None:
    wire = {
        "batchId": "batch-1",
        "total": 1000,
        "processed": 500,
        "succeeded": 480,
        "failed": 20,
        "percentage": 50,
        "status": "running",
        "startedAt": "2026-01-31T09:30:00Z",
    }
    assert to_wire(BatchProgress.parse(wire)) == wire


def test_the_counts_of_a_batch_default_to_zero() -> None:
    progress = BatchProgress.parse(
        {"batchId": "batch-1", "total": 100, "percentage": 0, "status": "pending"}
    )
    assert (progress.processed, progress.succeeded, progress.failed) == (0, 0, 0)


def test_a_minimal_worker_config_is_accepted_with_its_defaults() -> None:
    config = WorkerConfig.parse({"name": "worker-1", "queues": ["default"]})
    assert config.poll_interval_ms == 1000
    assert config.visibility_timeout_ms == 30_000
    assert config.default_timeout_ms == 300_000
    assert config.shutdown_timeout_ms == 30_000


def test_a_worker_config_with_queue_configs_is_accepted() -> None:
    config = WorkerConfig.parse(
        {
            "name": "worker-1",
            "queues": ["mail", "reports"],
            "queueConfigs": [{"name": "mail", "concurrency": 10}, {"name": "reports"}],
            "pollIntervalMs": 500,
            "defaultTimeoutMs": 600_000,
        }
    )
    assert config.queue_configs
    assert [queue.concurrency for queue in config.queue_configs] == [10, 5]
    assert (config.poll_interval_ms, config.default_timeout_ms) == (500, 600_000)


def test_a_worker_config_without_queues_is_rejected() -> None:
    with pytest.raises(ShapeError) as caught:
        WorkerConfig.parse({"name": "worker-1", "queues": []})
    assert caught.value.path == "$.queues"


def test_full_worker_stats_are_accepted() -> None:
    wire = {
        "workerName": "worker-1",
        "totalProcessed": 1000,
        "succeeded": 950,
        "failed": 50,
        "active": 5,
        "avgExecutionMs": 1500.5,
        "uptimeMs": 3_600_000,
        "queues": {
            "mail": {"pending": 10, "active": 3, "completed": 500, "failed": 20},
            "reports": {"pending": 5, "active": 2, "completed": 450, "failed": 30},
        },
    }
    assert to_wire(WorkerStats.parse(wire)) == wire


def test_an_email_task_is_accepted() -> None:
    task = Task.parse(
        {
            "id": "email-1",
            "type": "send_email",
            "payload": {"to": "user@example.com", "template": "welcome"},
            "queue": "notifications",
            "priority": "high",
            "retryPolicy": {"maxRetries": 3, "backoffStrategy": "exponential"},
        }
    )
    assert (task.queue, task.priority) == ("notifications", "high")


def test_a_batch_of_a_thousand_items_is_accepted() -> None:
    items = [{"id": number} for number in range(1000)]
    batch = BatchTask.parse({"id": "batch-1", "type": "process_record", "items": items})
    assert batch.items == items


def test_a_scheduled_task_with_a_timeout_of_an_hour_is_accepted() -> None:
    task = Task.parse(
        minimal_task(
            type="generate_report", scheduledAt="2026-02-01T02:00:00Z", timeoutMs=3_600_000
        )
    )
    assert (task.scheduled_at, task.timeout_ms) == ("2026-02-01T02:00:00Z", 3_600_000)


def test_tasks_sort_by_priority_value_with_critical_first_and_background_last() -> None:
    words = ["low", "critical", "background", "normal", "high"]
    tasks = [Task.parse(minimal_task(priority=word)) for word in words]
    ordered = sorted(tasks, key=lambda task: TASK_PRIORITY_VALUES[task.priority])
    assert [task.priority for task in ordered] == PRIORITIES
