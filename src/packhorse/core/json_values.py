# SPDX-License-Identifier: MIT
"""Values on their way through JSON: what it cannot carry is found where it stands.

JSON has no word for NaN and infinity, which would be written as null, nor for bytes, which would
arrive as text unless an annotation says that they are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import msgspec

#: What writing a value may raise.
UNWRITABLE: Final = (
    *(TypeError, ValueError, OverflowError, RecursionError, NotImplementedError),
    msgspec.MsgspecError,
)
#: And reading one.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_BYTES: Final = (bytes, bytearray, memoryview)


def arrives_as_given(given: Any, got: Any) -> bool:
    """Whether what the other side reads is equal to what it was given, so that all is well."""
    try:
        return bool(got == given)
    except Exception:  # noqa: BLE001 - user classes may compare as they like
        return False


def first_uncarried(given: Any, got: Any) -> tuple[str, str] | None:
    """The place of the first thing that would arrive as something else, and what it is.

    `got` is what the other side reads.
    """
    return next(_uncarried(given, got, ""), None)


def _uncarried(given: Any, got: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(given, float):
        if not math.isfinite(given):
            yield place, f"is {given}, which JSON cannot carry; give a finite number, or None"
    elif isinstance(given, _BYTES):
        if not isinstance(got, _BYTES):
            yield (
                place,
                "is bytes, which JSON cannot carry; annotate it as bytes, or make it a text",
            )
    else:
        for step, part in _parts(given):
            named = f"[{step}]" if isinstance(step, int) else f".{step}"
            yield from _uncarried(part, _part(got, step), f"{place}{named}")


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    if isinstance(value, msgspec.Struct):
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in fields(value))
    return vars(value).items() if is_foreign_model(type(value)) else ()


def _part(got: Any, step: Any) -> Any:
    """The same part of what the other side reads; all parts of a set are of one kind."""
    if isinstance(got, Mapping):
        return got.get(step, got.get(str(step)))
    if isinstance(got, set | frozenset):
        return next(iter(got), None)
    if isinstance(got, list | tuple) and isinstance(step, int):
        return got[step] if step < len(got) else None
    return getattr(got, str(step), None)


def is_foreign_model(kind: Any) -> bool:
    """Whether a class reads and writes itself as pydantic models do."""
    return callable(getattr(kind, "model_validate", None)) and callable(
        getattr(kind, "model_dump", None)
    )


def write_foreign(value: Any) -> Any:
    """Let a model of another library write itself; the library is never imported here."""
    if is_foreign_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    advice = ": await it, and give what it returns" if isinstance(value, Awaitable) else ""
    raise NotImplementedError(
        f"objects of type {type(value).__qualname__} cannot be carried{advice}"
    )


def read_foreign(kind: Any, value: Any) -> Any:
    """Let a model of another library read itself."""
    if kind is object:
        return value
    try:
        return kind.model_validate(value)
    except ValueError as error:
        describe = getattr(error, "errors", None)
        if describe is None:
            raise
        # The library's own text would show the values, and payloads are never shown.
        raise ValueError("; ".join(_problem(found) for found in describe())) from None


def _problem(found: Mapping[str, Any]) -> str:
    place = ".".join(str(step) for step in found["loc"])
    return f"{place}: {found['msg']}" if place else str(found["msg"])


encode: Final = msgspec.json.Encoder(enc_hook=write_foreign).encode
encode_in_order: Final = msgspec.json.Encoder(enc_hook=write_foreign, order="deterministic").encode
