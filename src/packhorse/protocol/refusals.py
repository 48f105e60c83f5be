# SPDX-License-Identifier: MIT
"""The words of a ShapeError: where it is wrong, what is allowed there, and what came instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import Repr
from typing import NoReturn

from msgspec import inspect

from packhorse.errors import ShapeError

__all__ = ["entry_path", "expected", "member_path", "refuse", "shown"]

_LONGEST_VALUE_SHOWN = 80
# Python refuses to print integers of some thousand digits, and nobody wants to read them.
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
