# SPDX-License-Identifier: MIT
"""Reading: plain Python data or JSON text to a shape, or a ShapeError that names the field.

The limits are stated once, in the annotations of the shapes, and read here from msgspec's own
description of them. msgspec's decoder is not used for the checking itself because the protocol is
finer: `5.0` is an integer and `True` is not, a missing field and an entry of a map have paths of
their own, patterns must match to the very end, and a message must say what would be allowed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast, runtime_checkable
from typing import Protocol as TypingProtocol

import msgspec
from msgspec import inspect

from packhorse.errors import ShapeError
from packhorse.protocol.inspection import kind_of, members
from packhorse.protocol.refusals import entry_path, expected, member_path, refuse

__all__ = ["CrossChecked", "parse", "parse_json"]

Parsed = TypeVar("Parsed", bound="msgspec.Struct | Enum")


@runtime_checkable
class CrossChecked(TypingProtocol):
    """A shape with a rule that no single field shows."""

    def cross_check(self, path: str) -> None:
        """Raise ShapeError if the fields, each allowed, are not allowed together."""


def parse(shape: type[Parsed], value: object) -> Parsed:
    """Return `value` as a checked `shape` with its defaults filled in, or raise ShapeError.

    `value` is a mapping, an unchecked instance of the shape, or JSON: bytes always are, a string
    is when the shape is an object (for an enum the string is the word itself).
    """
    is_object = issubclass(shape, msgspec.Struct)
    if isinstance(value, bytes | bytearray) or (is_object and isinstance(value, str)):
        value = _decode(value)
    return cast("Parsed", _read(kind_of(shape), value, "$"))


def parse_json(shape: type[Parsed], data: str | bytes) -> Parsed:
    """Return the JSON text `data` as a checked `shape`, or raise ShapeError."""
    return cast("Parsed", _read(kind_of(shape), _decode(data), "$"))


def _decode(data: str | bytes | bytearray) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ShapeError(f"expected JSON: {error}") from error
    except RecursionError as error:
        raise ShapeError("expected JSON: it is nested too deeply to be read") from error


def _read(kind: inspect.Type, value: object, path: str) -> object:
    match kind:
        case inspect.StructType():
            return _read_object(kind, value, path)
        case inspect.ListType():
            return _read_array(kind, value, path)
        case inspect.DictType():
            return _read_map(kind, value, path)
        case inspect.AnyType():
            return value
        case _:
            return _read_scalar(kind, value, path)


def _read_object(kind: inspect.StructType, value: object, path: str) -> object:
    wire = members(value) if isinstance(value, kind.cls) else value
    if not isinstance(wire, Mapping):
        refuse(kind, value, path)
    if kind.forbid_unknown_fields:
        _refuse_unknown_names(kind, wire, path)
    shape = kind.cls(**_read_members(kind, wire, path))
    if isinstance(shape, CrossChecked):
        shape.cross_check(path)
    return shape


def _read_members(
    kind: inspect.StructType, wire: Mapping[Any, object], path: str
) -> dict[str, object]:
    found = {}
    for field in kind.fields:
        where = member_path(path, field.encode_name)
        if field.encode_name in wire:
            found[field.name] = _read(field.type, wire[field.encode_name], where)
        elif field.required:
            raise ShapeError(f"is required: expected {expected(field.type)}", path=where)
    return found


def _refuse_unknown_names(kind: inspect.StructType, wire: Mapping[Any, object], path: str) -> None:
    known = [field.encode_name for field in kind.fields]
    for name in wire:
        if name not in known:
            message = f"is not a name known here; the names are {', '.join(known)}"
            raise ShapeError(message, path=member_path(path, str(name)))


def _read_array(kind: inspect.ListType, value: object, path: str) -> list[object]:
    if not isinstance(value, list | tuple) or len(value) < (kind.min_length or 0):
        refuse(kind, value, path)
    return [
        _read(kind.item_type, item, entry_path(path, index)) for index, item in enumerate(value)
    ]


def _read_map(kind: inspect.DictType, value: object, path: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        refuse(kind, value, path)
    found = {}
    for name, item in value.items():
        if not isinstance(name, str):
            refuse(kind.key_type, name, path)
        found[name] = _read(kind.value_type, item, member_path(path, name))
    return found


def _read_scalar(kind: inspect.Type, value: object, path: str) -> object:
    inner = kind.type if isinstance(kind, inspect.Metadata) else kind
    accepted = value
    match inner:
        case inspect.IntType():
            accepted = _whole(value)
            fits = accepted is not None and _within(inner, accepted)
        case inspect.FloatType():
            fits = _is_finite_number(value) and _within(inner, cast("float", value))
        case inspect.EnumType():
            accepted = _word(inner, value)
            fits = accepted is not None
        case inspect.StrType():
            fits = _is_text(inner, value)
        case inspect.BoolType():
            fits = isinstance(value, bool)
        case _:
            fits = callable(value)
    return accepted if fits else refuse(kind, value, path)


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _is_finite_number(value: object) -> bool:
    # The comparison is false for NaN too, and exact for integers no float can hold.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(cast("float", value)) <= sys.float_info.max


def _is_text(kind: inspect.StrType, value: object) -> bool:
    # The match is to the very end: `$` alone would let a trailing newline through.
    return isinstance(value, str) and (
        kind.pattern is None or re.fullmatch(kind.pattern, value) is not None
    )


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
    )


def _word(kind: inspect.EnumType, value: object) -> Enum | None:
    words = {member.value: member for member in kind.cls}
    return words.get(value) if isinstance(value, str) else None
