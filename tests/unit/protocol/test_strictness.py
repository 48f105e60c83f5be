# SPDX-License-Identifier: MIT
"""What is dropped, what is refused, and what passes although it looks odd."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import inspect

from packhorse.errors import ConfigError, ShapeError
from packhorse.protocol import (
    UNSET,
    AutoScale,
    BatchProgress,
    BatchTask,
    QueueConfig,
    RateLimit,
    Shape,
    Task,
    TaskExecutionResult,
    TaskMetadata,
    TaskPriority,
    TaskRetryPolicy,
    TaskStatus,
    WorkerConfig,
    WorkerStats,
    parse,
    parse_json,
    to_wire,
)
from packhorse.protocol.reading import expected
from tests.unit.protocol.examples import MINIMAL, minimal, refusal

OPTIONAL: list[tuple[type[Shape], str]] = [
    (Task, "retryPolicy"),
    (Task, "timeoutMs"),
    (Task, "scheduledAt"),
    (Task, "metadata"),
    (TaskMetadata, "createdAt"),
    (TaskMetadata, "updatedAt"),
    (TaskMetadata, "createdBy"),
    (TaskMetadata, "tags"),
    (TaskExecutionResult, "error"),
    (TaskExecutionResult, "durationMs"),
    (TaskExecutionResult, "completedAt"),
    (QueueConfig, "rateLimit"),
    (QueueConfig, "defaultRetryPolicy"),
    (QueueConfig, "deadLetterQueue"),
    (QueueConfig, "autoScale"),
    (BatchTask, "onProgress"),
    (BatchProgress, "startedAt"),
    (BatchProgress, "completedAt"),
    (WorkerConfig, "queueConfigs"),
    (WorkerConfig, "handlers"),
    (WorkerStats, "avgExecutionMs"),
    (WorkerStats, "queues"),
]
DEFAULTED: list[tuple[type[Shape], str]] = [
    (TaskRetryPolicy, "maxRetries"),
    (TaskRetryPolicy, "backoffStrategy"),
    (Task, "queue"),
    (Task, "priority"),
    (Task, "status"),
    (QueueConfig, "concurrency"),
    (AutoScale, "enabled"),
    (BatchTask, "parallel"),
]
INTEGERS: list[tuple[type[Shape], str]] = [
    (TaskRetryPolicy, "maxRetries"),
    (TaskRetryPolicy, "initialDelayMs"),
    (TaskRetryPolicy, "maxDelayMs"),
    (Task, "timeoutMs"),
    (Task, "attempts"),
    (TaskExecutionResult, "durationMs"),
    (TaskExecutionResult, "attempt"),
    (QueueConfig, "concurrency"),
    (QueueConfig, "priority"),
    (RateLimit, "max"),
    (RateLimit, "duration"),
    (AutoScale, "minWorkers"),
    (AutoScale, "maxWorkers"),
    (AutoScale, "scaleUpThreshold"),
    (AutoScale, "scaleDownThreshold"),
    (BatchTask, "batchSize"),
    (BatchProgress, "total"),
    (BatchProgress, "processed"),
    (WorkerConfig, "pollIntervalMs"),
    (WorkerConfig, "visibilityTimeoutMs"),
    (WorkerConfig, "defaultTimeoutMs"),
    (WorkerConfig, "shutdownTimeoutMs"),
    (WorkerStats, "totalProcessed"),
    (WorkerStats, "uptimeMs"),
]
NUMBERS: list[tuple[type[Shape], str]] = [
    (TaskRetryPolicy, "backoffMultiplier"),
    (BatchProgress, "percentage"),
    (WorkerStats, "avgExecutionMs"),
]
BOOLEANS: list[tuple[type[Shape], str]] = [
    (TaskExecutionResult, "willRetry"),
    (AutoScale, "enabled"),
    (BatchTask, "parallel"),
    (BatchTask, "stopOnError"),
]
LARGEST = 2**53 - 1


@pytest.mark.req("S1-6")
@pytest.mark.parametrize("shape", [shape for shape in MINIMAL if shape is not RateLimit])
def test_an_unknown_key_is_dropped(shape: type[Shape]) -> None:
    plain = shape.parse(minimal(shape))
    assert shape.parse(minimal(shape, color="red", retry_policy=None)) == plain
    assert "color" not in to_wire(plain)


@pytest.mark.req("S1-6")
def test_an_unknown_key_of_a_nested_object_is_dropped() -> None:
    task = Task.parse(minimal(Task, retryPolicy={"maxRetries": 1, "jitter": True}))
    assert "jitter" not in to_wire(task)["retryPolicy"]


@pytest.mark.req("S1-7")
@pytest.mark.parametrize(("shape", "name"), OPTIONAL + DEFAULTED)
def test_an_explicit_null_is_refused(shape: type[Shape], name: str) -> None:
    error = refusal(shape, minimal(shape, **{name: None}))
    assert error.path == f"$.{name}"
    assert "got null; leave the key out" in str(error)


@pytest.mark.req("S1-7")
@pytest.mark.parametrize(("shape", "name"), OPTIONAL)
def test_an_unset_field_is_left_out_of_what_is_written(shape: type[Shape], name: str) -> None:
    written = to_wire(shape.parse(minimal(shape)))
    assert name not in written
    assert None not in written.values()


def test_an_unset_field_reads_as_unset_which_is_false() -> None:
    task = Task.parse(minimal(Task))
    assert task.retry_policy is UNSET
    assert not task.timeout_ms


@pytest.mark.req("S1-8")
def test_the_payload_key_must_be_present() -> None:
    error = refusal(Task, {"id": "task-1", "type": "send_email"})
    assert error.path == "$.payload"
    assert "is required" in str(error)


@pytest.mark.req("S1-8")
@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}, {"deep": [{"er": None}]}])
def test_the_payload_may_be_anything_and_is_written_even_when_null(payload: object) -> None:
    task = Task.parse(minimal(Task, payload=payload))
    assert task.payload == payload
    assert to_wire(task)["payload"] == payload


@pytest.mark.parametrize("wire", [{"result": None}, {"result": 0}])
def test_a_result_may_be_null_because_a_function_may_return_nothing(wire: dict[str, Any]) -> None:
    result = TaskExecutionResult.parse(minimal(TaskExecutionResult, **wire))
    assert to_wire(result)["result"] == wire["result"]


@pytest.mark.req("S1-11")
@pytest.mark.parametrize(("shape", "name"), INTEGERS)
@pytest.mark.parametrize(
    "value",
    [True, False, "5", 5.5, LARGEST + 1, -LARGEST - 1, float(2**53), float("nan"), float("inf")],
)
def test_an_integer_field_refuses(shape: type[Shape], name: str, value: object) -> None:
    error = refusal(shape, minimal(shape, **{name: value}))
    assert error.path == f"$.{name}"
    assert "expected an integer" in str(error)


@pytest.mark.req("S1-11")
@pytest.mark.parametrize(("shape", "name"), INTEGERS)
@pytest.mark.parametrize(("value", "kept"), [(5, 5), (5.0, 5), (LARGEST, LARGEST)])
def test_an_integer_field_accepts(shape: type[Shape], name: str, value: float, kept: int) -> None:
    written = to_wire(shape.parse(minimal(shape, **{name: value})))[name]
    assert written == kept
    assert type(written) is int


def test_an_integer_of_thousands_of_digits_is_refused_without_printing_it() -> None:
    error = refusal(Task, minimal(Task, timeoutMs=10**5000))
    assert error.path == "$.timeoutMs"
    assert "beyond 64 bits" in str(error)


@pytest.mark.req("S1-11")
@pytest.mark.parametrize(("shape", "name"), NUMBERS)
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), 10**400, True, "1"],
    ids=["nan", "inf", "-inf", "10**400", "true", "text"],
)
def test_a_number_field_refuses(shape: type[Shape], name: str, value: object) -> None:
    error = refusal(shape, minimal(shape, **{name: value}))
    assert error.path == f"$.{name}"
    assert "a finite number" in str(error)


@pytest.mark.req("S1-11")
@pytest.mark.parametrize(("shape", "name"), BOOLEANS)
@pytest.mark.parametrize("value", [0, 1, "true", 1.0])
def test_a_boolean_field_refuses(shape: type[Shape], name: str, value: object) -> None:
    error = refusal(shape, minimal(shape, **{name: value}))
    assert error.path == f"$.{name}"
    assert "expected true or false" in str(error)


@pytest.mark.req("S1-12")
@pytest.mark.parametrize("shape", [Task, BatchTask])
@pytest.mark.parametrize("name", ["send_email\n", "\nsend_email", "send_email\r", "send\nemail"])
def test_a_task_type_with_a_newline_is_refused(shape: type[Shape], name: str) -> None:
    assert refusal(shape, minimal(shape, type=name)).path == "$.type"


@pytest.mark.req("S1-13")
@pytest.mark.parametrize("value", [0, 2, 5, "2", 2.0, "Normal", "NORMAL", " normal", True])
def test_a_priority_that_is_not_exactly_a_word_is_refused(value: object) -> None:
    error = refusal(Task, minimal(Task, priority=value))
    assert error.path == "$.priority"
    assert "'critical', 'high', 'normal', 'low', 'background'" in str(error)


@pytest.mark.req("S1-13")
@pytest.mark.parametrize("value", [0, "Pending", "PENDING", "pending\n", ["pending"]])
def test_a_status_that_is_not_exactly_a_word_is_refused(value: object) -> None:
    assert refusal(Task, minimal(Task, status=value)).path == "$.status"


@pytest.mark.req("S1-13")
def test_a_word_is_written_as_a_plain_string() -> None:
    written = to_wire(Task.parse(minimal(Task)))
    assert type(written["priority"]) is str
    assert type(written["status"]) is str


@pytest.mark.parametrize("parser", [Task.parse, Task.parse_json, lambda data: parse(Task, data)])
def test_json_text_and_bytes_are_read_as_the_object_they_hold(parser: Any) -> None:
    wire = minimal(Task, retryPolicy={"maxRetries": 1})
    text = json.dumps(wire)
    assert parser(text) == parser(text.encode()) == Task.parse(wire)


def test_an_enum_takes_its_word_and_json_takes_it_quoted() -> None:
    assert TaskPriority.parse("high") is TaskPriority.HIGH
    assert TaskStatus.parse_json('"dead"') is TaskStatus.DEAD
    assert parse(TaskPriority, b'"high"') is parse_json(TaskPriority, '"high"')


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}x", b"\xff", '{"id": NaN}', "[" * 100_000],
    ids=["empty", "open", "trailing", "not UTF-8", "NaN", "deep"],
)
def test_what_is_not_json_is_refused_at_the_root(data: str | bytes) -> None:
    with pytest.raises(ShapeError, match="expected JSON") as caught:
        Task.parse_json(data)
    assert caught.value.path == "$"


def test_an_unchecked_instance_is_checked_by_parse() -> None:
    unchecked = Task(id="task-1", type="Send Email", payload=None)
    assert refusal(Task, unchecked).path == "$.type"
    nested = QueueConfig(name="mail", auto_scale=AutoScale(min_workers=0))
    assert refusal(WorkerConfig, minimal(WorkerConfig, queueConfigs=[nested])).path == (
        "$.queueConfigs[0].autoScale.minWorkers"
    )


def test_a_shape_error_is_a_config_error_with_a_stable_code() -> None:
    error = refusal(Task, {})
    assert isinstance(error, ConfigError)
    assert error.code == "INVALID_SHAPE"


def test_a_long_refused_value_is_cut_in_the_message() -> None:
    assert len(str(refusal(Task, minimal(Task, type="A" * 10_000)))) < 300


def test_a_kind_with_extra_words_of_other_sorts_is_still_described_by_its_type() -> None:
    described = inspect.Metadata(type=inspect.BoolType(), extra_json_schema={"title": "Flag"})
    assert expected(described) == "true or false"
