# SPDX-License-Identifier: MIT
"""What is written, what is left out, and what cannot be written at all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from packhorse.errors import ShapeError
from packhorse.protocol import (
    BatchTask,
    QueueConfig,
    Task,
    TaskMetadata,
    TaskRetryPolicy,
    WorkerConfig,
    WorkerStats,
    to_json,
    to_wire,
)
from tests.unit.protocol.examples import minimal, refusal


class Level(IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def task(payload: object) -> Task:
    return Task(id="task-1", type="send_email", payload=payload)


def on_progress(progress: Mapping[str, int]) -> None:
    del progress


def nested(depth: int) -> list[Any]:
    inside: list[Any] = []
    for _ in range(depth):
        inside = [inside]
    return inside


def test_functions_are_accepted_from_python_and_left_out_of_what_is_written() -> None:
    batch = BatchTask.parse(minimal(BatchTask, onProgress=on_progress))
    config = WorkerConfig.parse(minimal(WorkerConfig, handlers={"send_email": on_progress}))
    assert batch.on_progress is on_progress
    assert config.handlers == {"send_email": on_progress}
    assert "onProgress" not in to_wire(batch)
    assert "handlers" not in to_wire(config)


@pytest.mark.parametrize("value", ["on_progress", {}, 1])
def test_a_progress_callback_from_json_is_refused(value: object) -> None:
    error = refusal(BatchTask, minimal(BatchTask, onProgress=value))
    assert error.path == "$.onProgress"
    assert "Python function" in str(error)


def test_a_handler_that_cannot_be_called_is_refused_by_its_task_type() -> None:
    error = refusal(WorkerConfig, minimal(WorkerConfig, handlers={"send_email": "mail.send"}))
    assert error.path == "$.handlers.send_email"


def test_a_handler_under_a_name_that_is_not_text_is_refused() -> None:
    error = refusal(WorkerConfig, minimal(WorkerConfig, handlers={1: on_progress}))
    assert error.path == "$.handlers"
    assert "expected a string, got 1" in str(error)


@pytest.mark.req("S1-7")
def test_none_given_to_a_constructor_is_never_written_as_null() -> None:
    metadata = TaskMetadata(created_by=None)  # type: ignore[arg-type]  # as untyped code would
    unchecked = Task(
        id="task-1",
        type="send_email",
        payload=None,
        timeout_ms=None,  # type: ignore[arg-type]  # as untyped code would
        metadata=metadata,
    )
    written = to_wire(unchecked)
    assert "timeoutMs" not in written
    assert written["metadata"] == {}
    assert written["payload"] is None
    assert Task.parse(unchecked) == Task.parse(written)


@pytest.mark.req("S1-7")
def test_msgspec_itself_leaves_unset_fields_out() -> None:
    parsed = QueueConfig.parse(minimal(QueueConfig))
    assert msgspec.json.decode(msgspec.json.encode([parsed])) == [to_wire(parsed)]


def test_defaults_are_written_and_a_shape_is_immutable() -> None:
    policy = TaskRetryPolicy()
    assert to_wire(policy)["maxRetries"] == 3
    with pytest.raises(AttributeError):
        policy.max_retries = 4  # type: ignore[misc]  # frozen, as mypy knows


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        ((1, 2), [1, 2]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Level.HIGH, 3),
        (Name("text"), "text"),
        (datetime(2026, 1, 31, 9, 30, tzinfo=UTC), "2026-01-31T09:30:00Z"),
        ([{"deep": (None, True)}], [{"deep": [None, True]}]),
    ],
)
def test_a_payload_of_python_values_is_written_as_plain_data(
    payload: object, written: object
) -> None:
    plain = to_wire(task(payload))["payload"]
    assert plain == written
    assert type(plain) is type(written)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (float("nan"), "$.payload"),
        ({"a": [1, float("inf")]}, "$.payload.a[1]"),
        ({"a b": float("-inf")}, '$.payload["a b"]'),
        ({1: 2}, "$.payload"),
        ([object()], "$.payload[0]"),
        (nested(100_000), "$"),
    ],
    ids=["NaN", "inf", "-inf", "integer key", "object", "deep"],
)
def test_what_json_cannot_carry_unchanged_is_refused_with_its_path(
    payload: object, path: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        to_json(task(payload))
    assert caught.value.path == path


@pytest.mark.parametrize("payload", ["\ud800", 10**5000], ids=["surrogate", "huge integer"])
def test_what_the_json_writer_cannot_encode_is_a_shape_error(payload: object) -> None:
    with pytest.raises(ShapeError, match="JSON cannot carry it"):
        to_json(task(payload))


def test_an_average_that_is_not_a_number_is_refused_and_not_written_as_null() -> None:
    stats = WorkerStats(
        worker_name="worker-1",
        total_processed=0,
        succeeded=0,
        failed=0,
        active=0,
        uptime_ms=0,
        avg_execution_ms=float("nan"),
    )
    with pytest.raises(ShapeError) as caught:
        to_json(stats)
    assert caught.value.path == "$.avgExecutionMs"
