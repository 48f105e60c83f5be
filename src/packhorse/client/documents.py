# SPDX-License-Identifier: MIT
"""Jobs, queues and workers as plain data: what `--json` prints, and what the web API answers.

Names are camelCase and instants are wire datetimes, as in the worker protocol; spans are whole
milliseconds and say so in their names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from packhorse.core.clock import from_datetime
from packhorse.core.job import JobRecord, RateRule
from packhorse.core.job_info import JobInfo
from packhorse.core.redaction import Redact, redacted_error, redacted_text
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.protocol import to_wire, wire_datetime
from packhorse.stores.requests import QueueSettings

_MILLISECOND_US: Final = 1_000

_Shown = TypeVar("_Shown", JobInfo, JobRecord)


def shown_job(job: _Shown, redact: Redact) -> _Shown:
    """A job with what may be shown of its error and its progress."""
    error, progress = job.error, job.progress
    if error is not None:
        error = redacted_error(redact, error)
    if progress is not None and progress.note:
        note = redacted_text(redact, progress.note)
        progress = msgspec.structs.replace(progress, note=note)
    return msgspec.structs.replace(job, error=error, progress=progress)


def job_document(job: JobInfo) -> dict[str, Any]:
    """Describe a job, without its arguments."""
    document = document_of(job)
    timeout_s = document.pop("timeout")
    return {**document, "timeoutMs": None if timeout_s is None else round(timeout_s * 1000)}


def queue_document(queue: QueueInfo) -> dict[str, Any]:
    """Describe a queue."""
    document = document_of(queue)
    # Given in milliseconds below.
    for name in ("oldestReadyS", "oldestReadySByPriority", "settings"):
        del document[name]
    return {**document, **waited_document(queue), "limits": _limits_document(queue.settings)}


def waited_document(queue: QueueInfo) -> dict[str, Any]:
    """Say how long the longest-waiting ready job has waited, in all and per priority."""
    waited_s = queue.oldest_ready_s
    return {
        "oldestReadyMs": None if waited_s is None else round(waited_s * 1000),
        "oldestReadyMsByPriority": {
            priority: round(span_s * 1000)
            for priority, span_s in queue.oldest_ready_s_by_priority.items()
        },
    }


def bytes_document(held: tuple[int, int] | None) -> dict[str, Any]:
    """Describe how full a store is; nothing of one that is not bounded by bytes."""
    return {} if held is None else {"storeBytes": {"held": held[0], "max": held[1]}}


def _limits_document(settings: QueueSettings) -> dict[str, Any]:
    """Describe a queue's limits; null is no limit."""
    ageing_us = settings.ageing_us
    return {
        "concurrency": settings.concurrency,
        "rateLimit": _rate_document(settings.rate),
        "tenantRateLimit": _rate_document(settings.tenant_rate),
        "maxDepth": settings.max_depth,
        "maxBytes": settings.max_bytes,
        "onFull": settings.on_full,
        "softDepth": settings.soft_depth,
        "fair": settings.fair,
        "weights": settings.weights,
        "ageingMs": None if ageing_us is None else ageing_us // _MILLISECOND_US,
        "onDead": settings.on_dead,
    }


def _rate_document(rule: RateRule | None) -> dict[str, int] | None:
    if rule is None:
        return None
    return {"max": rule.max, "windowMs": rule.window_us // _MILLISECOND_US}


def document_of(value: msgspec.Struct) -> dict[str, Any]:
    """Describe a struct by all its fields."""
    return {camel(name): _plain(getattr(value, name)) for name in value.__struct_fields__}


def worker_document(worker: WorkerInfo) -> dict[str, Any]:
    """Describe a worker."""
    names = [name for name in worker.__struct_fields__ if name != "stats"]
    own = {camel(name): _plain(getattr(worker, name)) for name in names}
    return {**own, "stats": to_wire(worker.stats)}


def _plain(value: Any) -> Any:
    if value is msgspec.UNSET:  # the wire leaves it out; a document has all fields
        return None
    if isinstance(value, datetime):
        return wire_datetime(from_datetime(value))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return document_of(value) if isinstance(value, msgspec.Struct) else value


def camel(name: str) -> str:
    """Write a name as documents do."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
