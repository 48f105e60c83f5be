# SPDX-License-Identifier: MIT
"""From the worker protocol to Packhorse's own words: tasks to jobs, configurations to settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, TypeVar

import msgspec

from packhorse.client.declarations import Declarations, QueueDeclaration
from packhorse.client.registry import DEFAULT_QUEUE, Registry, TaskDefinition
from packhorse.client.submission import idempotency_rule, taken_keys
from packhorse.core.clock import new_id, new_trace_id
from packhorse.core.job import PRIORITY_BY_NAME, JobOptions, NewJob, RateRule, RetryRule
from packhorse.core.json_values import first_uncarried
from packhorse.core.options import key_text, key_tuple, name_text, queue_text
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.core.text import text_of
from packhorse.errors import ContractError, PayloadError
from packhorse.protocol import (
    UNSET,
    AutoScale,
    QueueConfig,
    RateLimit,
    RequestConstraints,
    Shape,
    Task,
    TaskMetadata,
    TaskRetryPolicy,
    UnsetType,
    WorkerConfig,
    WorkerRequest,
    check_settings,
    instant_us,
)
from packhorse.stores.requests import QueueSettings

S = TypeVar("S", bound=Shape)

#: Plain data or JSON text.
WireData = Mapping[str, Any] | str | bytes

_MILLISECOND_US: Final = 1_000
_MILLISECONDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """What a request of the envelope says besides its task."""

    key: str | None = None
    trace_id: str | None = None


def checked(shape: type[S], value: object) -> S:
    """A wire shape, complete and free of contradictions, or an error that names the field."""
    read = shape.parse(value)
    check_settings(read)
    return read


def submitted_job(
    value: Task | WorkerRequest | WireData, registry: Registry, declarations: Declarations
) -> NewJob:
    """A wire task, or a request of the envelope, as it is stored."""
    if _is_request(value):
        task, origin = _request_task(value, registry)
    else:
        task, origin = checked(Task, value), RequestOrigin()
    return wire_job(task, registry.get(task.type), declarations, origin)


def _is_request(value: object) -> TypeGuard[WorkerRequest | WireData]:
    """Whether it is meant as a request of the envelope, and not as a `Task`."""
    if isinstance(value, WorkerRequest):
        return True
    if isinstance(value, str | bytes):
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            value = msgspec.json.decode(value)
    return isinstance(value, Mapping) and "worker_id" in value and "type" not in value


def _request_task(
    value: WorkerRequest | WireData, registry: Registry
) -> tuple[Task, RequestOrigin]:
    """A request of the envelope as a wire task, under a new id, and what only a request says."""
    request = WorkerRequest.parse(value)
    definition = registry.by_worker_id(request.worker_id)
    limits = request.constraints or RequestConstraints()
    timeout = limits.timeout_seconds
    if definition is not None and definition.bound is not None:
        definition.bound.check_constraints(
            limits.max_tokens or None,
            None if isinstance(limits.tools_allowed, UnsetType) else limits.tools_allowed,
        )
    task = Task(
        id=new_id(),
        type=request.worker_id if definition is None else definition.name,
        payload=_inputs(request, definition),
        queue=DEFAULT_QUEUE if definition is None else definition.queue,
        timeout_ms=UNSET if isinstance(timeout, UnsetType) else timeout * _MILLISECONDS,
    )
    trace = request.trace
    return checked(Task, task), RequestOrigin(
        key=None if isinstance(request.idempotency_key, UnsetType) else request.idempotency_key,
        trace_id=None if isinstance(trace, UnsetType) else trace.trace_id,
    )


def _inputs(request: WorkerRequest, definition: TaskDefinition | None) -> Any:
    """The inputs of a request as the task takes them now, if there is a way from its version."""
    if definition is None or definition.versions is None or not request.version:
        return request.inputs
    try:
        inputs = msgspec.json.encode(request.inputs)
        return msgspec.json.decode(definition.versions.upcast(request.version, inputs))
    except Exception as error:
        raise ContractError(
            f"worker {request.worker_id!r} cannot take a request of version {request.version!r}; "
            f"it takes {definition.version!r}: {text_of(error) or 'it is older than that'}"
        ) from error


def wire_job(
    task: Task,
    definition: TaskDefinition | None,
    declarations: Declarations,
    origin: RequestOrigin | None = None,
) -> NewJob:
    """A wire task as it is stored, under the id it came with.

    Where the task is declared here its arguments are checked here; where it is not, its worker
    checks them. What the wire says of status, attempts and instants of change is the store's to
    say, so it is not taken over.
    """
    metadata, origin = task.metadata or TaskMetadata(), origin or RequestOrigin()
    payload, queue = _payload(task, definition), queue_text(task.queue, "queue")
    chosen = _chosen(task, origin)
    if definition is not None and definition.bound is not None:
        definition.bound.complete(chosen, payload)
    default_timeout_us = None if definition is None else definition.timeout_us
    keys = {} if definition is None else _keys(definition, payload, queue, chosen, declarations)
    return NewJob(
        id=key_text(task.id, "id"),
        task=key_text(task.type, "type") if definition is None else definition.name,
        payload=payload,
        queue=queue,
        priority=PRIORITY_BY_NAME[task.priority],
        tags=key_tuple(metadata.tags or (), "metadata.tags"),
        scheduled_us=None if task.scheduled_at is UNSET else instant_us(task.scheduled_at),
        timeout_us=chosen.get("timeout_us", default_timeout_us),
        options=_options(chosen, definition),
        trace_id=key_text(origin.trace_id or new_trace_id(), "trace.trace_id"),
        created_by=_optional(metadata.created_by, "metadata.createdBy"),
        **keys,
    )


def _chosen(task: Task, origin: RequestOrigin) -> dict[str, Any]:
    """What a wire task decides for its job, by the names that calls have for it."""
    chosen: dict[str, Any] = {}
    if not isinstance(task.timeout_ms, UnsetType):
        chosen["timeout_us"] = task.timeout_ms * _MILLISECOND_US
    if not isinstance(task.retry_policy, UnsetType):
        chosen["retry"] = _rule(task.retry_policy)
    if origin.key is not None:
        chosen["idempotency_key"] = key_text(origin.key, "idempotency_key")
    return chosen


def _keys(
    definition: TaskDefinition,
    payload: bytes,
    queue: str,
    chosen: Mapping[str, Any],
    declarations: Declarations,
) -> dict[str, Any]:
    key = chosen.get("idempotency_key")
    rule = idempotency_rule(definition, payload, queue, declarations, key=key)
    keys = {**taken_keys(definition, payload), "idempotency": rule}
    return {**keys, "rate_key": chosen["rate_key"]} if "rate_key" in chosen else keys


def wire_queues(config: WorkerConfig, known: Collection[str] = ()) -> list[QueueDeclaration]:
    """What a configuration declares of its queues, those this worker does not serve too.

    A queue that is served without a configuration has the defaults of one, unless it is `known`:
    declared by other means.
    """
    configured = [_queue(queue, index) for index, queue in enumerate(config.queue_configs or ())]
    named = {declaration.settings.name for declaration in configured} | set(known)
    bare = (name for name in dict.fromkeys(config.queues) if name not in named)
    return configured + [_declared(QueueConfig(name=name), name) for name in bare]


def _payload(task: Task, definition: TaskDefinition | None) -> bytes:
    if definition is not None:
        return definition.encode_wire(task.payload)
    try:
        payload = msgspec.json.encode(task.payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the payload of task {task.id!r} cannot be written as JSON: {error}"
        raise PayloadError(message, field="payload") from error
    found = first_uncarried(task.payload, None)
    if found is not None:
        raise PayloadError(f"payload{found[0]} of task {task.id!r} {found[1]}", field="payload")
    return payload


def _options(chosen: Mapping[str, Any], definition: TaskDefinition | None) -> JobOptions | None:
    options = JobOptions(
        retry=chosen.get("retry"),
        max_crashes=None if definition is None else definition.max_crashes,
        idempotency_key=chosen.get("idempotency_key"),
        version=None if definition is None else definition.version,
    )
    return None if options == JobOptions() else options


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
    return _declared(queue, queue_text(queue.name, f"{where}.name"))


def _declared(queue: QueueConfig, name: str) -> QueueDeclaration:
    """A queue's configuration as it is kept; its limits hold over all workers together."""
    settings = QueueSettings(
        name=name,
        priority=queue.priority,
        dead_letter=_optional(
            queue.dead_letter_queue, f"the dead-letter queue of {name!r}", queue_text
        ),
        retry=_rule(queue.default_retry_policy),
        concurrency=queue.concurrency,
        rate=_rate(queue.rate_limit),
        fair=True,
        autoscale=_scale(queue.auto_scale),
    )
    return QueueDeclaration(settings)


def _optional(
    text: str | UnsetType | None, setting: str, read: Callable[[object, str], str] = name_text
) -> str | None:
    return read(text, setting) if text else None


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
