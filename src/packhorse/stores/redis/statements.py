# SPDX-License-Identifier: MIT
"""What a Redis plan may ask for, and the `.lua` files its scripts come from.

A script is put together from its own file and the shared parts its header names, such as
`-- needs: keys clock`. Redis knows it by the digest of its text from then on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self

from packhorse.stores.redis.packing import Argument, Packed

__all__ = ["Command", "LoadedScript", "Script", "loaded"]

_NEEDS: Final = re.compile(r"^-- needs: (?P<parts>[a-z_]+(?: [a-z_]+)*)$", re.MULTILINE)
#: Comments on lines of their own; others may be part of a text.
_COMMENT: Final = re.compile(r"^\s*(?:--.*)?\n", re.MULTILINE)


class Script(NamedTuple):
    """Runs `lua/<name>.lua`; answered with what the script returns.

    The script finds the hash tag of all keys in `KEYS[1]`, the instant that judges in `ARGV[1]` (or
    nothing, and reads the server's clock), and `args` behind it.
    """

    name: str
    args: Sequence[Argument] | Packed = ()


class Command(tuple[Any, ...]):
    """One command, such as `Command("GET", key)`; answered with its reply."""

    __slots__ = ()

    def __new__(cls, *parts: Argument) -> Self:
        """One part after the other, as one would write it."""
        return super().__new__(cls, parts)


class LoadedScript(NamedTuple):
    """A script as it is sent."""

    text: str
    digest: str  #: what `EVALSHA` calls it


@cache
def loaded(name: str) -> LoadedScript:
    """The script in `lua/<name>.lua`, with the parts it uses before it."""
    source = _read(name)
    header = _NEEDS.search(source)
    parts = [] if header is None else header["parts"].split()
    text = "".join([*(_read(f"lib/{part}") for part in parts), source])
    text = _COMMENT.sub("", text)
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return LoadedScript(text, digest)


def _read(name: str) -> str:
    return (files("packhorse.stores.redis") / "lua" / f"{name}.lua").read_text("utf-8")
