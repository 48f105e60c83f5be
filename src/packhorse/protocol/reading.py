# SPDX-License-Identifier: MIT
"""Read plain data or JSON as a shape, or raise a `ShapeError` that names the field."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache
from reprlib import Repr
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import inspect
from msgspec.inspect import AnyType, CustomType, DictType, StructType, Type, type_info

from packhorse.errors import ShapeError


def kind_of(shape: type) -> Type:
    """Return msgspec's description of `shape`, with every limit its annotations state."""
    return _described(shape)


def struct_kind(shape: type[msgspec.Struct]) -> StructType:
    """Return the description of an object shape, field by field."""
    return cast("StructType", kind_of(shape))


def is_function(kind: Type) -> bool:
    """Say whether a field of this kind holds Python functions, which no JSON can carry."""
    inner = kind.value_type if isinstance(kind, DictType) else kind
    return isinstance(inner, CustomType)  # functions are the only foreign values of the protocol


def members(value: msgspec.Struct) -> dict[str, Any]:
    """Return what is set in `value`, by wire name, one level deep.

    None counts as unset wherever the wire would refuse null: a constructor checks nothing, and
    `Task(timeout_ms=None)` means what it looks like.
    """
    found: dict[str, Any] = {}
    for field in struct_kind(type(value)).fields:
        member = getattr(value, field.name)
        absent = member is None and not isinstance(field.type, AnyType)
        if member is not msgspec.UNSET and not absent:
            found[field.encode_name] = member
    return found


@cache
def _described(shape: type) -> Type:
    return type_info(shape)


Parsed = TypeVar("Parsed", bound="msgspec.Struct | Enum")


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
    if (cross_check := getattr(shape, "cross_check", None)) is not None:
        cross_check(path)  # a rule that no single field shows
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


_LONGEST_VALUE_SHOWN = 80
# Python refuses to print integers of some thousand digits.
_LARGEST_INTEGER_SHOWN = 2**64


def refuse(kind: inspect.Type, value: object, path: str) -> NoReturn:
    """Raise the ShapeError for a value that is not of its kind."""
    message = f"expected {expected(kind)}, got {shown(value)}"
    if value is None and path != "$":
        message += "; leave the key out instead of giving null"
    raise ShapeError(message, path=path)


def member_path(path: str, name: str) -> str:
    """Return the path of an object's member: `$.retryPolicy`, or `$["odd name"]`."""
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def entry_path(path: str, index: int) -> str:
    """Return the path of an array's entry: `$.queues[0]`."""
    return f"{path}[{index}]"


def expected(kind: inspect.Type) -> str:
    """Say in words what a kind allows."""
    match kind:
        case inspect.Metadata(extra={"expected": str(words)}):
            return words
        case inspect.Metadata(type=inner):
            return expected(inner)
        case inspect.IntType():
            return f"an integer {_limits(kind)}"
        case inspect.FloatType():
            return f"a finite number {_limits(kind)}"
        case inspect.EnumType(cls=words_class):
            return "one of " + ", ".join(repr(str(member.value)) for member in words_class)
        case inspect.ListType(min_length=1):
            return "an array with at least one entry"
        case _:
            return _plain_words(kind)


def _plain_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.StrType():
            return "a string"
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType():
            return "an array"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case inspect.CustomType():
            return "a Python function (it cannot come from JSON)"
        case _:
            return "any value, null included"


def _limits(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.gt is not None:
        return f"greater than {kind.gt}"
    if kind.le is None:
        return f"of at least {kind.ge}"
    return f"from {kind.ge} to {kind.le}"


def shown(value: object) -> str:
    """Show a refused value as JSON would name it, cut to a readable length."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) > _LARGEST_INTEGER_SHOWN:
            return "an integer beyond 64 bits"
        case str() | int() | float():
            return _cut(value)
        case Mapping():
            return "an object"
        case list() | tuple():
            return "an array" if value else "an empty array"
        case _:
            return f"a Python {type(value).__name__}"


def _cut(value: object) -> str:
    short = Repr()
    short.maxstring = _LONGEST_VALUE_SHOWN
    return short.repr(value)
