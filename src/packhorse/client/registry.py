# SPDX-License-Identifier: MIT
"""The tasks an app declares: each function with its name, its queue and its limits."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from packhorse.client.contracts import BoundContract, bind_contract, contract_limits
from packhorse.context import Context
from packhorse.core.codec import RESULT_BYTES_MAX, Signature
from packhorse.core.durations import microseconds, positive_microseconds
from packhorse.core.interpreter import is_interactive
from packhorse.core.job import RateRule, RetryRule
from packhorse.core.keys import KeySource, check_source, normal
from packhorse.core.options import (
    Reader,
    TaskOptions,
    chosen_options,
    count,
    is_per_tenant,
    key_text,
    queue_text,
    rate_rule,
    read_options,
    retry_rule,
    text_tuple,
    unique_choice,
)
from packhorse.core.policies.gates import checked_concurrency
from packhorse.core.policies.uniqueness import check_idempotency
from packhorse.core.text import declared_twice
from packhorse.core.type_hints import Hints, label_of, read_hints
from packhorse.core.versions import PayloadVersions
from packhorse.errors import ConfigError
from packhorse.tools import Tools
from packhorse.unique import Unique, check_unique_arguments

DEFAULT_QUEUE: Final = "default"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")
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
    result_bytes_max: int = RESULT_BYTES_MAX
    aliases: tuple[str, ...] = ()  #: older names, under which jobs may still wait
    where: str = ""  #: "file:line" of the function
    concurrency: int | None = None  #: jobs at once over all workers, per key if there is one
    concurrency_key: KeySource | None = None
    rate: RateRule | None = None  #: over all workers, per key if there is one
    rate_key: KeySource | None = None
    unique: Unique | None = None
    bound: BoundContract | None = None  #: the contract it was declared with
    versions: PayloadVersions | None = None  #: of its payloads, where they have some
    is_tick: bool = False  #: declared with `app.every`: shutdown ends it, and it comes again anyway
    idempotency_window_us: int | None = None  #: None: a day, or as long as the result is kept
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: of parameters that have some
    #: Whether jobs get fields from this task beyond the plain ones; read at every submit.
    adds_fields: bool = field(init=False)

    def __post_init__(self) -> None:
        added = (self.unique, self.max_crashes, self.concurrency_key, self.rate_key, self.bound)
        adds = any(each is not None for each in (*added, self.versions))
        object.__setattr__(self, "adds_fields", adds)

    def upcast(self, source: str, target: str, function: Callable[[dict[str, Any]], Any]) -> None:
        """Add a function that migrates payloads from one version to another."""
        versions = self.versions or PayloadVersions(self.signature.label, None)
        versions.add(source, target, function)
        for name, value in (("versions", versions), ("adds_fields", True)):
            object.__setattr__(self, name, value)

    @property
    def version(self) -> str | None:
        """The version of new payloads; None if they have none."""
        return None if self.versions is None else self.versions.current

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters, without a context."""
        return self.signature.names

    @property
    def worker_id(self) -> str:
        """The worker id of its contract; its name without one."""
        return (self.bound and self.bound.contract.worker_id) or self.name

    @property
    def limited(self) -> bool:
        """Whether it has a limit that the store enforces."""
        return self.concurrency is not None or self.rate is not None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call as its payload; an error names the wrong argument."""
        payload = self.signature.encode(args, kwargs)
        if self.bound is not None:
            self.bound.check_payload(payload)
        return payload

    def encode_wire(self, value: Any) -> bytes:
        """As `encode`, for arguments that came as plain JSON data."""
        payload = self.signature.encode_wire(value)
        if self.bound is not None:
            self.bound.check_payload(payload)
        return payload

    def encode_result(self, value: Any) -> str:
        """Encode a result as JSON text; an error if it breaks what the task declares."""
        result = self.signature.encode_result(value)
        if self.bound is not None:
            self.bound.check_result(result)
        return result

    def tools(self, known: Mapping[str, Callable[..., Any]]) -> Tools:
        """Return the app's tools that its handler may use."""
        allowed = None if self.bound is None else self.bound.contract.tools_allowed
        return Tools(known, allowed, self.name)

    def normal_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """Return the arguments of a call in normal form, with defaults for those left out."""
        arguments = self.signature.decode(payload)
        return {**_normal_defaults(self.defaults), **normal(arguments)}

    def typed_arguments(self, payload: bytes) -> Mapping[str, Any]:
        """Return the arguments of a call as the handler will get them."""
        return {**self.defaults, **self.signature.decode(payload)}


