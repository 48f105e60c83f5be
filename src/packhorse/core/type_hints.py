# SPDX-License-Identifier: MIT
"""What a function's annotations say, resolved once when it is declared.

Whatever cannot be resolved or carried is an error here, with the function and the parameter in
it, and not a surprise when the first job runs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace, UnionType
from typing import Any, Final, Never, NoReturn, TypeVar, Union

import msgspec
from msgspec.inspect import (
    AnyType,
    BoolType,
    CustomType,
    DataclassType,
    DictType,
    FrozenSetType,
    IntType,
    ListType,
    NamedTupleType,
    NoneType,
    SetType,
    StrType,
    StructType,
    TupleType,
    Type,
    TypedDictType,
    VarTupleType,
    type_info,
)
from msgspec.inspect import UnionType as ChoiceType

from packhorse.core.json_values import is_foreign_model
from packhorse.errors import ConfigError
from packhorse.protocol import WorkerResponse
from packhorse.signals import JobSignal

#: Kinds of values that are the same in JSON, and the types that hold every one of them.
_PLAIN: Final = ((str, StrType()), (int, IntType()), (bool, BoolType()), (type(None), NoneType()))
#: Types of which no value may be the key of an object in JSON.
_NO_KEYS: Final = (
    *(BoolType, NoneType, ListType, VarTupleType, TupleType, SetType, FrozenSetType, DictType),
    *(TypedDictType, NamedTupleType, DataclassType, StructType),
)
_STARRED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a task's function."""

    name: str
    hint: Any
    required: bool
    by_position: bool  #: may be given without its name
    by_name: bool  #: may be given with its name


@dataclass(frozen=True, slots=True)
class Hints:
    """A function's parameters and its result, as types."""

    label: str  #: the function, for messages
    parameters: tuple[Parameter, ...]
    returns: Any


def read_hints(function: Callable[..., Any], scope: Mapping[str, Any] | None = None) -> Hints:
    """Resolve every annotation of `function`; names of `scope` (its surroundings) are known too."""
    label = label_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} cannot be a task: its parameters are unknown") from error
    if next(iter(signature.parameters), "") == "self":
        raise ConfigError(
            f"{label} is a method, and a worker has no object to give it as 'self'; declare a "
            "function, or a method of an object that lives as long as the app: app.task(shop.pay)"
        )
    if _is_class_method(function, signature):
        raise ConfigError(
            f"{label} is a class method, and a worker has no class to give it as 'cls'; declare "
            f"a function or a staticmethod, or below the class its method: app.task({label[:-2]})"
        )
    resolve = _resolver(function, scope or {}, label)
    parameters = [_parameter(given, label, resolve) for given in signature.parameters.values()]
    returns = resolve("return", signature.return_annotation)
    return Hints(label, tuple(parameters), _without_signals(returns))


def _is_class_method(function: Callable[..., Any], signature: inspect.Signature) -> bool:
    """Whether this is one to be, before `classmethod` has it: such a parameter in a class."""
    first = next(iter(signature.parameters.values()), None)
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    in_class = bool(owner) and not owner.endswith("<locals>")
    return in_class and first is not None and (first.name, first.annotation) == ("cls", first.empty)


