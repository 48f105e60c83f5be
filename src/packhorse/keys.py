# SPDX-License-Identifier: MIT
"""Keys taken from a call's arguments: which argument, or which function of them.

A key comes from the payload, as the worker will read it, so that every way to submit a job gives
the same one. Arguments that were left out count with the function's defaults.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from packhorse.errors import ConfigError

__all__ = [
    "KEY_LENGTH_MAX",
    "KeySource",
    "TakesArguments",
    "canonical",
    "check_source",
    "digest",
    "shortened",
    "taken_key",
    "taken_value",
]

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

    def plain_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """The arguments as JSON data, defaults filled in."""
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
    if value is None or isinstance(value, str):
        return None if not value else shortened(value)
    return shortened(canonical(value))


def taken_value(source: KeySource, task: TakesArguments, payload: bytes) -> Any:
    """What an argument is, or a function of arguments returns."""
    if isinstance(source, str):
        return task.plain_arguments(payload).get(source)
    arguments, wanted = task.typed_arguments(payload), _wanted(source, "a key")
    chosen = arguments if wanted is None else {name: arguments[name] for name in wanted}
    return source(**chosen)


def canonical(value: object) -> str:
    """A value as JSON text, the same for equal values."""
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
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