def _normal_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that can be part of a key; a sentinel object cannot."""
    found = {}
    for name, value in defaults.items():
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            found[name] = normal(value)
    return found


class Registry:
    """Tasks by name; a second task of the same name is refused."""

    def __init__(self) -> None:
        self._by_name: dict[str, TaskDefinition] = {}
        self.tools: dict[str, Callable[..., Any]] = {}  #: what handlers may use, by name
        #: Changes whenever there is something new to check or to declare to the store.
        self.news = 1
        self._numbers = itertools.count(2)
        #: Imports what may declare more tasks; called when one is looked up and not there.
        self.load: Callable[[], None] = lambda: None

    def add(self, definition: TaskDefinition) -> None:
        """Add a task under its name and its aliases."""
        names = (definition.name, *definition.aliases)
        for name in names:
            other = self._by_name.get(name)
            if other is not None and _is_typed_again(definition, other):
                self._forget(other)
            elif other is not None:
                modules = [getattr(one.function, "__module__", "") for one in (other, definition)]
                places = (other.where, definition.where)
                raise ConfigError(declared_twice(f"task {name!r}", places, modules))
        self._by_name.update(dict.fromkeys(names, definition))
        if definition.limited or definition.idempotency_window_us is not None:
            self.note_news()

    def _forget(self, definition: TaskDefinition) -> None:
        kept = {name: task for name, task in self._by_name.items() if task is not definition}
        self._by_name = kept

    def note_news(self) -> None:
        """Note that a task or queue is new or changed; safe between threads."""
        self.news = next(self._numbers)

    def get(self, name: str) -> TaskDefinition | None:
        """The task of a name or an alias."""
        found = self._by_name.get(name)
        if found is None:
            self.load()
            found = self._by_name.get(name)
        return found

    def place_of(self, name: str) -> str:
        """Return `file:line` of a task's function; empty for a task that is not known here."""
        definition = self._by_name.get(name)
        return "" if definition is None else definition.where

    def worker_id_of(self, name: str) -> str:
        """Return the id of a task's contract; its name where it is not known here."""
        definition = self.get(name)
        return name if definition is None else definition.worker_id

    def by_worker_id(self, worker_id: str) -> TaskDefinition | None:
        """The task whose contract has this id; one without a contract has its name for it."""
        self.load()
        found = (task for task in self._by_name.values() if task.worker_id == worker_id)
        return next(found, None) or self.get(worker_id)

    def in_process(self) -> Registry:
        """Return a copy of the tasks in which none runs in a process of its own."""
        copy = Registry()
        copy.tools = self.tools
        for task in self.tasks:
            kind: Literal["coroutine", "thread"] = "coroutine" if task.coroutine else "thread"
            copy.add(replace(task, kind=kind))
        return copy

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a job of this app may carry, aliases too."""
        self.load()
        return tuple(self._by_name)

    @property
    def tasks(self) -> tuple[TaskDefinition, ...]:
        """The tasks declared so far, each once, in order of declaration."""
        return tuple(task for name, task in self._by_name.items() if name == task.name)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues the tasks name, in order of declaration."""
        self.load()
        return tuple(dict.fromkeys(task.queue for task in self._by_name.values()))


def define_task(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    scope: Mapping[str, Any] | None = None,
    prefix: str = "",
    whole_payload: bool = False,
) -> TaskDefinition:
    """Check a function and its options, and put them together as a task named with `prefix`.

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
    where = f"task {label}: "
    bound = bind_contract(chosen.get("contract"), function, signature, where)
    return TaskDefinition(
        name=_name(chosen.get("name", getattr(function, "__name__", "")), label, prefix),
        function=function,
        kind="process" if executor == "process" else kind,
        coroutine=kind == "coroutine",
        wants_context=wants_context,
        signature=signature,
        where=_where(function),
        defaults=_defaults(function, signature),
        bound=bound,
        versions=None if bound is None else bound.versions(),
        **contract_limits(bound, _limits(chosen, where), where),
        **_keyed(chosen, signature.names, where),
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


def _name(value: Any, label: str, prefix: str = "") -> str:
    name = prefix + value if isinstance(value, str) else value
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"task {label}: {name!r} cannot name a task; give a name= of lower-case letters, "
            "digits and underscores that does not begin with a digit, or several of them with "
            "dots between"
        )
    return key_text(name, f"task {label}: name")


def _limits(chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read the options that stores and workers keep as they are."""
    readers: dict[str, tuple[str, Reader]] = {
        "queue": ("queue", queue_text),
        "timeout": ("timeout_us", positive_microseconds),
        "retry": ("retry", retry_rule),
        "aliases": ("aliases", lambda all_, at: tuple(_name(x, at) for x in text_tuple(all_, at))),
        "max_crashes": ("max_crashes", count),
        "max_snoozes": ("max_snoozes", count),
        "result_ttl": ("result_keep_us", microseconds),
        "max_result_bytes": ("result_bytes_max", count),
        "concurrency": ("concurrency", checked_concurrency),
        "rate_limit": ("rate", _rate),
        "idempotency_window": ("idempotency_window_us", positive_microseconds),
    }
    kept = {option: value for option, value in chosen.items() if option in readers}
    limits = read_options(kept, readers, where)
    if "idempotency_window_us" in limits and "result_keep_us" in limits:
        check_window(limits["idempotency_window_us"], limits["result_keep_us"], where)
    return limits


def check_window(window_us: int, result_keep_us: int | None, where: str) -> None:
    """Refuse an idempotency window that outlives the result it answers with."""
    try:
        check_idempotency(window_us, result_keep_us=result_keep_us)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _rate(value: Any, setting: str) -> RateRule:
    if is_per_tenant(value):
        raise ConfigError(
            f"{setting} is {value!r}, and a task has no limit for each tenant; give it to the "
            "task's queue: app.queue(..., tenant_rate_limit=...)"
        )
    return rate_rule(value, setting)


def _keyed(chosen: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, Any]:
    """Read the options that refer to arguments."""
    keyed: dict[str, Any] = {
        option: check_source(chosen[option], names, where + option)
        for option in ("concurrency_key", "rate_key")
        if option in chosen
    }
    # A rate key without a rate limit is allowed: `RateLimited` uses it.
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


def _where(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _is_typed_again(definition: TaskDefinition, other: TaskDefinition) -> bool:
    """Whether this is the same function of an interactive session, such as a cell run again."""
    names = {(task.function.__module__, task.function.__qualname__) for task in (definition, other)}
    return is_interactive() and len(names) == 1 and definition.function.__module__ == "__main__"
