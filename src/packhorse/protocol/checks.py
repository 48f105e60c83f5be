# SPDX-License-Identifier: MIT
"""JSON Schemas of shapes, and settings that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UnsetType

from packhorse.errors import ConfigError
from packhorse.protocol.shapes import (
    AutoScale,
    QueueConfig,
    RateLimit,
    Shape,
    Task,
    TaskRetryPolicy,
    WorkerConfig,
)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# What a shape's `cross_check` refuses and its fields do not show, as far as JSON Schema can say it.
_CROSS_FIELD_RULES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {RateLimit.__name__: {"anyOf": [{"required": ["duration"]}, {"required": ["durationMs"]}]}}
)


def json_schema(shape: type[Shape | Enum]) -> dict[str, Any]:
    """Return the JSON Schema of what `parse(shape, …)` accepts.

    Fields with a default are not `required`. Patterns are ECMA regular expressions as the draft
    asks, where `$` is the very end.
    """
    _, definitions = msgspec.json.schema_components(
        [shape], schema_hook=_function_schema, ref_template="#/$defs/{name}"
    )
    for name, rule in _CROSS_FIELD_RULES.items():
        if name in definitions:
            definitions[name].update(deepcopy(dict(rule)))
    root = definitions.pop(shape.__name__)
    nested = {"$defs": definitions} if definitions else {}
    return {"$schema": _DIALECT, **root, **nested}


def _function_schema(_: type) -> dict[str, Any]:
    return {"not": {}, "description": "A Python function; it cannot come from JSON."}


def check_settings(value: Shape) -> None:
    """Raise ConfigError, naming the setting and the fix, if settings in `value` contradict."""
    problem = next(_problems(value, "$"), None)
    if problem is not None:
        raise ConfigError(problem)


def _problems(value: Shape | UnsetType, path: str) -> Iterator[str]:
    match value:
        case TaskRetryPolicy():
            yield from _retry_problems(value, path)
        case AutoScale():
            yield from _scaling_problems(value, path)
        case Task():
            yield from _problems(value.retry_policy, f"{path}.retryPolicy")
        case QueueConfig():
            yield from _problems(value.default_retry_policy, f"{path}.defaultRetryPolicy")
            yield from _problems(value.auto_scale, f"{path}.autoScale")
        case WorkerConfig():
            for index, queue in enumerate(value.queue_configs or ()):
                yield from _problems(queue, f"{path}.queueConfigs[{index}]")
        case _:
            return


def _retry_problems(policy: TaskRetryPolicy, path: str) -> Iterator[str]:
    if policy.initial_delay_ms > policy.max_delay_ms:
        yield (
            f"{path}.initialDelayMs is {policy.initial_delay_ms}, above {path}.maxDelayMs, "
            f"which is {policy.max_delay_ms}: lower initialDelayMs or raise maxDelayMs"
        )


def _scaling_problems(scale: AutoScale, path: str) -> Iterator[str]:
    if scale.min_workers > scale.max_workers:
        yield (
            f"{path}.minWorkers is {scale.min_workers}, above {path}.maxWorkers, which is "
            f"{scale.max_workers}: lower minWorkers or raise maxWorkers"
        )
    if scale.scale_down_threshold >= scale.scale_up_threshold:
        yield (
            f"{path}.scaleDownThreshold is {scale.scale_down_threshold}, not below "
            f"{path}.scaleUpThreshold, which is {scale.scale_up_threshold}: workers would be "
            "started and stopped at the same queue size; lower scaleDownThreshold or raise "
            "scaleUpThreshold"
        )
