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
from collections.abc import Mapping, Sequence
from typing import Any, Final

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

    def arguments(self, parameters: Parameters) -> Sequence[Any]:
        """The parameters in the order they are sent."""
        if self.names is None:
            assert not isinstance(parameters, Mapping)  # noqa: S101 - the text says so
            return parameters
        assert isinstance(parameters, Mapping)  # noqa: S101 - the text says so
        return [parameters[name] for name in self.names]

    def typed(self, types: tuple[int, ...]) -> tuple[int, ...]:
        """These types, 0 where a parameter is None; for those, the types they have had before."""
        known = self.types
        if known != types:
            if 0 in types and len(known) == len(types):
                types = tuple([oid or before for oid, before in zip(types, known, strict=True)])
            self.types = types
        return types


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
