# SPDX-License-Identifier: MIT
"""What an app declares of its queues and tasks: read from options, checked, sent to the store.

The connection sends declarations before the first submit or run, and again when there are new ones.
Producers send the limits of tasks that have some; workers send every task, so that the store drops
a limit which is no longer declared.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.client.registry import Registry, TaskDefinition, check_window
from packhorse.core.durations import microseconds, positive_microseconds
from packhorse.core.job import NewJob
from packhorse.core.options import (
    LimitOptions,
    QueueOptions,
    Reader,
    RetentionOptions,
    ScaleOptions,
    chosen_options,
    count,
    is_per_tenant,
    name_text,
    rate_rule,
    read_options,
    retry_rule,
)
from packhorse.core.policies.autoscale import ScaleRule, check_scale
from packhorse.core.policies.depth import check_depth
from packhorse.core.policies.fairness import check_fairness
from packhorse.core.policies.gates import check_on_dead, checked_concurrency
from packhorse.core.policies.retention import DAY_US, Retention
from packhorse.core.sizes import THE_STORE, Size, size_in_bytes
from packhorse.core.text import nearest
from packhorse.errors import ConfigError
from packhorse.stores.requests import QueueSettings, TaskSettings

#: Names of queues that have less in common are taken for different ones.
_ALIKE_MIN: Final = 0.7
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """Settings of a queue: those of the store, and those that only this process uses."""

    settings: QueueSettings
    wait_us: int | None = None  #: how long a submit waits for room; None is the default
    require_tenant: bool = False  #: take no job that belongs to no tenant
    unique_traces: bool = False  #: no two of its jobs have one trace id


class Declarations:
    """Queues by name, and which of them and of the tasks the store knows; safe between threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._queues: dict[str, QueueDeclaration] = {}
        #: The registry's `news` when all was last declared to the store; read at every submit.
        self.told = 0
        self.require_tenant = False  #: of every queue
        self.demanding = False  #: whether any queue demands a tenant; read at every submit
        self.tracing = False  #: whether any queue has unique traces; read at every submit
        self.of_the_store: tuple[QueueSettings, ...] = ()  #: settings of the whole store, if any
        self.told_at = 0.0  #: when all was declared, by the monotonic clock
        #: Queues and tasks whose limits the store was told; looked at with every submit.
        self.limiting: frozenset[str] = frozenset()

    def add(self, declaration: QueueDeclaration) -> None:
        """Add a queue; a later declaration of the same name replaces it."""
        settings = declaration.settings
        for task in self._registry.tasks:
            if task.queue == settings.name:
                _check_window(task, settings)
        with self._lock:
            self._queues[settings.name] = declaration
            self.demanding = self.demanding or declaration.require_tenant
            self.tracing = self.tracing or declaration.unique_traces
            self._registry.note_news()

    def set_rules(self, *, require_tenant: bool, max_bytes: Size | None) -> None:
        """Demand a tenant in every queue; bound the bytes of all jobs, unless that is None."""
        self.require_tenant = self.demanding = require_tenant
        if max_bytes is None:
            return
        settings = QueueSettings(THE_STORE, max_bytes=size_in_bytes(max_bytes, "max_bytes"))
        self.of_the_store = (checked_settings(settings, "the store"),)
        self._registry.note_news()

    @property
    def queues(self) -> dict[str, QueueSettings]:
        """The settings of each queue, by name."""
        return {name: declared.settings for name, declared in self._queues.items()}

    def meant_by(self, queue: str) -> str | None:
        """The declared queue whose name was probably mistyped; None: this one may be meant."""
        known = {*self._queues, *self._registry.queues}
        if queue in known or not queue:
            return None
        near = nearest(queue, known, alike=_ALIKE_MIN)
        # `import-1` beside `import-2` is no mistake.
        same = near is not None and _DIGITS.sub("", near) == _DIGITS.sub("", queue)
        return None if same else near

    @property
    def scales(self) -> dict[str, ScaleRule]:
        """The autoscale rules, by queue."""
        found = ((name, settings.autoscale) for name, settings in self.queues.items())
        return {name: scale for name, scale in found if scale is not None}

    def of(self, queue: str) -> QueueDeclaration:
        """Return what is declared of a queue; one that is not has the defaults."""
        return self._queues.get(queue) or QueueDeclaration(QueueSettings(queue))

    def demands_tenant(self, queue: str) -> bool:
        """Whether a job of this queue must belong to a tenant."""
        return self.require_tenant or self.of(queue).require_tenant

    def check(self, task: TaskDefinition) -> None:
        """Refuse a task that contradicts what is declared of its queue."""
        if task.queue in self._queues:
            _check_window(task, self.of(task.queue).settings)

    def idempotency_window_us(self, task: TaskDefinition, queue: str, chosen_us: int | None) -> int:
        """Return how long an idempotency key holds after the submit."""
        kept_us = _result_keep_us(task, self.of(queue).settings)
        window_us = task.idempotency_window_us if chosen_us is None else chosen_us
        if window_us is None:
            return DAY_US if kept_us is None else min(DAY_US, kept_us)
        check_window(window_us, kept_us, f"task {task.name} in queue {queue!r}: ")
        return window_us

    # --------------------------------------------------------------- what the store has to know

    def check_all(self) -> None:
        """Refuse tasks that contradict their queues, now that all are declared."""
        for task in self._registry.tasks:
            _check_window(task, self.of(task.queue).settings)

    def limits(self, *, everything: bool) -> tuple[TaskSettings, ...]:
        """Return the limits of tasks; with `everything`, also of tasks without any."""
        return tuple(
            settings
            for task in self._registry.tasks
            if everything or task.limited
            for settings in task_settings(task)
        )

    def note_told(self, news: int, at: float) -> None:
        """Note that all up to these `news` was declared, at that monotonic time."""
        queues = [name for name, one in self.queues.items() if one != QueueSettings(name)]
        tasks = [settings.name for settings in self.limits(everything=False)]
        self.limiting = frozenset(queues + tasks + [one.name for one in self.of_the_store])
        self.told, self.told_at = news, at

    def limit(self, jobs: Sequence[NewJob]) -> bool:
        """Whether declared limits may apply to these jobs."""
        known = self.limiting  # a queue and a task of one name are rare, and no harm
        return THE_STORE in known or any(job.queue in known or job.task in known for job in jobs)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._lock = threading.Lock()


