# SPDX-License-Identifier: MIT
"""Parameters on their way to the server, each Python type as one PostgreSQL type.

The drivers' own rules pick the smallest integer that fits, so that one statement becomes many;
here an `int` is always a bigint, and a `str` always text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct, pack
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packhorse.errors import PayloadError

__all__ = ["Bound", "bound"]

_BOOL, _BYTEA, _BIGINT, _TEXT, _DOUBLE = 16, 17, 20, 25, 701
#: The array of each.
_ARRAY: Final = MappingProxyType(
    {_BOOL: 1000, _BYTEA: 1001, _BIGINT: 1016, _TEXT: 1009, _DOUBLE: 1022}
)
_UNKNOWN: Final = 0
_TEXTUAL: Final = 0
_BINARY: Final = 1
_NULL: Final = pack("!i", -1)

_long: Final = Struct("!q").pack
_sized_long: Final = Struct("!iq").pack
_double: Final = Struct("!d").pack
_size: Final = Struct("!i").pack
_head: Final = Struct("!iiIii").pack


class Bound(NamedTuple):
    """Parameters as libpq takes them."""

    values: list[bytes | None]
    types: tuple[int, ...]  #: 0 where only the statement can tell
    formats: list[int]


def _text(value: str) -> bytes:
    encoded = value.encode()
    if b"\0" in encoded:
        raise PayloadError("PostgreSQL keeps no text with a NUL character in it; take it out")
    return encoded


def _flag(value: bool) -> bytes:  # noqa: FBT001 - a value, not a switch
    return b"\1" if value else b"\0"


_DUMP: Final[Mapping[type, tuple[int, Callable[[Any], bytes]]]] = MappingProxyType(
    {
        int: (_BIGINT, _long),
        str: (_TEXT, _text),
        bool: (_BOOL, _flag),
        float: (_DOUBLE, _double),
        bytes: (_BYTEA, bytes),
    }
)


def bound(arguments: Sequence[Any]) -> Bound:
    """Parameters as libpq takes them."""
    values: list[bytes | None] = []
    types: list[int] = []
    formats = [_BINARY] * len(arguments)
    for index, argument in enumerate(arguments):
        kind = type(argument)
        value: bytes | None
        if argument is None:
            value, oid = None, _UNKNOWN
        elif kind is list or kind is tuple:
            value, oid = _array(argument)
            if oid == _UNKNOWN:  # only the text of an array can do without the type of its items
                formats[index] = _TEXTUAL
        else:
            oid, dump = _DUMP.get(kind) or _dump_of(argument)
            value = dump(argument)
        values.append(value)
        types.append(oid)
    return Bound(values, tuple(types), formats)


def _dump_of(value: object) -> tuple[int, Callable[[Any], bytes]]:
    """For subclasses, such as an `IntEnum`."""
    for known in (bool, int, str, float, bytes):
        if isinstance(value, known):
            return _DUMP[known]
    raise TypeError(f"a PostgreSQL statement takes no {type(value).__name__}: {value!r}")


def _array(items: Sequence[Any]) -> tuple[bytes, int]:
    first = next((item for item in items if item is not None), None)
    if first is None:
        return b"{" + b",".join([b"NULL"] * len(items)) + b"}", _UNKNOWN
    oid, dump = _DUMP.get(type(first)) or _dump_of(first)
    missing = None in items
    if oid == _BIGINT and not missing:
        body = b"".join([_sized_long(8, item) for item in items])
    else:
        body = b"".join([_NULL if item is None else _sized(dump(item)) for item in items])
    return _head(1, int(missing), oid, len(items), 1) + body, _ARRAY[oid]


def _sized(value: bytes) -> bytes:
    return _size(len(value)) + value
