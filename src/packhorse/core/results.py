# SPDX-License-Identifier: MIT
"""Results to JSON and back, checked against what the function says that it returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from packhorse.core.json_values import (
    UNREADABLE,
    UNWRITABLE,
    arrives_as_given,
    encode,
    first_uncarried,
    read_foreign,
)
from packhorse.core.type_hints import label_of, plain_kinds, require_carried
from packhorse.errors import PayloadError

_AT: Final = re.compile(r" - at `\$\.?(?P<path>.*)`$")
#: Functions whose results are known by their annotations.
_ANNOTATIONS_MAX: Final = 1024


def _in_python(message: str) -> str:
    """Say in Python's words what is wrong, since msgspec uses those of JSON."""
    return message.replace("`object", "`dict").replace("`array", "`list")


class _Returns(NamedTuple):
    """What a function returns."""

    decoder: msgspec.json.Decoder[Any]
    #: Results of these kinds arrive as they are and fit the annotation, so that nothing is checked.
    plain: frozenset[type]


class ResultCodec(msgspec.Struct, frozen=True):
    """The results of a function, as far as JSON carries them."""

    label: str  #: the function, for messages
    returns: _Returns

    @classmethod
    def of(cls, label: str, returns: Any) -> ResultCodec:
        """By what it is annotated to return."""
        require_carried(label, "return", returns)
        return cls(label, _returning(returns))

    @classmethod
    def of_function(cls, label: str, function: Callable[..., Any] | None = None) -> ResultCodec:
        """As a function annotates them, if it does so in a way we can read; else anything."""
        if function is None:
            return cls(label, _ANYTHING)
        try:
            told = function.__annotations__.get("return", Any)
            known = _of_annotation(function.__code__, told)
        except (AttributeError, TypeError):  # no plain function, or no plain annotation
            return cls(label, _of_function(function))
        if not known:
            known.append(_of_function(function))
        return cls(label, known[0])

    @property
    def allows_nothing(self) -> bool:
        """Whether None fits the annotation."""
        return type(None) in self.returns.plain

    def encode(self, value: Any) -> str:
        """A result as JSON text that reads back as annotated, or a `PayloadError`."""
        try:
            result = encode(value)
        except UNWRITABLE as error:
            message = f"the result of {self.label} cannot be written as JSON: {error}"
            raise PayloadError(message, field="return") from error
        if type(value) not in self.returns.plain:
            self._check(value, result)
        return result.decode()

    def read_back(self, value: Any, text: str) -> Any:
        """What a reader of this text, which was made of the value, gets."""
        return value if type(value) in self.returns.plain else self.decode(text)

    def decode(self, data: str | bytes) -> Any:
        """A result as its annotated type, or a `PayloadError` that says where it differs."""
        try:
            return self.returns.decoder.decode(data)
        except UNREADABLE as error:
            message = _AT.sub(r" at '\g<path>'", _in_python(str(error)))
            raise PayloadError(
                f"the result of {self.label} is not what its annotation says: {message}",
                field="return",
            ) from error

    def _check(self, value: Any, result: bytes) -> None:
        """Refuse what its reader would not get: what JSON cannot carry, or is not as annotated."""
        try:
            got = self.returns.decoder.decode(result)
        except UNREADABLE:  # null may stand for a NaN, which is then what is wrong
            self._require_carried(value, None)
            self.decode(result)  # raises what the reader would be told
        else:
            if not arrives_as_given(value, got):
                self._require_carried(value, got)

    def _require_carried(self, value: Any, got: Any) -> None:
        found = first_uncarried(value, got)
        if found is not None:
            where = f"'{found[0].removeprefix('.')}' of " if found[0] else ""
            raise PayloadError(f"{where}the result of {self.label} {found[1]}", field="return")


def _returning(returns: Any) -> _Returns:
    return _Returns(msgspec.json.Decoder(returns, dec_hook=read_foreign), plain_kinds(returns))


_ANYTHING: Final = _returning(Any)


@lru_cache(_ANNOTATIONS_MAX)
def _of_annotation(code: CodeType, told: object) -> list[_Returns]:
    """Where it is kept what functions of this text return that are annotated alike.

    So that each attempt's own inner function, say, is read once, and is not held.
    """
    del code, told
    return []


def _of_function(function: Any) -> _Returns:
    """What a function says that it returns; any function will do, also one without types."""
    try:
        returns = get_type_hints(function).get("return", Any)
        msgspec.json.Decoder(returns)
    except Exception:  # noqa: BLE001 - annotations may be anything
        return _ANYTHING
    require_carried(label_of(function), "return", returns)
    return _returning(returns)
