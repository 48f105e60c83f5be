# SPDX-License-Identifier: MIT
"""Jobs as people see them: a page of them, or one with all there is to know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.app import Packhorse
from packhorse.cli.documents import job_with_history, page_document
from packhorse.cli.render import (
    age,
    note,
    one_line,
    print_fields,
    print_json,
    print_table,
    print_text,
    span_ms,
)
from packhorse.clock import SECOND_US, SystemClock, from_datetime
from packhorse.errors import JobNotFound
from packhorse.info import JobInfo
from packhorse.insights import JobPage
from packhorse.job import AttemptError, JobRecord, Progress

__all__ = ["print_job", "print_page", "read_job"]

#: Characters of arguments and results shown to people; --json shows them whole.
_BODY_MAX: Final = 2_000
_INNER_CAPITAL: Final = re.compile(r"[A-Z]")


def print_page(page: JobPage, *, as_json: bool, none: str = "No jobs.") -> None:
    """Write a page of jobs to stdout; `none` is what to say of an empty one."""
    if as_json:
        print_json(page_document(page))
        return
    if not page.jobs:
        note(none)
        return
    now_us = SystemClock().now_us()
    print_table(
        ("ID", "TASK", "QUEUE", "STATUS", "ATTEMPTS", "AGE", "NOTE"),
        [
            (
                job.id,
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
    """One job, or `JobNotFound`."""
    record = app.store.run(app.store.inspection.job(job_id))
    if record is None:
        raise JobNotFound(job_id)
    return record


def print_job(app: Packhorse, record: JobRecord, *, as_json: bool) -> None:
    """Write all there is to know of a job to stdout."""
    history = app.store.run(app.store.inspection.history(record.id))
    document = job_with_history(record, history)
    if as_json:
        print_json(document)
        return
    lines: Sequence[dict[str, Any]] = document.pop("history")
    bodies = {name: document.pop(name) for name in ("payload", "result")}
    if record.progress is not None:
        document["progress"] = _progress(record.progress)
    document["error"] = _error(record.error)
    print_fields((_words(name), value) for name, value in document.items() if value is not False)
    for name, body in bodies.items():
        if body is not None or name == "payload":
            print_text(f"\n{name}\n{_cut(body)}")
    if lines:
        print_text("")
        print_table(
            ("ATTEMPT", "STATUS", "STARTED", "TOOK", "RETRIED", "ERROR"), map(_history_row, lines)
        )


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
    return f"{lines}\n… {left} characters more; see all with --json" if left > 0 else lines


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
