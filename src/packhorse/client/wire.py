# SPDX-License-Identifier: MIT
"""From the worker protocol to Packhorse's own words: tasks to jobs, configurations to settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec

from packhorse.client.declarations import QueueDeclaration
from packhorse.client.registry import TaskDefinition
from packhorse.client.submission import taken_keys, trace_id_of
from packhorse.core.clock import new_id
from packhorse.core.job import PRIORITY_BY_NAME, JobOptions, NewJob, RateRule, RetryRule
from packhorse.core.json_values import first_uncarried
from packhorse.core.options import name_text, text_tuple
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.errors import PayloadError
from packhorse.protocol import (
    UNSET,
    AutoScale,
    QueueConfig,
    RateLimit,
    Shape,
    Task,
    TaskMetadata,
    TaskRetryPolicy,
    UnsetType,
    WorkerConfig,
    check_settings,
    instant_us,
)
from packhorse.stores.requests import QueueSettings

__all__ = ["checked_config", "checked_task", "wire_job", "wire_queues"]

S = TypeVar("S", bound=Shape)

_MILLISECOND_US: Final = 1_000


def checked_task(value: Task | Mapping[str, Any] | str | bytes) -> Task:
    """A wire task, complete and free of contradictions, or an error that names the field."""
    return _checked(Task, value)


def checked_config(value: WorkerConfig | Mapping[str, Any] | str | bytes) -> WorkerConfig:
    """A wire worker configuration, complete and free of contradictions."""
    return _checked(WorkerConfig, value)


def wire_job(task: Task, definition: TaskDefinition | None) -> NewJob:
    """A wire task as it is stored, under the id it came with.

    Where the task is declared here its arguments are checked here; where it is not, its worker
    checks them. What the wire says of status, attempts and instants of change is the store's to
    say, so it is not taken over.
    """
    metadata = task.metadata or TaskMetadata()
    default_timeout_us = None if definition is None else definition.timeout_us
    payload = _payload(task, definition)
    return NewJob(
        id=name_text(task.id, "id"),
        task=task.type if definition is None else definition.name,
        payload=payload,
        queue=name_text(task.queue, "queue"),
        priority=PRIORITY_BY_NAME[task.priority],
        tags=text_tuple(metadata.tags or (), "metadata.tags"),
        scheduled_us=None if task.scheduled_at is UNSET else instant_us(task.scheduled_at),
        timeout_us=_microseconds(task.timeout_ms, default_timeout_us),
        options=_options(task, definition),
        trace_id=trace_id_of(new_id()),
        created_by=_optional(metadata.created_by, "metadata.createdBy"),
        **({} if definition is None else taken_keys(definition, payload)),
    )


def wire_queues(config: WorkerConfig, known: Collection[str] = ()) -> list[QueueDeclaration]:
    """What a configuration declares of its queues, those this worker does not serve too.

    A queue that is served without a configuration has the defaults of one, unless it is `known`:
    declared by other means.
    """
    configured = [_queue(queue, index) for index, queue in enumerate(config.queue_configs or ())]
    named = {declaration.settings.name for declaration in configured} | set(known)
    bare = (name for name in dict.fromkeys(config.queues) if name not in named)
    return configured + [_declared(QueueConfig(name=name), name) for name in bare]


def _checked(shape: type[S], value: object) -> S:
    checked = shape.parse(value)
    check_settings(checked)
    return checked


def _payload(task: Task, definition: TaskDefinition | None) -> bytes:
    if definition is not None:
        return definition.signature.encode_wire(task.payload)
    try:
        payload = msgspec.json.encode(task.payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the payload of task {task.id!r} cannot be written as JSON: {error}"
        raise PayloadError(message, field="payload") from error
    found = first_uncarried(task.payload, None)
    if found is not None:
        raise PayloadError(f"payload{found[0]} of task {task.id!r} {found[1]}", field="payload")
    return payload


def _options(task: Task, definition: TaskDefinition | None) -> JobOptions | None:
    max_crashes = None if definition is None else definition.max_crashes
    if task.retry_policy is UNSET and max_crashes is None:
        return None
    return JobOptions(retry=_rule(task.retry_policy), max_crashes=max_crashes)


def _rule(policy: TaskRetryPolicy | UnsetType) -> RetryRule | None:
    if isinstance(policy, UnsetType):
        return None
    return RetryRule(
        max_retries=policy.max_retries,
        backoff=str(policy.backoff_strategy),
        initial_us=policy.initial_delay_ms * _MILLISECOND_US,
        max_us=policy.max_delay_ms * _MILLISECOND_US,
        multiplier=float(policy.backoff_multiplier),
    )


def _queue(queue: QueueConfig, index: int) -> QueueDeclaration:
    where = f"queueConfigs[{index}] ({queue.name!r})"
    return _declared(queue, name_text(queue.name, f"{where}.name"))


def _declared(queue: QueueConfig, name: str) -> QueueDeclaration:
    """A queue's configuration as it is kept; its limits hold over all workers together."""
    settings = QueueSettings(
        name=name,
        priority=queue.priority,
        dead_letter=_optional(queue.dead_letter_queue, f"the dead-letter queue of {name!r}"),
        retry=_rule(queue.default_retry_policy),
        concurrency=queue.concurrency,
        rate=_rate(queue.rate_limit),
        fair=True,
        autoscale=_scale(queue.auto_scale),
    )
    return QueueDeclaration(settings)


def _optional(text: str | UnsetType | None, setting: str) -> str | None:
    return name_text(text, setting) if text else None


def _rate(limit: RateLimit | UnsetType) -> RateRule | None:
    if isinstance(limit, UnsetType):
        return None
    return RateRule(limit.max, limit.window_ms * _MILLISECOND_US)


def _scale(scale: AutoScale | UnsetType) -> ScaleRule | None:
    if isinstance(scale, UnsetType):
        return None
    return ScaleRule(
        enabled=scale.enabled,
        min_workers=scale.min_workers,
        max_workers=scale.max_workers,
        scale_up=scale.scale_up_threshold,
        scale_down=scale.scale_down_threshold,
    )


def _microseconds(milliseconds: int | UnsetType, default_us: int | None) -> int | None:
    if isinstance(milliseconds, UnsetType):
        return default_us
    return milliseconds * _MILLISECOND_US