def task_settings(task: TaskDefinition) -> tuple[TaskSettings, ...]:
    """Return a task's limits under its name and its aliases, which older jobs carry."""
    return tuple(
        TaskSettings(name, concurrency=task.concurrency, rate=task.rate)
        for name in (task.name, *task.aliases)
    )


def difference(before: msgspec.Struct, now: msgspec.Struct) -> dict[str, str]:
    """Return what differs between two settings, before and now, as JSON objects."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    names = [name for name in new if old[name] != new[name]]
    return {
        when: msgspec.json.encode({name: values[name] for name in names}).decode()
        for when, values in (("before", old), ("now", new))
    }


def changed_tasks(
    told: Iterable[TaskSettings], known: Iterable[TaskSettings]
) -> tuple[TaskSettings, ...]:
    """Return the settings that differ from those known; an unknown task has no limits."""
    held: Mapping[str, TaskSettings] = {settings.name: settings for settings in known}
    return tuple(one for one in told if held.get(one.name, TaskSettings(one.name)) != one)


def _check_window(task: TaskDefinition, settings: QueueSettings) -> None:
    if task.idempotency_window_us is not None:
        where = f"task {task.name} in queue {task.queue!r}: "
        check_window(task.idempotency_window_us, _result_keep_us(task, settings), where)


def _result_keep_us(task: TaskDefinition, settings: QueueSettings) -> int | None:
    """Return how long a result of this task is kept in this queue."""
    if task.result_keep_us is not None:
        return task.result_keep_us
    return (settings.retention or Retention()).results_us


def queue_declaration(name: object, options: Mapping[str, Any]) -> QueueDeclaration:
    """Read and check the declaration of a queue; errors name queue and option."""
    queue = name_text(name, "the name of a queue")
    where = f"queue {queue!r}"
    chosen = chosen_options(options, QueueOptions, where)
    wait = chosen.pop("wait_timeout", None)
    demanded = _flag(chosen.pop("require_tenant", False), f"{where}: require_tenant")
    traced = _flag(chosen.pop("unique_traces", False), f"{where}: unique_traces")
    fields = {**_read(chosen, where), "name": queue}
    # One of the two orders a queue; asking for ageing switches fairness off.
    fields.setdefault("fair", "ageing_us" not in fields)
    settings = checked_settings(QueueSettings(**fields), where)
    if wait is not None and settings.on_full != "wait":
        raise ConfigError(
            f"{where}: wait_timeout is set and on_full is {settings.on_full!r}, so no submit "
            "waits; set on_full='wait', or leave wait_timeout out"
        )
    return QueueDeclaration(
        settings,
        wait_us=None if wait is None else microseconds(wait, setting=f"{where}: wait_timeout"),
        require_tenant=demanded,
        unique_traces=traced,
    )


def changed_settings(before: QueueSettings, options: Mapping[str, Any]) -> QueueSettings:
    """Return settings with some limits changed; None removes a limit."""
    where = f"queue {before.name!r}"
    chosen = chosen_options(options, LimitOptions, where)
    if not options:
        raise ConfigError(
            f"{where}: no limit is named; give some, such as concurrency=5, or None alone to end "
            "what was set"
        )
    fields = _read(chosen, where)
    for option in options.keys() - chosen.keys():
        field = _READERS[option][0]
        fields[field] = _DEFAULTS[field]
    if "ageing" in options and "fair" not in options:
        fields["fair"] = fields["ageing_us"] is None
    return checked_settings(msgspec.structs.replace(before, **fields), where)


def checked_settings(settings: QueueSettings, where: str) -> QueueSettings:
    """Return the settings, unless parts of them contradict each other."""
    try:
        check_depth(
            max_depth=settings.max_depth,
            soft_depth=settings.soft_depth,
            on_full=settings.on_full,
            max_bytes=settings.max_bytes,
        )
        check_fairness(fair=settings.fair, weights=settings.weights, ageing_us=settings.ageing_us)
        check_on_dead(settings.on_dead)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if settings.name == THE_STORE and settings != QueueSettings(
        THE_STORE, max_bytes=settings.max_bytes
    ):
        raise ConfigError(f"{where}: of the store itself only max_bytes can be set")
    if settings.background_only and settings.ageing_us is not None:
        raise ConfigError(
            f"{where}: ageing lets background jobs overtake others, and background_only lets them "
            "run while nothing else waits; give one of them"
        )
    return settings


def _flag(value: object, setting: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{setting} is {value!r}; give True or False")
    return value


def _weights(value: object, setting: str) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(tenant, str) for tenant in value):
        raise ConfigError(f'{setting} is {value!r}; give tenants and shares, such as {{"acme": 2}}')
    return dict(value)


def _retention(value: Any, where: str) -> Retention:
    """One span for finished jobs and their results, or each by its own name."""
    if not isinstance(value, Mapping):
        span_us = microseconds(value, setting=where)
        return Retention(finished_us=span_us, results_us=span_us)
    chosen_options(value, RetentionOptions, where)
    spans = {
        f"{name}_us": None if span is None else microseconds(span, setting=f"{where} {name}")
        for name, span in value.items()
    }
    return Retention(**spans)


def _scale(value: object, setting: str) -> ScaleRule:
    """When there should be more or fewer workers."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{setting} is {value!r}; give its settings by name, such as "
            '{"min_workers": 1, "max_workers": 4}'
        )
    chosen = chosen_options(value, ScaleOptions, setting)
    enabled = _flag(chosen.pop("enabled", True), f"{setting}: enabled")
    numbers = {name: count(number, f"{setting}: {name}") for name, number in chosen.items()}
    rule = ScaleRule(enabled=enabled, **numbers)
    try:
        check_scale(rule)
    except ConfigError as error:
        raise ConfigError(f"{setting.removesuffix('autoscale')}{error}") from None
    return rule