def label_of(function: Callable[..., Any]) -> str:
    """How a function is named in messages."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{name.rpartition('<locals>.')[2]}()"


def require_carried(label: str, name: str, hint: Any) -> None:
    """Refuse a type whose values cannot travel as JSON and come back the same."""
    where = f"{label}: {'the result' if name == 'return' else f'parameter {name!r}'}"
    try:
        msgspec.json.Decoder(hint, dec_hook=_never)
        kind = type_info(hint)
    except NameError as error:
        raise ConfigError(f"{where} has a type that names something unknown: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} has a type that cannot be carried: {error}") from error
    for inner in _types_in(kind, set()):
        if isinstance(inner, DictType) and not _is_key(inner.key_type):
            raise ConfigError(
                f"{where} holds a dict whose keys are no texts and no numbers, which JSON cannot "
                "carry; make its keys texts, or give a list of pairs"
            )
        foreign = inner.cls if isinstance(inner, CustomType) else object  # which is anything
        if foreign is not object and not is_foreign_model(foreign):
            raise ConfigError(
                f"{where} holds {foreign.__module__}.{foreign.__qualname__}, which cannot be "
                "carried; use a dataclass, msgspec.Struct, TypedDict, pydantic model, or Any"
            )


Resolve = Callable[[str, Any], Any]


def _resolver(function: Callable[..., Any], scope: Mapping[str, Any], label: str) -> Resolve:
    plain = inspect.unwrap(function)
    names = getattr(getattr(plain, "__func__", plain), "__globals__", {})

    def resolve(name: str, annotation: Any) -> Any:
        if annotation is inspect.Parameter.empty:
            return Any
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, names, dict(scope), include_extras=True)[name]
        except Exception as error:
            where = "the result" if name == "return" else f"parameter {name!r}"
            raise ConfigError(
                f"{label}: the type of {where}, {annotation!r}, cannot be resolved "
                f"({type(error).__name__}: {error}); import it where the task is declared, and "
                "not only under TYPE_CHECKING"
            ) from error

    return resolve


def _parameter(given: inspect.Parameter, label: str, resolve: Resolve) -> Parameter:
    if given.kind in _STARRED:
        stars = "*" if given.kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise ConfigError(
            f"{label}: {stars}{given.name} cannot be part of a task; name every parameter, so "
            "that a call can be checked before it is stored"
        )
    return Parameter(
        name=given.name,
        hint=resolve(given.name, given.annotation),
        required=given.default is inspect.Parameter.empty,
        by_position=given.kind is not inspect.Parameter.KEYWORD_ONLY,
        by_name=given.kind is not inspect.Parameter.POSITIONAL_ONLY,
    )


def _without_signals(hint: Any) -> Any:
    """The result's type without what a handler may return as well: `Snooze`, an answer."""
    if hint in (NoReturn, Never) or isinstance(hint, TypeVar) or _is_signal(hint):
        return Any
    if typing.get_origin(hint) not in (Union, UnionType):
        return hint
    results = [choice for choice in typing.get_args(hint) if not _is_signal(choice)]
    return Union[tuple(results)] if results else Any  # noqa: UP007 - built from a list


def _is_signal(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, JobSignal | WorkerResponse)


def holds_sets(hint: Any) -> bool:
    """Whether a value of this type may hold a set, whose order is its process's own."""
    return any(
        isinstance(inner, SetType | FrozenSetType) for inner in _types_in(type_info(hint), set())
    )


def plain_kinds(hint: Any) -> frozenset[type]:
    """Of the kinds of values that JSON has as they are, those whose every value fits a type."""
    kind = type_info(hint)
    choices = kind.types if isinstance(kind, ChoiceType) else (kind,)
    if any(isinstance(choice, AnyType) or _is_object(choice) for choice in choices):
        return frozenset(plain for plain, _ in _PLAIN)
    return frozenset(plain for plain, whole in _PLAIN if whole in choices)


def _is_object(kind: Type) -> bool:
    return isinstance(kind, CustomType) and kind.cls is object


def _types_in(kind: Type, seen: set[int]) -> Iterator[Type]:
    """This type and every one inside it."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    yield kind
    for name in kind.__struct_fields__:
        value = getattr(kind, name)
        for part in value if isinstance(value, tuple) else (value,):
            inner = getattr(part, "type", part)  # a field wraps its type
            if isinstance(inner, Type):
                yield from _types_in(inner, seen)


def _is_key(kind: Type) -> bool:
    """Whether some value of a type may be the key of an object in JSON."""
    if isinstance(kind, ChoiceType):
        return any(_is_key(choice) for choice in kind.types)
    return not isinstance(kind, _NO_KEYS)


def _never(kind: type, value: Any) -> Any:
    raise NotImplementedError
