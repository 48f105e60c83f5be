# SPDX-License-Identifier: MIT
"""Keys taken from a call's arguments: which argument, or which function of them.

A key comes from the payload, as the worker will read it, so that every way to submit a job gives
the same one. Arguments that were left out count with the function's defaults. Keys and digests are
made from one normal form of values, in which equal values are the same text in every process.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from packhorse.core.json_values import is_foreign_model
from packhorse.errors import ConfigError

#: An argument by its name, or a function of some of the arguments, by their names.
KeySource = str | Callable[..., object]

#: Characters of a key; one that is longer, or has a NUL, is a digest where arguments gave it.
KEY_LENGTH_MAX: Final = 256


class TakesArguments(Protocol):
    """A task, as far as its arguments go."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters, without a context."""
        ...

    def normal_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """The arguments in their normal form, defaults filled in."""
        ...

    def typed_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """The arguments as the handler gets them, defaults filled in."""
        ...


def check_source(source: object, names: Iterable[str], setting: str) -> KeySource:
    """Refuse a source that names no argument, where it is declared."""
    known = tuple(names)
    if isinstance(source, str):
        _require_known(source, known, setting)
        return source
    if not callable(source):
        raise ConfigError(
            f"{setting} is {source!r}; give the name of an argument, or a function of arguments"
        )
    for name in _wanted(source, setting) or ():
        _require_known(name, known, setting)
    return source


def taken_key(source: KeySource, task: TakesArguments, payload: bytes) -> str | None:
    """The key of a call; None, from an argument or a function that is None, is no key."""
    value = taken_value(source, task, payload)
    if isinstance(value, str):
        return shortened(value) if value else None
    return None if value is None else shortened(canonical(value))


def taken_value(source: KeySource, task: TakesArguments, payload: bytes) -> Any:
    """What an argument is, or a function of arguments returns."""
    if isinstance(source, str):
        return task.normal_arguments(payload).get(source)
    arguments, wanted = task.typed_arguments(payload), _wanted(source, "a key")
    chosen = arguments if wanted is None else {name: arguments[name] for name in wanted}
    return source(**chosen)


def normal(value: Any) -> Any:
    """A value as JSON data, the same for equal values: 1 and 1.0, two sets, one instant."""
    if isinstance(value, Enum):
        return normal(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {_key(key): normal(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [normal(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(normal, value), key=canonical)
    return _normal_object(value)


def _normal_object(value: Any) -> Any:
    from decimal import Decimal  # noqa: PLC0415 - slow to import, and few keys are made of it

    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return msgspec.to_builtins(value.astimezone(UTC))
    if is_foreign_model(type(value)):
        return normal(value.model_dump())
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        named = {name: normal(getattr(value, name)) for name in value.__struct_fields__}
        return named if tag is None else {"": tag, **named}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: normal(getattr(value, each.name)) for each in fields(value)}
    return msgspec.to_builtins(value)


def _key(value: Any) -> str:
    found = normal(value)
    return found if isinstance(found, str) else canonical(found)


def canonical(value: object) -> str:
    """A value as JSON text, the same for equal values in every process."""
    try:
        return msgspec.json.encode(normal(value), order="deterministic").decode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a key cannot be {value!r}: {error}; make it a text, a number, or some of them"
        ) from error


def shortened(text: str) -> str:
    """A key as stores keep it."""
    return text if len(text) <= KEY_LENGTH_MAX and "\0" not in text else digest(text)


def digest(*parts: str) -> str:
    """A stable hash of some texts, in this order."""
    import hashlib  # noqa: PLC0415 - code without keys does not pay for it

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def derived_id(*parts: str) -> str:
    """The id of a job that follows from some texts, so that it is not there twice."""
    text = digest(*parts)
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-8{text[17:20]}-{text[20:32]}"


def _wanted(source: Callable[..., object], setting: str) -> tuple[str, ...] | None:
    """The arguments a function asks for; None: whatever there is."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{setting} is {source!r}, whose parameters are unknown; give a plain function"
        ) from error
    if any(given.kind is inspect.Parameter.VAR_KEYWORD for given in parameters):
        return None
    return tuple(given.name for given in parameters)


def _require_known(name: str, known: tuple[str, ...], setting: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(known) or "none"
    hint = f"did you mean {near[0]!r}?" if near else f"the arguments are: {listed}"
    raise ConfigError(f"{setting} takes argument {name!r}, which the task does not have; {hint}")
