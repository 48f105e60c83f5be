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
from collections import Counter
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
#: A function or a table of several lines.
_DEFINITION: Final = re.compile(
    r"(?ms)^(?:(?:local )?function |local (?=\w+ = \{\n))(?P<name>[\w.]+).*?^(?:end|\})\n"
)
#: A member of a table, such as a library's function `keys.job`.
_MEMBER: Final = re.compile(r"\b\w+\.\w+\b")
#: Locals that are given values without a call, on one line.
_LOCALS: Final = re.compile(r"^local (?P<names>\w+(?:, \w+)*) = [^()\n]*[^()\n{]\n", re.MULTILINE)
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
        text = f"do\n{_used_part(_with_needs(sections()[f'fast {name}'], set()))}end\n{text}"
    text = _TABLE.sub("", text)
    text = _CONSTANT.sub(lambda use: _constants()[use[0]], text)
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


def _used_part(text: str) -> str:
    """Drop functions, tables and values that the text does not use: each costs every call time.

    Functions of a library's table become local functions for the same reason.
    """
    definitions = {found["name"]: found[0] for found in _DEFINITION.finditer(text)}
    used, looked_at = set[str](), [_DEFINITION.sub("", text)]
    while looked_at:
        found = definitions.keys() & set(re.findall(r"\w+(?:\.\w+)*", looked_at.pop())) - used
        used |= found
        looked_at += [definitions[name] for name in found]
    text = _DEFINITION.sub(lambda each: each[0] if each["name"] in used else "", text)
    text = _MEMBER.sub(lambda each: each[0].replace(".", "_") if each[0] in used else each[0], text)
    text = re.sub(r"(?m)^function ", "local function ", text)
    words = Counter(re.findall(r"\w+", text))
    return _LOCALS.sub(
        lambda each: each[0] if any(words[name] > 1 for name in each["names"].split(", ")) else "",
        text,
    )


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
