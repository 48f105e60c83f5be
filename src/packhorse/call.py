# SPDX-License-Identifier: MIT
"""A call: a task with its arguments and options, checked, and not yet submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, Unpack

import msgspec

from packhorse.client.registry import TaskDefinition
from packhorse.client.user_connections import user_connection
from packhorse.core.durations import microseconds, positive_microseconds
from packhorse.core.options import (
    CallOptions,
    Reader,
    bounded_text,
    chosen_options,
    instant_us,
    key_text,
    key_tuple,
    name_text,
    priority_level,
    queue_text,
    retry_rule,
    unique_choice,
    weight,
)
from packhorse.core.references import ArgumentPlace, has_references, take_places
from packhorse.errors import ConfigError, UsageError

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Choices:
    """The options a caller chose for a job, by name, each value checked."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def using(self, options: Mapping[str, Any], where: str) -> Choices:
        """Return these choices with `options` over them; None removes a choice."""
        read = _read(chosen_options(options, CallOptions, where), where)
        kept = {name: value for name, value in self.values.items() if name not in options}
        return _consistent({**kept, **read}, where)

    def over(self, outer: Choices, where: str) -> Choices:
        """Return these choices over the `outer` ones."""
        if not outer.values:
            return self
        return _consistent({**outer.values, **self.values}, where)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `NewJob` they decide, and what else goes into making one."""
        return {_READERS[name][0]: value for name, value in self.values.items()}


#: The caller chose no options.
NO_CHOICES: Final = Choices()


class Call(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One call of a task, as `task.call(...)` makes it; its arguments are checked already."""

    definition: TaskDefinition
    payload: bytes  #: JSON text
    choices: Choices = NO_CHOICES

    def __repr__(self) -> str:  # payloads are never shown
        return f"Call(task={self.task!r}, choices={self.choices!r})"

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.definition.name

    def using(self, **options: Unpack[CallOptions]) -> Call[R]:
        """Return the same call with these options over those it had."""
        choices = self.choices.using(dict(options), f"{self.task}.call(...).using()")
        return msgspec.structs.replace(self, choices=choices)


class CallWithResults(Call[R], frozen=True, gc=True):
    """A call with results of other nodes among its arguments; only a workflow takes it."""

    places: tuple[ArgumentPlace, ...] = ()  #: where they belong; null stands there


def call_with_results(
    definition: TaskDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any], choices: Choices
) -> CallWithResults[Any]:
    """Make a call with results of nodes among its arguments; check the others now."""
    signature = definition.signature
    given = signature.bind(args, kwargs)
    late = {name: value for name, value in given.items() if has_references(value)}
    found: list[ArgumentPlace] = []
    if signature.whole:
        [value] = given.values()
        payload = msgspec.json.encode(take_places(value, (), found))
        return CallWithResults(definition, payload, choices, tuple(found))
    kept = {name: take_places(value, (name,), found) for name, value in late.items()}
    checked = signature.without(late).encode((), {k: v for k, v in given.items() if k not in late})
    payload = msgspec.json.encode({**msgspec.json.decode(checked), **kept})
    return CallWithResults(definition, payload, choices, tuple(found))


def not_alone(call: object) -> UsageError:
    """Return the error for a value that cannot be submitted as a call by itself."""
    if isinstance(call, Call):
        return UsageError(
            f"a call of task {call.task} has the result of a node among its arguments, which only "
            "its workflow knows: add it with flow.add(...)"
        )
    return UsageError(f"{call!r} is not a call; make one with task.call(...)")


#: Each option, the field of the job it decides, and how its value is read.
_READERS: Final[Mapping[str, tuple[str, Reader]]] = MappingProxyType(
    {
        "priority": ("priority", priority_level),
        "delay": ("delay_us", microseconds),
        "tenant": ("tenant", bounded_text),
        "tags": ("tags", key_tuple),
        "queue": ("queue", queue_text),
        "timeout": ("timeout_us", positive_microseconds),
        "deadline": ("deadline_us", instant_us),
        "scheduled_at": ("scheduled_us", instant_us),
        "retry": ("retry", retry_rule),
        "trace_id": ("trace_id", key_text),
        "upstream_request_id": ("upstream_request_id", name_text),
        "created_by": ("created_by", name_text),
        "job_id": ("id", key_text),
        "ordering_key": ("ordering_key", key_text),
        "concurrency_key": ("concurrency_key", key_text),
        "rate_key": ("rate_key", key_text),
        "weight": ("weight", weight),
        "idempotency_key": ("idempotency_key", key_text),
        "idempotency_window": ("idempotency_window_us", positive_microseconds),
        "unique": ("unique", unique_choice),
        "wait": ("wait_us", microseconds),
        "tx": ("tx", user_connection),
        "notify": ("notify", lambda value, _setting: bool(value)),
    }
)


def _read(chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: _READERS[name][1](value, f"{where}: {name}") for name, value in chosen.items()}


def _consistent(values: Mapping[str, Any], where: str) -> Choices:
    """Return the values as choices, unless they contradict each other."""
    scheduled_us = values.get("scheduled_at")
    if scheduled_us is not None and "delay" in values:
        raise ConfigError(f"{where}: delay and scheduled_at both say when; give one of them")
    if scheduled_us is not None and scheduled_us >= values.get("deadline", scheduled_us + 1):
        raise ConfigError(f"{where}: scheduled_at is not before deadline, so it could never run")
    return Choices(values)
