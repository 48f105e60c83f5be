# SPDX-License-Identifier: MIT
"""From the options of `app.queue(...)` and `app.set_limits(...)` to the settings a store keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.declarations import QueueDeclaration
from packhorse.durations import microseconds, positive_microseconds
from packhorse.errors import ConfigError
from packhorse.options import (
    LimitOptions,
    QueueOptions,
    RetentionOptions,
    ScaleOptions,
    chosen_options,
    count,
    name_text,
    rate_rule,
    retry_rule,
)
from packhorse.policies.autoscale import ScaleRule, check_scale
from packhorse.policies.concurrency import check_concurrency
from packhorse.policies.depth import check_depth
from packhorse.policies.fairness import check_fairness
from packhorse.policies.gates import check_on_dead
from packhorse.policies.retention import Retention
from packhorse.stores.requests import QueueSettings

__all__ = ["changed_settings", "checked_settings", "queue_declaration"]


def queue_declaration(name: object, options: Mapping[str, Any]) -> QueueDeclaration:
    """What was declared of a queue, checked; the message of a refusal names queue and option."""
    queue = name_text(name, "the name of a queue")
    where = f"queue {queue!r}"
    chosen = chosen_options(options, QueueOptions, where)
    wait = chosen.pop("wait_timeout", None)
    fields = {**_read(chosen, where), "name": queue}
    # One of the two orders a queue; whoever asks for the other need not switch this one off.
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
    )


def changed_settings(before: QueueSettings, options: Mapping[str, Any]) -> QueueSettings:
    """Settings with some limits changed; None takes a limit away."""
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
    """Settings whose parts do not contradict each other."""
    try:
        check_depth(
            max_depth=settings.max_depth, soft_depth=settings.soft_depth, on_full=settings.on_full
        )
        check_fairness(fair=settings.fair, weights=settings.weights, ageing_us=settings.ageing_us)
        check_on_dead(settings.on_dead)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return settings


Reader = Callable[[Any, str], Any]


def _concurrency(value: Any, setting: str) -> int:
    check_concurrency(value, setting=setting)
    return int(value)


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
        "concurrency": ("concurrency", _concurrency),
        "rate_limit": ("rate", rate_rule),
        "tenant_rate_limit": ("tenant_rate", rate_rule),
        "max_depth": ("max_depth", _as_given),
        "on_full": ("on_full", _as_given),
        "soft_depth": ("soft_depth", _as_given),
        "fair": ("fair", _flag),
        "weights": ("weights", _weights),
        "ageing": ("ageing_us", lambda value, at: positive_microseconds(value, setting=at)),
        "on_dead": ("on_dead", _as_given),
        "dead_letter": ("dead_letter", name_text),
        "retry": ("retry", retry_rule),
        "retention": ("retention", _retention),
        "autoscale": ("autoscale", _scale),
    }
)
#: What a setting is when nothing is said about it.
_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {**msgspec.structs.asdict(QueueSettings("")), "fair": True}
)


def _read(chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        _READERS[option][0]: _READERS[option][1](value, f"{where}: {option}")
        for option, value in chosen.items()
    }
