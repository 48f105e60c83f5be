# SPDX-License-Identifier: MIT
"""The exported JSON Schema says what parse does."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import pytest

from packhorse.protocol import (
    BatchTask,
    RateLimit,
    Shape,
    Task,
    TaskPriority,
    TaskRetryPolicy,
    TaskStatus,
    WorkerConfig,
    json_schema,
)
from packhorse.protocol.reading import struct_kind
from tests.unit.protocol.examples import MINIMAL, minimal, refusal


@pytest.mark.parametrize("shape", [*MINIMAL, TaskPriority, TaskStatus])
def test_a_schema_is_plain_json_of_the_2020_dialect_named_after_its_shape(
    shape: type[Shape | Enum],
) -> None:
    schema = json_schema(shape)
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == shape.__name__


@pytest.mark.parametrize("shape", MINIMAL)
def test_a_schema_has_every_wire_name_and_requires_what_parse_requires(shape: type[Shape]) -> None:
    schema = json_schema(shape)
    kind = struct_kind(shape)
    assert set(schema["properties"]) == {field.encode_name for field in kind.fields}
    for name in schema["properties"]:
        wire = minimal(shape)
        wire.pop(name, None)
        if name in schema["required"]:
            assert refusal(shape, wire).path == f"$.{name}"
        elif "anyOf" not in schema:
            shape.parse(wire)


@pytest.mark.parametrize("shape", [*MINIMAL, TaskPriority])
def test_every_reference_in_a_schema_leads_to_a_definition(shape: type[Shape | Enum]) -> None:
    schema = json_schema(shape)
    references = re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema))
    assert set(references) == set(schema.get("$defs", {}))


def test_limits_and_defaults_are_in_the_schema() -> None:
    properties = json_schema(TaskRetryPolicy)["properties"]
    assert properties["maxRetries"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 2**53 - 1,
        "default": 3,
    }
    assert properties["backoffMultiplier"] == {
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 2,
    }


def test_words_are_in_the_schema() -> None:
    assert sorted(json_schema(TaskPriority)["enum"]) == sorted(TaskPriority)
    assert sorted(json_schema(TaskStatus)["enum"]) == sorted(TaskStatus)


def test_patterns_are_anchored_at_both_ends() -> None:
    properties = json_schema(Task)["properties"]
    assert properties["type"]["pattern"] == "^[a-z_][a-z0-9_]*$"
    assert properties["scheduledAt"]["format"] == "date-time"
    pattern = properties["scheduledAt"]["pattern"]
    assert re.search(pattern, "2024-02-29T09:30:00.5Z")
    assert not re.search(pattern, "2023-02-29T09:30:00Z")
    assert not re.search(pattern, "at 2024-02-29T09:30:00Z")


def test_functions_cannot_come_from_json() -> None:
    forbidden: dict[str, Any] = {
        "not": {},
        "description": "A Python function; it cannot come from JSON.",
    }
    assert json_schema(BatchTask)["properties"]["onProgress"] == forbidden
    handlers = json_schema(WorkerConfig)["properties"]["handlers"]
    assert handlers == {"type": "object", "additionalProperties": forbidden}


def test_a_schema_may_be_changed_by_its_caller_without_changing_the_next() -> None:
    json_schema(BatchTask)["properties"]["onProgress"].clear()
    assert json_schema(BatchTask)["properties"]["onProgress"]
    json_schema(RateLimit)["anyOf"].clear()
    assert json_schema(RateLimit)["anyOf"]