def _as_given(value: Any, setting: str) -> Any:  # noqa: ARG001 - its policy checks it
    return value


#: Each option, the setting it decides, and how its value is read.
_READERS: Final[Mapping[str, tuple[str, Reader]]] = MappingProxyType(
    {
        "priority": ("priority", count),
        "concurrency": ("concurrency", checked_concurrency),
        "rate_limit": ("rate", rate_rule),
        "tenant_rate_limit": ("tenant_rate", rate_rule),
        "max_depth": ("max_depth", _as_given),
        "max_bytes": ("max_bytes", size_in_bytes),
        "on_full": ("on_full", _as_given),
        "soft_depth": ("soft_depth", _as_given),
        "fair": ("fair", _flag),
        "weights": ("weights", _weights),
        "ageing": ("ageing_us", positive_microseconds),
        "on_dead": ("on_dead", _as_given),
        "dead_letter": ("dead_letter", name_text),
        "retry": ("retry", retry_rule),
        "retention": ("retention", _retention),
        "autoscale": ("autoscale", _scale),
        "background_only": ("background_only", _flag),
    }
)
#: The default of each setting.
_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {**msgspec.structs.asdict(QueueSettings("")), "fair": True}
)


def _read(chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    if is_per_tenant(chosen.get("rate_limit")):  # as contracts write it
        if chosen.get("tenant_rate_limit") is not None:
            raise ConfigError(
                f"{where}: rate_limit is {chosen['rate_limit']!r}, and tenant_rate_limit is given "
                "too; give the limit of each tenant once"
            )
        chosen = {**chosen, "tenant_rate_limit": chosen["rate_limit"]}
        del chosen["rate_limit"]
    return read_options(chosen, _READERS, f"{where}: ")
