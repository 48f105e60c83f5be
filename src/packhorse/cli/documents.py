# SPDX-License-Identifier: MIT
"""What --json prints of each thing.

Names are camelCase and instants are wire datetimes, as in the worker protocol; spans are whole
milliseconds and say so in their names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from packhorse.cli.limits import limits_document
from packhorse.clock import from_datetime
from packhorse.explaining import Explanation
from packhorse.info import JobInfo, execution_results, job_info
from packhorse.insights import JobPage, QueueInfo, WorkerInfo
from packhorse.job import AttemptRecord, JobRecord
from packhorse.protocol import to_wire, wire_datetime
from packhorse.scaling import ScaleSignal

__all__ = [
    "explanation_document",
    "job_document",
    "job_with_history",
    "page_document",
    "queue_document",
    "scaling_document",
    "waited_document",
    "worker_document",
]


def page_document(page: JobPage) -> dict[str, Any]:
    """Some jobs, and where to go on."""
    return {"jobs": [job_document(job) for job in page.jobs], "after": page.after}


def job_document(job: JobInfo) -> dict[str, Any]:
    """One job, without its arguments."""
    document = _fields(job)
    timeout_s = document.pop("timeout")
    return {**document, "timeoutMs": None if timeout_s is None else round(timeout_s * 1000)}


def job_with_history(record: JobRecord, history: tuple[AttemptRecord, ...]) -> dict[str, Any]:
    """One job with its arguments, its result while that is kept, and every attempt."""
    return {
        **job_document(job_info(record)),
        "payload": _read(record.payload),
        "result": None if record.result is None else _read(record.result),
        "resultExpired": record.result_expired,
        "cancelRequested": record.cancel_requested,
        "history": [to_wire(line) for line in execution_results(record, history)],
    }


def queue_document(queue: QueueInfo) -> dict[str, Any]:
    """One queue."""
    document = _fields(queue)
    # These are told in milliseconds, as everything else.
    for name in ("oldestReadyS", "oldestReadySByPriority", "settings"):
        del document[name]
    return {**document, **waited_document(queue), "limits": limits_document(queue.settings)}


def waited_document(queue: QueueInfo) -> dict[str, Any]:
    """How long the longest-waiting ready job has waited, and that of each priority."""
    waited_s = queue.oldest_ready_s
    return {
        "oldestReadyMs": None if waited_s is None else round(waited_s * 1000),
        "oldestReadyMsByPriority": {
            priority: round(span_s * 1000)
            for priority, span_s in queue.oldest_ready_s_by_priority.items()
        },
    }


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Why a job is not running."""
    return _fields(explanation)


def scaling_document(signal: ScaleSignal) -> dict[str, Any]:
    """What a queue asks of workers."""
    return _fields(signal)


def worker_document(worker: WorkerInfo) -> dict[str, Any]:
    """One worker."""
    return _fields(worker)


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {_camel(name): _plain(getattr(value, name)) for name in value.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return wire_datetime(from_datetime(value))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _fields(value) if isinstance(value, msgspec.Struct) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read(text: bytes) -> Any:
    """JSON as the value it is; what is none, as text, since somebody wants to see it."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.decode(errors="replace")
