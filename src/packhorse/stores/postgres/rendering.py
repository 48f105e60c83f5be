# SPDX-License-Identifier: MIT
"""From the text of a statement, as it is written, to what the server is sent.

Marks name what lies in the store's schema: `{jobs}` is the table with its schema and prefix,
`{=jobs_ready}` the bare name with its prefix, `{now}` the store's clock, `{schema}` the schema,
`{channel}` the text of the channel on which wake-ups travel.
Parameters are `%s` or `%(name)s`, and a percent sign is `%%`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from struct import Struct, pack
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packhorse.errors import PayloadError
from packhorse.stores.postgres.wakeups import channel_of
from packhorse.stores.sql.statements import Parameters

#: The clock, and as an InitPlan, so that an index can be asked for what lies before it.
SERVER_CLOCK: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
SERVER_NOW: Final = f"(select {SERVER_CLOCK})"
_MARK: Final = re.compile(r"\{(=?)([a-z_][a-z0-9_]*)\}")
_PARAMETER: Final = re.compile(r"%(?:\(([a-z_0-9]+)\))?(.)", re.DOTALL)


class Statement:
    """One text as the server is sent it."""

    __slots__ = ("lasting", "name", "names", "query", "types")

    def __init__(self, query: str, names: tuple[str, ...] | None) -> None:
        self.lasting = True  #: it will be sent again, so that it is worth preparing
        self.query = query.encode()
        self.names = names  #: of its parameters, in the order they are sent; None: by position
        #: The types its parameters have had, so that None does not make it another statement.
        self.types: tuple[int, ...] = ()
        #: The same for the same text everywhere: a client that is given another's connection by a
        #: pooler cannot run another statement than the one meant.
        self.name = b"ph_" + hashlib.sha256(self.query).hexdigest()[:20].encode()

    def bound(self, parameters: Parameters) -> Bound:
        """The parameters as libpq takes them."""
        return self._typed(bound(self._arguments(parameters)))

    def _typed(self, given: Bound) -> Bound:
        """With the types of those that are None now as they have been before."""
        known, types = self.types, given.types
        if known == types:
            return given
        if 0 in types and len(known) == len(types):
            types = tuple([oid or before for oid, before in zip(types, known, strict=True)])
        self.types = types
        return given._replace(types=types)

    def _arguments(self, parameters: Parameters) -> Sequence[Any]:
        """The parameters in the order they are sent."""
        if self.names is None:
            assert not isinstance(parameters, Mapping)  # noqa: S101 - the text says so
            return parameters
        assert isinstance(parameters, Mapping)  # noqa: S101 - the text says so
        return [parameters[name] for name in self.names]


class Texts:
    """The statements of one store, each read once."""

    def __init__(self, schema: str, prefix: str) -> None:
        self._schema = schema
        self._prefix = prefix
        self._known: dict[str, Statement] = {}

    def statement(self, text: str, given_us: int | None = None) -> Statement:
        """The statement; with a clock given in, that instant stands in it."""
        known = self._known.get(text)
        if known is None:
            if given_us is not None and "{now}" in text:  # each instant is another text
                passing = _statement(self.rendered(text, given_us))
                passing.lasting = False
                return passing
            known = self._known[text] = _statement(self.rendered(text))
        return known

    def rendered(self, text: str, given_us: int | None = None) -> str:
        """The text with its marks replaced."""
        now = SERVER_NOW if given_us is None else f"({given_us}::bigint)"

        def replaced(match: re.Match[str]) -> str:
            bare, name = match.groups()
            if name == "now":
                return now
            if name == "schema":
                return f'"{self._schema}"'
            if name == "channel":
                return f"'{channel_of(self._schema, self._prefix)}'"
            own = f'"{self._prefix}{name}"'
            return own if bare else f'"{self._schema}".{own}'

        return _MARK.sub(replaced, text)


def _statement(text: str) -> Statement:
    names: list[str | None] = []
    places: dict[str, int] = {}

    def replaced(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if kind == "%" and name is None:
            return "%"
        if kind != "s":
            raise ValueError(f"{match.group()!r} is no parameter; write %%, %s or %(name)s")
        if name is None:
            names.append(None)
            return f"${len(names)}"
        if name not in places:
            names.append(name)
            places[name] = len(names)
        return f"${places[name]}"

    query = _PARAMETER.sub(replaced, text)
    if places and None in names:
        raise ValueError(f"named and unnamed parameters in one statement: {text}")
    return Statement(query, tuple(places) if places else None)


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
    if missing:
        body = b"".join([_NULL if item is None else _sized(dump(item)) for item in items])
    elif oid == _BIGINT:
        body = b"".join([_sized_long(8, item) for item in items])
    else:
        body = b"".join([_size(len(value)) + value for value in map(dump, items)])
    return _head(1, int(missing), oid, len(items), 1) + body, _ARRAY[oid]


def _sized(value: bytes) -> bytes:
    return _size(len(value)) + value
