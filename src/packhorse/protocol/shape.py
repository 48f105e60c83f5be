# SPDX-License-Identifier: MIT
"""The base of every object shape of the protocol."""

from __future__ import annotations

from typing import Self, TypeVar

import msgspec

from packhorse.protocol.reading import parse, parse_json

__all__ = ["Shape"]

Anything = TypeVar("Anything")


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An immutable wire object: snake_case attributes here, camelCase names on the wire.

    The constructor checks types and limits no more than any Python class does; `parse` checks all.
    """

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return a mapping, JSON or an unchecked instance as a checked one, or raise ShapeError."""
        return parse(cls, value)

    @classmethod
    def parse_json(cls, data: str | bytes) -> Self:
        """Return the JSON text `data` checked, or raise ShapeError."""
        return parse_json(cls, data)

    @classmethod
    def create(cls, value: Anything) -> Anything:
        """Return `value` itself: `parse` checks and fills in defaults, this does neither."""
        return value
