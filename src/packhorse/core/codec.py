# SPDX-License-Identifier: MIT
"""Arguments and results to JSON and back, checked against the function's own annotations.

A payload is a JSON object of the arguments by name. What the caller leaves out is left out of it,
so that Python fills in the function's defaults when the job runs.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET

from packhorse.core.json_values import (
    UNREADABLE,
    UNWRITABLE,
    arrives_as_given,
    encode,
    encode_in_order,
    first_uncarried,
    read_foreign,
    write_foreign,
)
from packhorse.core.results import ResultCodec
from packhorse.core.type_hints import Hints, Parameter, holds_sets, read_hints, require_carried
from packhorse.errors import PayloadError

#: Larger payloads are refused: a queue carries references, not files.
PAYLOAD_BYTES_MAX: Final = 1024 * 1024
#: The same for results, unless the task says otherwise.
RESULT_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
#: Larger payloads slow every claim down, so they are worth a word.
PAYLOAD_BYTES_WARNING: Final = 64 * 1024

#: Values of these kinds arrive as they are.
_ORDINARY: Final = frozenset({str, int, bool})
_AT: Final = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
#: Names that a `Context` usually has, where the annotation was forgotten.
_CONTEXTS: Final = frozenset({"ctx", "context"})
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
#: JSON writes both as a string, so only the caller's own value tells a mistake.
_EXACT: Final = ((str, (str,)), (bytes, (bytes, bytearray, memoryview)))


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A function's parameters and result, as far as a job carries them."""

    label: str  #: the function, for messages
    names: tuple[str, ...]  #: all parameters, in order
    by_position: int  #: how many of them may be given without their names
    position_only: tuple[str, ...]  #: those that must be
    optional: tuple[str, ...]  #: those that have defaults
    exact: tuple[tuple[str, tuple[type, ...]], ...]  #: Python types required of the caller's value
    unordered: bool  #: an argument may hold a set
    whole: bool  #: the payload is the one argument itself, not an object of arguments
    arguments: msgspec.json.Decoder[Any]
    results: ResultCodec

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        skip_first: bool,
        scope: Mapping[str, Any] | None = None,
    ) -> Signature:
        """Read a function's annotations; `skip_first` leaves the injected context out."""
        return cls.from_hints(read_hints(function, scope), skip_first=skip_first)

    @classmethod
    def from_hints(cls, hints: Hints, *, skip_first: bool, whole: bool = False) -> Signature:
        """As `of`; with `whole`, the only parameter takes the payload as it is."""
        parameters = hints.parameters[skip_first:]
        for parameter in parameters:
            require_carried(hints.label, parameter.name, parameter.hint)
        require_carried(hints.label, "return", hints.returns)
        kind = parameters[0].hint if whole else _arguments_type(hints.label, parameters)
        return cls(
            label=hints.label,
            names=tuple(parameter.name for parameter in parameters),
            by_position=sum(parameter.by_position for parameter in parameters),
            position_only=tuple(given.name for given in parameters if not given.by_name),
            optional=tuple(given.name for given in parameters if not given.required),
            exact=tuple(_exact_types(parameters)),
            unordered=any(holds_sets(given.hint) for given in parameters),
            whole=whole,
            arguments=msgspec.json.Decoder(kind, dec_hook=read_foreign),
            results=ResultCodec.of(hints.label, hints.returns),
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call, or a `PayloadError` that names the argument that is wrong."""
        arguments: Mapping[str, Any]
        if kwargs or len(args) > self.by_position:
            arguments = self.bind(args, kwargs)
        elif len(args) == 1:  # as below, in half the time
            arguments = {self.names[0]: args[0]}
        else:
            arguments = dict(zip(self.names, args, strict=False))
        for name, kinds in self.exact:
            value = arguments.get(name)
            if value is not None and not isinstance(value, kinds):
                wanted, given = kinds[0].__name__, type(value).__name__
                self._refuse(f"does not fit: Expected `{wanted}`, got `{given}`", name)
        value = self._only(arguments) if self.whole else arguments
        try:
            payload = encode(value)
            got = self.arguments.decode(payload)  # what the worker will read, so that is checked
        except Exception:  # noqa: BLE001 - found again, and told in the caller's words
            payload = self._write(value, arguments)
            self._require_carried(arguments, arguments)  # null may stand for a NaN
            got = self._read(payload)
        if self.whole:
            got = {self.names[0]: got}
        elif not self.unordered and _arrive_as_given(arguments, got):
            return payload
        self._require_carried(arguments, got)
        return encode(_in_order(value, objects=self.unordered))

    def without(self, names: Collection[str]) -> Signature:
        """The same without some parameters, all given by name; results are not its business."""
        fields = msgspec.structs.fields(self.arguments.type)
        kept = tuple(
            Parameter(each.name, each.type, each.required, by_position=False, by_name=True)
            for each in fields
            if each.name not in names
        )
        return Signature.from_hints(Hints(self.label, kept, Any), skip_first=False)

    def encode_wire(self, value: Any) -> bytes:
        """The payload of a call whose arguments came as plain JSON data, checked the same way."""
        payload = self._write(value, {})
        self._require_carried(value, value)
        self._require_carried(value, self._read(payload))
        return payload

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """The keyword arguments of a payload, typed, or a `PayloadError` naming the field."""
        try:
            decoded = self.arguments.decode(payload)
        except UNREADABLE as error:
            self._explain(error)
        if self.whole:
            return {self.names[0]: decoded}
        arguments = _as_dict(decoded)
        for name in self.optional:
            if arguments[name] is UNSET:
                del arguments[name]
        return arguments

    def call(self, function: Callable[..., Any], arguments: dict[str, Any], *injected: Any) -> Any:
        """Call the function with decoded arguments, behind what is injected before them."""
        if not self.position_only:
            return function(*injected, **arguments)
        given = dict(arguments)
        leading = [given.pop(name) for name in self.position_only if name in given]
        return function(*injected, *leading, **given)

    def by_name(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one that takes every argument by its name."""
        if not self.position_only:
            return function
        return lambda *injected, **arguments: self.call(function, arguments, *injected)

    def encode_result(self, value: Any) -> str:
        """A result as JSON text that reads back as annotated, or a `PayloadError`."""
        return self.results.encode(value)

    def decode_result(self, data: str | bytes) -> Any:
        """A result as its annotated type, or a `PayloadError` that says where it differs."""
        return self.results.decode(data)

    def _require_carried(self, arguments: Any, got: Any) -> None:
        try:
            found = first_uncarried(arguments, got)
        except RecursionError as error:
            self._refuse("was given data that is nested too deeply", None, error)
        if found is not None:
            self._refuse(found[1], found[0].removeprefix(".") or None)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by name."""
        if not args and not self.position_only:
            return kwargs
        if len(args) > self.by_position:
            taken, given = self.by_position, len(args)
            self._refuse(f"takes {taken} arguments by position, and {given} were given", None)
        arguments = dict(zip(self.names, args, strict=False))
        for name in kwargs:
            if name in arguments:
                self._refuse("was given twice, by position and by name", name)
            if name in self.position_only:
                self._refuse("is given by position only, without its name", name)
        arguments.update(kwargs)
        return arguments

    def _only(self, arguments: Mapping[str, Any]) -> Any:
        """The one argument of a function that takes the whole payload."""
        for name in arguments:
            if name not in self.names:
                self._refuse(f"is not known; {self._suggestion(name)}", name)
        if self.names[0] not in arguments:
            self._refuse("is missing", self.names[0])
        return arguments[self.names[0]]

    def _write(self, value: Any, parts: Mapping[str, Any]) -> bytes:
        try:
            return msgspec.json.encode(value, enc_hook=write_foreign)
        except UNWRITABLE as error:
            name = next((name for name, part in parts.items() if not _is_writable(part)), None)
            self._refuse(f"cannot be written as JSON: {error}", name, error)

    def _read(self, payload: str | bytes) -> Any:
        try:
            return self.arguments.decode(payload)
        except UNREADABLE as error:
            self._explain(error)

    def _explain(self, error: Exception) -> NoReturn:
        """Say in the caller's words what msgspec found wrong with a payload."""
        text = str(error)
        if where := _AT.search(text):
            self._refuse(f"does not fit: {text[: where.start()]}", where["path"], error)
        if missing := _MISSING.fullmatch(text):
            hint = "; is it the Context? Annotate it: `ctx: Context`"
            asked = missing["name"] in _CONTEXTS and missing["name"] == self.names[0]
            self._refuse(f"is missing{hint if asked else ''}", missing["name"], error)
        if unknown := _UNKNOWN.fullmatch(text):
            name = unknown["name"]
            self._refuse(f"is not known; {self._suggestion(name)}", name, error)
        self._refuse(f"was given a payload that does not fit: {text}", None, error)

    def _suggestion(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.names, n=1)
        return f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(self.names)}"

    def _refuse(self, problem: str, field: str | None, cause: Exception | None = None) -> NoReturn:
        about = self.label if field is None else f"{self.label}: argument {field!r}"
        raise PayloadError(f"{about} {problem}", field=field) from cause


