# SPDX-License-Identifier: MIT
"""Properties that hold for every value of every shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from packhorse.protocol import RateLimit, Shape, Task, parse, to_json, to_wire
from packhorse.protocol.reading import is_function, struct_kind
from tests.unit.protocol.examples import MINIMAL, minimal, refusal

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
INSTANTS = st.datetimes().map(lambda moment: moment.isoformat() + "Z")
TYPE_NAMES = st.from_regex("[a-z_][a-z0-9_]{0,20}", fullmatch=True)
LARGEST = 2**53 - 1


def wire_objects(kind: inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    """Build any wire object that a shape should take, functions left out."""
    by_name = {
        field.encode_name: (field.required, wire_values(field.type))
        for field in kind.fields
        if not is_function(field.type)
    }
    return st.fixed_dictionaries(
        {name: values for name, (required, values) in by_name.items() if required},
        optional={name: values for name, (required, values) in by_name.items() if not required},
    )


def wire_values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata(extra_json_schema={"format": "date-time"}):
            return INSTANTS
        case inspect.Metadata():
            return TYPE_NAMES
        case inspect.StructType(cls=shape) if shape is RateLimit:
            return rate_limits()
        case inspect.StructType():
            return wire_objects(kind)
        case inspect.ListType():
            return st.lists(wire_values(kind.item_type), min_size=kind.min_length or 0, max_size=3)
        case inspect.DictType():
            return st.dictionaries(TEXTS, wire_values(kind.value_type), max_size=3)
        case _:
            return scalars(kind)


def scalars(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            highest = kind.le or 1e300
            return st.floats(0.001, highest) | st.integers(1, int(highest))
        case inspect.EnumType(cls=words):
            return st.sampled_from([member.value for member in words])
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType():
            return TEXTS
        case _:
            return JSON


def rate_limits() -> st.SearchStrategy[dict[str, Any]]:
    window = st.sampled_from(["duration", "durationMs"])
    return st.builds(
        lambda name, most, length: {"max": most, name: length},
        window,
        st.integers(1, LARGEST),
        st.integers(1, LARGEST),
    )


@pytest.mark.parametrize("shape", MINIMAL)
@given(data=st.data())
def test_what_is_written_parses_back_to_the_same_value(
    shape: type[Shape], data: st.DataObject
) -> None:
    wire = data.draw(wire_values(struct_kind(shape)))
    parsed = parse(shape, wire)
    written = to_wire(parsed)
    assert parse(shape, written) == parsed
    assert shape.parse_json(to_json(parsed)) == parsed
    assert json.loads(to_json(parsed)) == written
    assert parse(shape, parsed) == parsed


@pytest.mark.parametrize("shape", MINIMAL)
@given(data=st.data())
def test_what_was_given_is_written_unchanged(shape: type[Shape], data: st.DataObject) -> None:
    wire = data.draw(wire_values(struct_kind(shape)))
    written = to_wire(parse(shape, wire))
    assert_contains(written, wire)


def assert_contains(written: Any, wire: Any) -> None:
    """Compare all that `wire` holds; what is written may have defaults besides."""
    if isinstance(wire, dict):
        for name, value in wire.items():
            assert_contains(written[name], value)
    elif isinstance(wire, list):
        for one, other in zip(written, wire, strict=True):
            assert_contains(one, other)
    else:
        assert written == wire


@pytest.mark.req("S1-11")
@given(
    st.floats().filter(lambda number: not number.is_integer())
    | st.integers(min_value=LARGEST + 1)
    | st.integers(max_value=-1)
    | st.booleans()
    | st.integers().map(str)
    | st.none()
)
def test_a_count_refuses_everything_but_whole_numbers_in_range(value: object) -> None:
    assert refusal(Task, minimal(Task, attempts=value)).path == "$.attempts"


@pytest.mark.req("S1-11")
@given(st.integers(0, LARGEST))
def test_a_count_accepts_every_whole_number_in_range_also_as_a_float(value: int) -> None:
    assert Task.parse(minimal(Task, attempts=value)).attempts == value
    assert Task.parse(minimal(Task, attempts=float(value))).attempts == value


@given(JSON)
def test_whatever_is_not_a_task_is_refused_with_a_shape_error_and_no_other(value: object) -> None:
    refusal(Task, value)
    refusal(Task, json.dumps(value))
