# SPDX-License-Identifier: MIT
"""Commands and arguments as bytes on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
import msgspec

__all__ = ["Argument", "Packed", "pack", "packed"]

#: What Redis takes as one argument.
Argument = str | bytes | int | float

#: A command.
pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command


class Packed(msgspec.Struct, frozen=True):
    """Arguments of a command: those that are the same every time are packed once."""

    count: int
    text: bytes

    def __add__(self, other: Packed) -> Packed:
        """These, then those."""
        return Packed(self.count + other.count, self.text + other.text)

    def command(self) -> bytes:
        """The whole of it as a command."""
        return b"*%d\r\n%b" % (self.count, self.text)


def packed(arguments: Sequence[Argument]) -> Packed:
    """Some arguments, of a command that is not whole yet."""
    command = pack(tuple(arguments))
    return Packed(len(arguments), command[command.index(b"\n") + 1 :])