def _arguments_type(label: str, parameters: tuple[Parameter, ...]) -> type[msgspec.Struct]:
    """A struct of the arguments: one C decoder checks types, missing and unknown names at once."""
    fields = [
        (given.name, given.hint) if given.required else (given.name, given.hint, UNSET)
        for given in parameters
    ]
    return msgspec.defstruct(label, fields, kw_only=True, forbid_unknown_fields=True)


def _exact_types(parameters: tuple[Parameter, ...]) -> list[tuple[str, tuple[type, ...]]]:
    return [
        (parameter.name, kinds)
        for parameter in parameters
        for hint, kinds in _EXACT
        if parameter.hint in (hint, hint | None)
    ]


def _arrive_as_given(arguments: Mapping[str, Any], got: Any) -> bool:
    for name, part in arguments.items():
        if type(part) not in _ORDINARY and not arrives_as_given(part, getattr(got, name)):
            return False
    return True


def _in_order(value: Any, *, objects: bool) -> Any:
    """The value with its sets as lists whose order is the same in every process.

    With `objects` also those inside objects, whose dicts are put in order with them.
    """
    if isinstance(value, dict):
        return {key: _in_order(part, objects=objects) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_in_order(part, objects=objects) for part in value]
    if isinstance(value, set | frozenset):
        parts = (msgspec.Raw(encode(_in_order(part, objects=objects))) for part in value)
        return sorted(parts, key=bytes)
    if objects and not isinstance(value, str | int | float | None):
        with contextlib.suppress(TypeError):  # what cannot be compared stays as it is
            return msgspec.Raw(encode_in_order(value))
    return value


def _is_writable(value: Any) -> bool:
    try:
        msgspec.json.encode(value, enc_hook=write_foreign)
    except UNWRITABLE:
        return False
    return True


_as_dict: Final = msgspec.structs.asdict
