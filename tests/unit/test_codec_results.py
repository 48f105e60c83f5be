# SPDX-License-Identifier: MIT
"""Results are held to the type that their task declares."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from packhorse import PayloadError
from packhorse.core.codec import Signature


@dataclass
class Address:
    street: str
    lines: list[int]


class Parcel(msgspec.Struct, frozen=True):
    weight: Decimal
    address: Address


def signature(function: Callable[..., Any]) -> Signature:
    return Signature.of(function, skip_first=False)


def counts() -> dict[str, int]: ...  # type: ignore[empty-body]
def numbers() -> list[int]: ...  # type: ignore[empty-body]
def parcel() -> Parcel: ...  # type: ignore[empty-body]
def word() -> str: ...  # type: ignore[empty-body]
def size() -> int | None: ...
def share() -> float: ...  # type: ignore[empty-body]
def nothing() -> None: ...
def unsaid(): ...  # type: ignore[no-untyped-def]  # noqa: ANN201 - what it is about


@pytest.mark.req("S0-39", "S0-5")
@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (counts, "a text", "Expected `dict`, got `str`"),
        (counts, {"a": "one"}, "Expected `int`, got `str` at '[...]'"),
        (counts, None, "Expected `dict`, got `null`"),
        (numbers, [1, "2"], "Expected `int`, got `str` at '[1]'"),
        (parcel, {"weight": "2.5"}, "Object missing required field `address`"),
        (word, 5, "Expected `str`, got `int`"),
        (size, "5", "Expected `int | null`, got `str`"),
        (nothing, 5, "Expected `null`, got `int`"),
    ],
)
def test_a_result_that_is_not_what_its_annotation_says_is_refused(
    function: Callable[..., Any], value: Any, words: str
) -> None:
    with pytest.raises(PayloadError, match=re.escape(words)) as raised:
        signature(function).encode_result(value)

    assert raised.value.field == "return"


class Tally(dict[str, int]):
    """A dict of its own kind."""


@pytest.mark.req("S0-39")
@pytest.mark.parametrize(
    ("function", "value"),
    [
        (counts, Tally(a=1)),
        (counts, {}),
        (numbers, (1, 2)),
        (parcel, Parcel(Decimal("2.5"), Address("Main Street", [1]))),
        (parcel, {"weight": "2.5", "address": {"street": "Main Street", "lines": []}}),
        (word, "text"),
        (size, 5),
        (size, None),
        (share, 1),
        (nothing, None),
        (unsaid, "anything"),
        (unsaid, None),
    ],
)
def test_a_result_that_its_reader_can_read_is_taken_whatever_its_class(
    function: Callable[..., Any], value: Any
) -> None:
    codec = signature(function)

    codec.decode_result(codec.encode_result(value))
