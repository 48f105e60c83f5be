# SPDX-License-Identifier: MIT
"""The steps of a SQL plan, and the named queries they run.

Queries stand by topic in `queries/*.sql`, shared by the SQL stores; a store's own `queries` hold
those that differ. `-- name: claim` begins a query, `:name` or `?` is a parameter, and marks are:

- `{jobs}`: a table of the store;
- `{lane.ready}`, `{status.queued}`: the code of a lane or a status;
- `{true}`, `{in_texts :ids}`: a fragment, which each store writes in its own way;
- `<columns>`: a part that the caller fills in, written in the same language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packhorse.core.settlement import SettlementKind
from packhorse.stores.sql.rows import CODE, UNCLAIMED, Lane, settled_mark

Parameters = Sequence[Any] | Mapping[str, Any]


class Rows(NamedTuple):
    """Answered with all rows."""

    text: str
    parameters: Parameters = ()


class Change(NamedTuple):
    """Answered with the number of rows changed."""

    text: str
    parameters: Parameters = ()


class Send(NamedTuple):
    """A change without an answer: PostgreSQL sends it with what comes next."""

    text: str
    parameters: Parameters = ()


class SendMany(NamedTuple):
    """The same change for many parameters, without an answer."""

    text: str
    parameters: Sequence[Parameters]


class Together(NamedTuple):
    """Several `Rows` that do not depend on each other, in one round trip; a list of answers."""

    asked: Sequence[Rows]


class Now(NamedTuple):
    """Answered with the store's clock, the same throughout a plan."""


NOW: Final = Now()

#: Texts kept, with their parts filled in: more than the filters of one program make.
_TEXTS_MAX: Final = 4096
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^ *--.*\n", re.MULTILINE)
_BLANK: Final = re.compile(r"\s*\n(?: *\n)*")
_PART: Final = re.compile(r"<(\w+)>")
_MARK: Final = re.compile(r"\{([a-z_]+)(?:([ .])([^{}]+))?\}")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)|\?|%")
_CODES: Final = MappingProxyType(
    {
        **{f"lane.{lane.name.lower()}": int(lane) for lane in Lane},
        **{f"status.{status}": code for status, code in CODE.items()},
        "lanes.unclaimed": ", ".join([str(int(lane)) for lane in UNCLAIMED]),
        "mark.kinds": settled_mark(1, 0),
        "mark.completed": settled_mark(0, SettlementKind.COMPLETED),
    }
)


class Queries:
    """The queries of one store, rendered in its dialect."""

    def __init__(
        self, package: str, fragments: Mapping[str, str], *, table: str, named: str, unnamed: str
    ) -> None:
        self._fragments = fragments
        self._table = table
        self._named = named
        self._unnamed = unnamed
        self._templates = {**_read(__package__), **_read(package)}
        #: The text of a query by its name, with parts of it filled in.
        self.text: Callable[..., str] = lru_cache(_TEXTS_MAX)(self._render)

    def filled(self, name: str, **parts: str) -> str:
        """A query as it is written, with parts of it filled in, as a part of another."""
        return _PART.sub(lambda match: parts[match[1]], self._templates[name])

    @property
    def templates(self) -> Mapping[str, str]:
        """The queries as they are written, by their names."""
        return MappingProxyType(self._templates)

    def _render(self, name: str, **parts: str) -> str:
        filled = _MARK.sub(self._mark, self.filled(name, **parts))
        text = _PARAMETER.sub(self._parameter, filled)
        return f"-- {name}\n{_BLANK.sub(chr(10), text)}"

    def _mark(self, match: re.Match[str]) -> str:
        name, kind, argument = match.groups()
        if kind == ".":
            return str(_CODES[f"{name}.{argument}"])
        if name in self._fragments:
            return self._fragments[name].format(*(argument or "").split())
        if argument is not None:
            raise ValueError(f"{match.group()} is no fragment of this store")
        return self._table.format(name)

    def _parameter(self, match: re.Match[str]) -> str:
        if match.group() == "?":
            return self._unnamed
        if match.group() == "%":
            return "%%" if self._unnamed.startswith("%") else "%"
        return self._named.format(match[1])


def _read(package: str) -> dict[str, str]:
    """The queries of a package as they are written, without their comments."""
    templates: dict[str, str] = {}
    folder = files(package) / "queries"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        _, *rest = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(rest[::2], rest[1::2], strict=True):
            if name in templates:
                raise ValueError(f"two queries of {package} are named {name}")
            templates[name] = _COMMENT.sub("", text).strip()
    return templates
