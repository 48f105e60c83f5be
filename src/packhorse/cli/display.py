# SPDX-License-Identifier: MIT
"""Show jobs, queues and workers: as text, and as the documents that `--json` prints.

In documents names are camelCase and instants are wire datetimes, as in the worker protocol; spans
are whole milliseconds and say so in their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from packhorse.app import Packhorse
from packhorse.cli.output import (
    age,
    note,
    one_line,
    print_fields,
    print_json,
    print_table,
    print_text,
    span_ms,
)
from packhorse.cli.selection import whole_id
from packhorse.core.clock import SECOND_US, SystemClock, from_datetime
from packhorse.core.info import JobInfo, execution_results, has_attachments, job_info
from packhorse.core.job import AttemptError, AttemptRecord, JobRecord, Progress, RateRule
from packhorse.core.policies.attachments import Attachments
from packhorse.core.redaction import (
    Redact,
    redact_default,
    redacted,
    redacted_error,
    redacted_text,
)
from packhorse.core.sealing import is_sealed
from packhorse.core.text import printable_lines, short_id
from packhorse.errors import JobNotFound
from packhorse.insights import JobPage, QueueInfo, WorkerInfo
from packhorse.protocol import to_wire, wire_datetime
from packhorse.stores.requests import QueueSettings

__all__ = [
    "document_of",
    "job_with_history",
    "print_job",
    "print_page",
    "queue_document",
    "read_job",
    "waited_document",
    "worker_document",
]

_MILLISECOND_US: Final = 1_000
#: Characters of arguments and results shown to people; --json shows them whole.
_BODY_MAX: Final = 2_000
_INNER_CAPITAL: Final = re.compile(r"[A-Z]")


def print_page(page: JobPage, *, as_json: bool, redact: Redact, none: str = "No jobs.") -> None:
    """Write a page of jobs to stdout; `none` is written for an empty one."""
    page = msgspec.structs.replace(page, jobs=tuple([_shown(job, redact) for job in page.jobs]))
    if as_json:
        print_json({"jobs": [_job_document(job) for job in page.jobs], "after": page.after})
        return
    if not page.jobs:
        note(none)
        return
    now_us = SystemClock().now_us()
    print_table(
        ("ID", "TASK", "QUEUE", "STATUS", "ATTEMPTS", "AGE", "NOTE"),
        [
            (
                short_id(job.id),
                job.task,
                job.queue,
                job.status.value,
                job.attempts,
                age((now_us - from_datetime(job.created_at)) / SECOND_US),
                _remark(job),
            )
            for job in page.jobs
        ],
    )
    if page.after is not None:
        note(f"There are more: --after {page.after}")


def read_job(app: Packhorse, job_id: str) -> JobRecord:
    """Read a job by its id or a part of it."""
    record = app.store.run(app.store.inspection.job(whole_id(app.store, job_id)))
    if record is None:
        raise JobNotFound(job_id)
    return record


def print_job(app: Packhorse, record: JobRecord, *, as_json: bool, whole: bool = False) -> None:
    """Write everything known about a job to stdout; `whole`: its values as they are."""
    store, redact = app.store, _unchanged if whole else app.bus.redact
    record = _shown(record, redact)
    history = store.run(store.inspection.history(record.id))
    kept = None
    if has_attachments(record):
        kept = store.run(store.attachments.attachments(record.id))
    lines_shown = tuple([_shown_attempt(line, redact) for line in history])
    document = job_with_history(record, lines_shown, kept, redact)
    if as_json:
        print_json(document)
        return
    lines: Sequence[dict[str, Any]] = document.pop("history")
    steps: Sequence[dict[str, Any]] = document.pop("steps")
    decisions: Sequence[dict[str, Any]] = document.pop("approvals")
    document["tokensSpent"] = document["tokensSpent"] or False  # most jobs spend none
    bodies = {name: document.pop(name) for name in ("payload", "result")}
    if record.progress is not None:
        document["progress"] = _progress(record.progress)
    document["error"] = _error(record.error)
    print_fields((_words(name), value) for name, value in document.items() if value is not False)
    if record.error is not None and record.error.stack:
        print_text(f"\nstack\n{printable_lines(record.error.stack.rstrip())}")
    for name, body in bodies.items():
        if body is not None or name == "payload":
            print_text(f"\n{name}\n{_cut(body)}")
    if steps:
        print_text("")
        print_table(("STEP", "KIND", "STATE", "TOOK", "BYTES"), map(_step_row, steps))
    if decisions:
        print_text("")
        print_table(("DECISION", "BY", "AT", "NOTE"), map(_decision_row, decisions))
    if lines:
        print_text("")
        print_table(
            ("ATTEMPT", "STATUS", "STARTED", "TOOK", "RETRIED", "ERROR"), map(_history_row, lines)
        )


def _unchanged(value: Any) -> Any:
    return value


_Shown = TypeVar("_Shown", JobInfo, JobRecord)


def _shown(job: _Shown, redact: Redact) -> _Shown:
    """A job with what may be shown of its error and its progress."""
    error, progress = job.error, job.progress
    if error is not None:
        error = redacted_error(redact, error)
    if progress is not None and progress.note:
        note = redacted_text(redact, progress.note)
        progress = msgspec.structs.replace(progress, note=note)
    return msgspec.structs.replace(job, error=error, progress=progress)


def _shown_attempt(line: AttemptRecord, redact: Redact) -> AttemptRecord:
    if line.error is None:
        return line
    return msgspec.structs.replace(line, error=redacted_error(redact, line.error))


def _remark(job: JobInfo) -> str:
    if job.dead_reason is not None:
        return ": ".join(filter(None, (job.dead_reason.value, _error(job.error))))
    if job.error is not None:
        return _error(job.error)
    return "" if job.progress is None else _progress(job.progress)


def _error(error: AttemptError | None) -> str:
    return "" if error is None else f"{error.type}: {error.message}"


def _progress(progress: Progress) -> str:
    total = "" if progress.total is None else f"/{progress.total:g}"
    return f"{progress.done:g}{total} {progress.note}".strip()


def _words(name: str) -> str:
    return _INNER_CAPITAL.sub(lambda match: f" {match[0].lower()}", name)


def _cut(body: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
    lines = "\n".join(one_line(line) for line in text[:_BODY_MAX].splitlines())
    left = len(text) - _BODY_MAX
    return (
        f"{lines}\n… {left} characters more; see all with --json --show-values"
        if left > 0
        else lines
    )


def _step_row(step: dict[str, Any]) -> tuple[object, ...]:
    took = span_ms(step["duration"] * 1000)
    return (step["name"], step["kind"], step["state"].replace("_", " "), took, step["size"])


def _decision_row(decision: dict[str, Any]) -> tuple[object, ...]:
    word = "approved" if decision["approved"] else "declined"
    return (word, decision["by"], decision["at"], decision["note"])


def _history_row(line: dict[str, Any]) -> tuple[object, ...]:
    error = line.get("error")
    return (
        line["attempt"],
        line["status"],
        line["startedAt"],
        span_ms(line["durationMs"]),
        "yes" if line["willRetry"] else "no",
        "" if error is None else f"{error.get('code', '')} {error['message']}",
    )


def _job_document(job: JobInfo) -> dict[str, Any]:
    """Describe a job, without its arguments."""
    document = document_of(job)
    timeout_s = document.pop("timeout")
    return {**document, "timeoutMs": None if timeout_s is None else round(timeout_s * 1000)}


def job_with_history(
    record: JobRecord,
    history: tuple[AttemptRecord, ...],
    kept: Attachments | None = None,
    redact: Redact = redact_default,
) -> dict[str, Any]:
    """Describe a job with its arguments, its result while that is kept, and every attempt."""
    result = None if record.result is None else redacted(redact, _read(record.result))
    if record.result is not None:  # attempts have it too
        record = msgspec.structs.replace(record, result=msgspec.json.encode(result))
    return {
        **_job_document(job_info(record, kept)),
        "payload": redacted(redact, _read(record.payload)),
        "result": result,
        "resultExpired": record.result_expired,
        "cancelRequested": record.cancel_requested,
        "history": [to_wire(line) for line in execution_results(record, history)],
    }


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


def _limits_document(settings: QueueSettings) -> dict[str, Any]:
    """Describe a queue's limits; null is no limit."""
    ageing_us = settings.ageing_us
    return {
        "concurrency": settings.concurrency,
        "rateLimit": _rate_document(settings.rate),
        "tenantRateLimit": _rate_document(settings.tenant_rate),
        "maxDepth": settings.max_depth,
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
    return {_camel(name): _plain(getattr(value, name)) for name in value.__struct_fields__}


def worker_document(worker: WorkerInfo) -> dict[str, Any]:
    """Describe a worker."""
    names = [name for name in worker.__struct_fields__ if name != "stats"]
    own = {_camel(name): _plain(getattr(worker, name)) for name in names}
    return {**own, "stats": to_wire(worker.stats)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return wire_datetime(from_datetime(value))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return document_of(value) if isinstance(value, msgspec.Struct) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read(text: bytes) -> Any:
    """Decode JSON; return what is not JSON, or is encrypted, as text."""
    if is_sealed(text):
        return text.decode()
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.decode(errors="replace")
