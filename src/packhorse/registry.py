# SPDX-License-Identifier: MIT
"""The tasks an app declares: each function with its name, its queue and its limits."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from packhorse.codec import Signature
from packhorse.context import Context
from packhorse.durations import microseconds, positive_microseconds
from packhorse.errors import ConfigError, PayloadError
from packhorse.hints import Hints, label_of, read_hints
from packhorse.job import RateRule, RetryRule
from packhorse.keys import KeySource, check_source
from packhorse.options import (
    TaskOptions,
    chosen_options,
    count,
    name_text,
    rate_rule,
    retry_rule,
    text_tuple,
    unique_choice,
)
from packhorse.policies.concurrency import check_concurrency
from packhorse.policies.uniqueness import check_idempotency
from packhorse.unique import Unique, check_unique_arguments

__all__ = ["DEFAULT_QUEUE", "Registry", "TaskDefinition", "check_window", "define_task"]

DEFAULT_QUEUE: Final = "default"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_EXECUTORS: Final = (None, "thread", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """One declared task."""

    name: str
    function: Callable[..., Any]
    queue: str = DEFAULT_QUEUE
    kind: Literal["coroutine", "thread", "process"]
    coroutine: bool = False  #: the function is one, wherever it runs
    wants_context: bool  #: the first parameter is a Context, given by the worker
    signature: Signature
    timeout_us: int | None = None  #: per attempt; None is the worker's default
    retry: RetryRule | None = None  #: None follows the queue
    max_crashes: int | None = None
    max_snoozes: int | None = None  #: None is no limit
    result_keep_us: int | None = None  #: None follows the queue's retention
    aliases: tuple[str, ...] = ()  #: older names, under which jobs may still wait
    where: str = ""  #: "file:line" of the function
    concurrency: int | None = (
        None  #: jobs running at once over all workers, per key if there is one
    )
    concurrency_key: KeySource | None = None
    rate: RateRule | None = None  #: over all workers, per key if there is one
    rate_key: KeySource | None = None
    unique: Unique | None = None
    idempotency_window_us: int | None = None  #: None: a day, or as long as the result is kept
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: of parameters that have some
    #: Whether its jobs have nothing but their arguments, a queue and a timeout.
    is_plain: bool = field(init=False)  # asked at every submit

    def __post_init__(self) -> None:
        adding = (self.unique, self.max_crashes, self.concurrency_key, self.rate_key)
        object.__setattr__(self, "is_plain", all(each is None for each in adding))

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters, without a context."""
        return self.signature.names

    @property
    def limited(self) -> bool:
        """Whether the store has to know of a limit."""
        return self.concurrency is not None or self.rate is not None

    def plain_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """The arguments of a call as JSON data; those left out as the function's defaults."""
        arguments = {} if self.signature.whole else msgspec.json.decode(payload)
        return {**_plain(self.signature, self.defaults), **arguments}

    def typed_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """The arguments of a call as the handler will get them."""
        return {**self.defaults, **self.signature.decode(payload)}


