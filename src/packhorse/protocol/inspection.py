# SPDX-License-Identifier: MIT
"""What msgspec knows of a shape: the one description that reading, writing and schemas share."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import msgspec
from msgspec.inspect import AnyType, CustomType, DictType, StructType, Type, type_info

__all__ = ["is_function", "kind_of", "members", "struct_kind"]


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
