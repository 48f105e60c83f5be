# SPDX-License-Identifier: MIT
"""What every plan of a SQL store may ask for; a store may have more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["NOW", "Change", "ChangeMany", "Now", "Parameters", "Rows"]

Parameters = Sequence[Any] | Mapping[str, Any]


class Rows(NamedTuple):
    """Answered with all rows."""

    text: str
    parameters: Parameters = ()


class Change(NamedTuple):
    """Answered with the number of rows changed."""

    text: str
    parameters: Parameters = ()


class ChangeMany(NamedTuple):
    """The same change for many parameters; answered with the number of rows changed."""

    text: str
    parameters: Sequence[Parameters]


class Now(NamedTuple):
    """Answered with the store's clock, the same throughout a plan."""


NOW: Final = Now()