def _plain(signature: Signature, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults as JSON data; one that is none, as a mark of its own, cannot be part of a key."""
    plain = {}
    for name, value in defaults.items():
        try:
            plain[name] = msgspec.json.decode(signature.encode_result(value))
        except PayloadError:
            continue
    return plain


class Registry:
    """Tasks by name; two of one name are a mistake that shows at once."""

    def __init__(self) -> None:
        self._by_name: dict[str, TaskDefinition] = {}
        #: Another number whenever there is something new to check or to tell the store.
        self.news = 0
        self._numbers = itertools.count(1)

    def add(self, definition: TaskDefinition) -> None:
        """Take a task in, under its name and its aliases."""
        names = (definition.name, *definition.aliases)
        for name in names:
            other = self._by_name.get(name)
            if other is not None:
                raise ConfigError(
                    f"task {name!r} is declared twice: at {other.where} and at "
                    f"{definition.where}; give one of them another name="
                )
        self._by_name.update(dict.fromkeys(names, definition))
        if definition.limited or definition.idempotency_window_us is not None:
            self.note_news()

    def note_news(self) -> None:
        """There is something new, of a task or of a queue; safe between threads."""
        self.news = next(self._numbers)

    def get(self, name: str) -> TaskDefinition | None:
        """The task of a name or an alias."""
        return self._by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a job of this app may carry, aliases too."""
        return tuple(self._by_name)

    @property
    def tasks(self) -> tuple[TaskDefinition, ...]:
        """The tasks, each once, in order of declaration."""
        return tuple(task for name, task in self._by_name.items() if name == task.name)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues the tasks name, in order of declaration."""
        return tuple(dict.fromkeys(task.queue for task in self._by_name.values()))


def define_task(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    scope: Mapping[str, Any] | None = None,
    whole_payload: bool = False,
) -> TaskDefinition:
    """Check a function and its options, and put them together as a task.

    With `whole_payload` the function's one parameter takes the payload as it came, which need not
    be an object: so handlers of the worker protocol are called.
    """
    label = label_of(function)
    chosen = chosen_options(options, TaskOptions, f"task {label}")
    kind = _kind(function, label)
    executor = chosen.get("executor")
    if executor not in _EXECUTORS or (kind == "coroutine" and executor == "thread"):
        raise ConfigError(
            f"task {label}: executor is {executor!r}; leave it out: async def runs on the event "
            "loop, and def in a thread (executor='thread'); or give executor='process'"
        )
    hints = read_hints(function, scope)
    wants_context = _wants_context(hints)
    if whole_payload and len(hints.parameters) - wants_context != 1:
        raise ConfigError(f"{label}: a handler takes the payload, after a Context if it wants one")
    signature = Signature.from_hints(hints, skip_first=wants_context, whole=whole_payload)
    return TaskDefinition(
        name=_name(chosen.get("name", getattr(function, "__name__", "")), label),
        function=function,
        kind="process" if executor == "process" else kind,
        coroutine=kind == "coroutine",
        wants_context=wants_context,
        signature=signature,
        where=_where(function),
        defaults=_defaults(function, signature),
        **_limits(chosen, f"task {label}: "),
        **_keyed(chosen, signature.names, f"task {label}: "),
    )


def _kind(function: Callable[..., Any], label: str) -> Literal["coroutine", "thread"]:
    if not callable(function):
        raise ConfigError(f"{function!r} cannot be a task; give a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{label} yields, and a task returns its result; make it return")
    return "coroutine" if inspect.iscoroutinefunction(function) else "thread"


def _wants_context(hints: Hints) -> bool:
    """Whether the first parameter is a Context; one further back would never be filled."""
    places = [index for index, given in enumerate(hints.parameters) if _is_context(given.hint)]
    if places not in ([], [0]):
        name = hints.parameters[places[-1]].name
        raise ConfigError(
            f"{hints.label}: parameter {name!r} is a Context; only the first parameter can be one"
        )
    return bool(places)


def _is_context(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Context)


def _name(value: Any, label: str) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigError(
            f"task {label}: {value!r} cannot name a task; give a name= of lower-case letters, "
            "digits and underscores that does not begin with a digit"
        )
    return value


def _limits(chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options as stores and workers keep them."""
    readers: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
        "queue": ("queue", name_text),
        "timeout": ("timeout_us", lambda value, at: positive_microseconds(value, setting=at)),
        "retry": ("retry", retry_rule),
        "aliases": ("aliases", _aliases),
        "max_crashes": ("max_crashes", count),
        "max_snoozes": ("max_snoozes", count),
        "result_ttl": ("result_keep_us", lambda value, at: microseconds(value, setting=at)),
        "concurrency": ("concurrency", _concurrency),
        "rate_limit": ("rate", rate_rule),
        "idempotency_window": (
            "idempotency_window_us",
            lambda value, at: positive_microseconds(value, setting=at),
        ),
    }
    limits = {
        field: read(chosen[option], where + option)
        for option, (field, read) in readers.items()
        if option in chosen
    }
    if "idempotency_window_us" in limits and "result_keep_us" in limits:
        check_window(limits["idempotency_window_us"], limits["result_keep_us"], where)
    return limits


def check_window(window_us: int, result_keep_us: int | None, where: str) -> None:
    """Refuse an idempotency window that outlives the result it answers with."""
    try:
        check_idempotency(window_us, result_keep_us=result_keep_us)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _concurrency(value: Any, setting: str) -> int:
    check_concurrency(value, setting=setting)
    return int(value)


def _keyed(chosen: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, Any]:
    """The options that look at arguments."""
    keyed: dict[str, Any] = {
        option: check_source(chosen[option], names, where + option)
        for option in ("concurrency_key", "rate_key")
        if option in chosen
    }
    # A rate key without a rate limit is what `RateLimited` closes.
    if "concurrency_key" in chosen and "concurrency" not in chosen:
        raise ConfigError(
            f"{where}concurrency_key is set and concurrency is not, so nothing is limited; set "
            "concurrency, or leave concurrency_key out"
        )
    if "unique" in chosen:
        keyed["unique"] = unique_choice(chosen["unique"], f"{where}unique")
        check_unique_arguments(keyed["unique"], names, f"{where}unique")
    return keyed


def _defaults(function: Callable[..., Any], signature: Signature) -> Mapping[str, Any]:
    if not signature.optional:
        return MappingProxyType({})
    parameters = inspect.signature(function).parameters
    return MappingProxyType({name: parameters[name].default for name in signature.optional})


def _aliases(value: Any, setting: str) -> tuple[str, ...]:
    return tuple(_name(alias, setting) for alias in text_tuple(value, setting))


def _where(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
