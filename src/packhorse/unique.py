# SPDX-License-Identifier: MIT
"""One job for one key: how a task, or a call, says that its job must not be there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from packhorse.core.durations import Duration, microseconds
from packhorse.core.job import OnConflict, UniqueRule, UniqueScope
from packhorse.core.keys import (
    KeySource,
    TakesArguments,
    canonical,
    check_source,
    digest,
    shortened,
    taken_value,
)
from packhorse.core.policies.uniqueness import check_unique
from packhorse.errors import ConfigError

E = TypeVar("E", bound=StrEnum)

Scope = Literal["until_started", "until_finished", "window"]
Conflict = Literal["reject", "replace", "debounce", "throttle", "preserve_run_at", "keep_latest"]

#: Stands for the key where a rule is checked before there is a call.
_ANY_KEY = "*"


@dataclass(frozen=True, slots=True)
class Unique:
    """Of the jobs of a task, and a tenant, with one key only one is there at a time.

    `key` is an argument by its name, several of them, or a function of arguments; None is all of
    them. `scope` says how long a job holds its key, and `on_conflict` what becomes of a call that
    meets a holder: its handle is the holder's, `deduplicated`, in any case.
    """

    key: str | tuple[str, ...] | Callable[..., object] | None = None
    scope: Scope = "until_finished"
    on_conflict: Conflict = "reject"
    window: Duration | None = None  #: from the submit; of scope "window"
    template: UniqueRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", _template(self))


def _template(unique: Unique) -> UniqueRule:
    """The rule without its key, refused where it contradicts itself."""
    window = unique.window
    rule = UniqueRule(
        key=_ANY_KEY,
        scope=_choice(unique.scope, UniqueScope, "scope"),
        on_conflict=_choice(unique.on_conflict, OnConflict, "on_conflict"),
        window_us=None if window is None else microseconds(window, setting="unique: window"),
    )
    check_unique(rule)
    key = unique.key
    if not (key is None or isinstance(key, str) or callable(key) or _are_names(key)):
        raise ConfigError(
            f"unique: key is {key!r}; give the name of an argument, several of them in a tuple, a "
            "function of arguments, or None for all of them"
        )
    return rule


def _choice(value: object, choices: type[E], setting: str) -> E:
    if value not in tuple(choices):
        names = ", ".join(repr(str(choice)) for choice in choices)
        raise ConfigError(f"unique: {setting} is {value!r}; give one of {names}")
    return choices(str(value))


def _are_names(key: object) -> bool:
    return isinstance(key, tuple) and bool(key) and all(isinstance(name, str) for name in key)


def check_unique_arguments(unique: Unique, names: Iterable[str], setting: str) -> None:
    """Refuse a key of arguments that the task does not have."""
    known = tuple(names)
    for source in _sources(unique):
        check_source(source, known, f"{setting}: key")


def unique_rule(unique: Unique, task: TakesArguments, payload: bytes) -> UniqueRule | None:
    """The rule for one call; None when the function that makes its key returned None."""
    if unique.key is None:
        key = digest(canonical(task.normal_arguments(payload)))
    else:
        check_unique_arguments(unique, task.names, "unique")
        values = [taken_value(source, task, payload) for source in _sources(unique)]
        if callable(unique.key) and values == [None]:
            return None
        key = shortened(canonical(values))
    return msgspec.structs.replace(unique.template, key=key)


def _sources(unique: Unique) -> tuple[KeySource, ...]:
    if unique.key is None:
        return ()
    return unique.key if isinstance(unique.key, tuple) else (unique.key,)


def payload_digest(name: str, task: TakesArguments, payload: bytes) -> str:
    """What tells a repeated submit from another one under the same idempotency key.

    The order in which the arguments were given makes no difference, nor whether a default was
    left out. The number says how it was made; see `policies.uniqueness.same_payload`.
    """
    return f"2:{digest(name, canonical(task.normal_arguments(payload)))}"
