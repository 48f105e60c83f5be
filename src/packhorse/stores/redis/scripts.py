# SPDX-License-Identifier: MIT
"""What a Redis plan may ask for, and how scripts are put together from the files in `lua`.

A file has a library, which others may need, and scripts behind lines such as `-- script: claim`.
A library or a script names the libraries it needs, such as `-- needs: queues lines`; they, and what
they need in turn, come in place of that line. The section `-- fast: claim` is the fast route of
that script: it comes first, with what it uses of its libraries, and returns when it has an answer.
Constants of `lua/layout.lua` are written into the text: to make their tables would cost each call
microseconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self

#: What Redis takes as one argument.
Argument = str | bytes | int | float

#: Bytes of values from which on the arguments of a script are large.
LARGE_BYTES: Final = 1_000_000

#: Jobs that one script looks at: the server does nothing else meanwhile.
LOOKED_AT: Final = 500

_SECTION: Final = re.compile(r"^-- (?P<kind>script|fast): (?P<name>[a-z_]+)$", re.MULTILINE)
_NEEDS: Final = re.compile(r"^ *-- needs: (?P<libraries>[a-z_]+(?: [a-z_]+)*)$", re.MULTILINE)
#: A table of constants, one of its entries, and a use such as `KEY.job`.
_TABLE: Final = re.compile(
    r"^local (?P<name>[A-Z_]+) = \{\n(?P<entries>(?:  \w.*\n)+)\}\n", re.MULTILINE
)
_ENTRY: Final = re.compile(r"(?P<name>\w+) = (?P<value>'[^']*'|\d+)")
_CONSTANT: Final = re.compile(r"\b[A-Z_]+\.\w+")
#: A function or a table of several lines, or locals that are given values without a call.
_DEFINITION: Final = re.compile(
    r"(?ms)^local (?:(?:function )?(?P<name>\w+)(?:\(| = \{\n).*?^(?:end|\})\n"
    r"|(?P<values>\w+(?:, \w+)*) = [^()\n]*[^()\n{]\n)"
)
#: A function of a library's table, such as `keys.job`.
_FUNCTION: Final = re.compile(r"(?m)^function (\w+\.\w+)")
_MEMBER: Final = re.compile(r"\b\w+\.\w+\b")
#: Between a library and the piece of a fast route that needs it, and the next library.
_PIECE: Final = "\0"
#: Comments on lines of their own; others may be part of a text.
_COMMENT: Final = re.compile(r"^\s*(?:--.*)?\n", re.MULTILINE)


class Script(NamedTuple):
    """Runs a script; answered with what it returns.

    The script finds the hash tag of all keys in `KEYS[1]`, the instant that judges in `ARGV[1]` (or
    nothing, and reads the server's clock), and `args` behind it.
    """

    name: str
    args: Sequence[Argument] = ()
    fast: bool = True  #: try the fast route first, if there is one
    large: bool = False  #: its arguments are a megabyte or more


class RedisCommand(tuple[Any, ...]):
    """One command, such as `RedisCommand("GET", key)`; answered with its reply."""

    __slots__ = ()

    def __new__(cls, *parts: Argument) -> Self:
        """One part after the other, as one would write it."""
        return super().__new__(cls, parts)


class LoadedScript(NamedTuple):
    """A script as it is sent."""

    text: str
    digest: str  #: what `EVALSHA` calls it


@cache
def loaded(name: str, *, fast: bool = True) -> LoadedScript:
    """The script of this name, with its fast route and all libraries it needs."""
    text = _with_needs(sections()[f"script {name}"], set())
    if fast and f"fast {name}" in sections():
        text = f"do\n{_fast_route(name)}end\n{text}"
    text = _with_constants(text)
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return LoadedScript(text, digest)


def _with_needs(text: str, known: set[str]) -> str:
    """A text with the libraries it needs and that are not known, each with those it needs."""

    def libraries(needs: re.Match[str]) -> str:
        parts = []
        for name in needs["libraries"].split():
            if name not in known:
                known.add(name)
                parts.append(_with_needs(sections()[f"library {name}"], known))
        return "".join(parts)

    return _COMMENT.sub("", _NEEDS.sub(libraries, text))


def _fast_route(name: str) -> str:
    """A fast route; what it uses of its libraries comes where it is first needed.

    Each function that a script defines costs every call time. For the same reason functions of a
    library's table, such as `keys.job`, become local ones.
    """
    known: set[str] = set()
    _, *pieces = _NEEDS.split(sections()[f"fast {name}"])
    pieces[::2] = [_with_needs(f"-- needs: {each}\n", known) for each in pieces[::2]]
    text = _COMMENT.sub("", _with_constants(_PIECE.join(pieces)))
    members = set(_FUNCTION.findall(text))
    text = _MEMBER.sub(lambda use: use[0].replace(".", "_") if use[0] in members else use[0], text)
    pieces, offered = re.sub(r"(?m)^function ", "local function ", text).split(_PIECE), ""
    for at in range(0, len(pieces), 2):
        pieces[at], offered = _used_part(offered + pieces[at], pieces[at + 1])
    return "".join(pieces)


def _used_part(library: str, route: str) -> tuple[str, str]:
    """What a route uses of a library, and the definitions that it does not use."""
    definitions = [(each[0], _names(each)) for each in _DEFINITION.finditer(library)]
    used, looked_at = set[str](), [_DEFINITION.sub("", library) + route]
    while looked_at:
        words = set(re.findall(r"\w+", looked_at.pop())) - used
        for text, names in definitions:
            if names & words:
                used |= names
                looked_at.append(text)
    part = _DEFINITION.sub(lambda each: each[0] if _names(each) & used else "", library)
    return part, "".join([text for text, names in definitions if not names & used])


def _names(definition: re.Match[str]) -> set[str]:
    return set((definition["name"] or definition["values"]).split(", "))


def _with_constants(text: str) -> str:
    return _CONSTANT.sub(lambda use: _constants()[use[0]], _TABLE.sub("", text))


@cache
def _constants() -> Mapping[str, str]:
    """The constants of the layout as they are used, and their values."""
    return {
        f"{table['name']}.{entry['name']}": entry["value"]
        for table in _TABLE.finditer(sections()["library layout"])
        for entry in _ENTRY.finditer(table["entries"])
    }


@cache
def sections() -> Mapping[str, str]:
    """Every library, script and fast route by kind and name."""
    found: dict[str, str] = {}
    for file in (files("packhorse.stores.redis") / "lua").iterdir():
        key = f"library {file.name.removesuffix('.lua')}"
        text, at = file.read_text("utf-8"), 0
        for section in _SECTION.finditer(text):
            found[key] = text[at : section.start()]
            key, at = f"{section['kind']} {section['name']}", section.end() + 1
        found[key] = text[at:]
    return found
