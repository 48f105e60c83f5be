# SPDX-License-Identifier: MIT
"""Writing: a shape to plain data or JSON, unset fields left out and nothing changed on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

import msgspec

from packhorse.errors import ShapeError
from packhorse.protocol.reading import entry_path, is_function, member_path, members, struct_kind
from packhorse.protocol.shapes import Shape


def to_wire(value: Shape) -> dict[str, Any]:
    """Return `value` as plain data under its wire names, ready for any JSON writer.

    What is unset is left out, never written as null; so are Python functions. What JSON cannot
    carry unchanged (NaN, infinities, keys that are not strings, foreign objects) is a ShapeError.
    """
    try:
        return cast("dict[str, Any]", _plain(value, "$"))
    except RecursionError as error:
        raise ShapeError("it is nested too deeply to be written") from error


def to_json(value: Shape) -> bytes:
    """Return `value` as JSON text in UTF-8."""
    try:
        return msgspec.json.encode(to_wire(value))
    except (ValueError, OverflowError) as error:
        # Lone surrogates, and integers of thousands of digits.
        raise ShapeError(f"JSON cannot carry it: {error}") from error


def _plain(value: object, path: str) -> object:
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value, path)
        case str():
            return str.__str__(value)  # the text itself, whatever a subclass would print
        case int():
            return int(value)
        case float():
            return _finite(float(value), path)
        case list() | tuple():
            return [_plain(item, entry_path(path, index)) for index, item in enumerate(value)]
        case Mapping():
            return _plain_map(value, path)
        case Shape():
            return _plain_map(_carried(value), path)
        case _:
            return _plain(_converted(value, path), path)


def _plain_map(value: Mapping[Any, Any], path: str) -> dict[str, object]:
    return {
        _name(name, path): _plain(item, member_path(path, name)) for name, item in value.items()
    }


def _carried(value: Shape) -> dict[str, Any]:
    functions = {
        field.encode_name for field in struct_kind(type(value)).fields if is_function(field.type)
    }
    return {name: member for name, member in members(value).items() if name not in functions}


def _finite(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise ShapeError(f"JSON has no {value}: give a finite number", path=path)
    return value


def _name(name: object, path: str) -> str:
    if not isinstance(name, str):
        raise ShapeError(f"JSON names are strings, got {name!r}", path=path)
    return name


def _converted(value: object, path: str) -> object:
    # Datetimes, dataclasses, sets and the like inside a payload, as msgspec writes them.
    try:
        return msgspec.to_builtins(value)
    except TypeError as error:
        raise ShapeError(f"JSON cannot carry a Python {type(value).__name__}", path=path) from error
