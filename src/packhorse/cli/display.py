# SPDX-License-Identifier: MIT
"""Show jobs, queues and workers: as text, and as the documents that `--json` prints.

In documents names are camelCase and instants are wire datetimes, as in the worker protocol; spans
are whole milliseconds and say so in their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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
    show_looks,
    span_ms,
)
from packhorse.cli.selection import whole_id
from packhorse.client.documents import document_of, job_document, shown_job
from packhorse.core.clock import SECOND_US, SystemClock, from_datetime
from packhorse.core.job import LOOK_MAX, AttemptError, AttemptRecord, JobRecord, Progress
from packhorse.core.job_info import JobInfo, execution_results, has_attachments, job_info
from packhorse.core.job_logs import LogLine
from packhorse.core.policies.attachments import Attachments
from packhorse.core.redaction import Redact, redact_default, redacted, redacted_error, redacted_text
from packhorse.core.sealing import is_sealed
from packhorse.core.text import printable_lines, short_id
from packhorse.errors import JobNotFound
from packhorse.insights import JobPage
from packhorse.protocol import to_wire
from packhorse.stores.requests import JobFilter

#: Characters of arguments and results shown to people; --json shows them whole.
_BODY_MAX: Final = 2_000
_INNER_CAPITAL: Final = re.compile(r"[A-Z]")


def _whole_page(app: Packhorse, chosen: JobFilter, limit: int, after: str | None) -> JobPage:
    """Search until the page is full or there are no more jobs; show a terminal how far it is."""
    jobs: list[JobInfo] = []
    looked = 0
    while True:
        page = app.insights.jobs(chosen, limit=limit - len(jobs), after=after, most=LOOK_MAX)
        jobs += page.jobs
        if page.stopped_after is None:
            show_looks(looked, len(jobs), ended=True)
            return JobPage(tuple(jobs), page.after)
        after, looked = page.after, looked + page.stopped_after
        show_looks(looked, len(jobs))


def print_page(
    app: Packhorse,
    chosen: JobFilter,
    limit: int,
    after: str | None,
    *,
    as_json: bool,
    none: str = "No jobs.",
) -> None:
    """Write a page of jobs to stdout; write `none` to stderr for an empty one."""
    page = _whole_page(app, chosen, limit, after)
    jobs = [shown_job(job, app.bus.redact) for job in page.jobs]
    if as_json:
        print_json({"jobs": [job_document(job) for job in jobs], "after": page.after})
        return
    if not jobs:
        note(none)
        return
    now_us = SystemClock().now_us()
    print_table(
        ("ID", "TASK", "QUEUE", "STATUS", "ATTEMPTS", "AGE", "NOTE"),
        [
            (
                *(short_id(job.id), job.task, job.queue, job.status.value, job.attempts),
                age((now_us - from_datetime(job.created_at)) / SECOND_US),
                _remark(job),
            )
            for job in jobs
        ],
    )
    if page.after is not None:
        note(f"There are more: --after {page.after}")


def print_logs(lines: Sequence[LogLine], *, as_json: bool, redact: Redact) -> None:
    """Write what a job's handler logged to stdout: a line each, and the lines of a traceback."""
    shown = [
        msgspec.structs.replace(line, message=redacted_text(redact, line.message)) for line in lines
    ]
    if as_json:
        print_json({"lines": [document_of(line) for line in shown]})
        return
    if not shown:
        note("No lines are kept.")
    for line in shown:
        at = line.at.astimezone().strftime("%H:%M:%S")
        head = f"{at} {line.attempt} {line.level:<7} {one_line(line.logger)}: "
        print_text(head + printable_lines(line.message).replace("\n", "\n  "))


def read_job(app: Packhorse, job_id: str) -> JobRecord:
    """Read a job by its id or a part of it."""
    record = app.store.run(app.store.inspection.job(whole_id(app.store, job_id)))
    if record is None:
        raise JobNotFound(job_id)
    return record


def print_job(app: Packhorse, record: JobRecord, *, as_json: bool, whole: bool = False) -> None:
    """Write everything known about a job to stdout; `whole`: its values as they are."""
    store, redact = app.store, _unchanged if whole else app.bus.redact
    record = shown_job(record, redact)
    history = store.run(store.inspection.history(record.id))
    kept = None
    if has_attachments(record):
        kept = store.run(store.attachments.attachments(record.id))
    lines_shown = tuple([_shown_attempt(line, redact) for line in history])
    document = job_with_history(record, lines_shown, kept, redact)
    document["artifacts"] = [each.wire() for each in app.job(record.id).artifacts()]
    if as_json:
        print_json(document)
        return
    lines: Sequence[dict[str, Any]] = document.pop("history")
    steps: Sequence[dict[str, Any]] = document.pop("steps")
    artifacts: Sequence[dict[str, Any]] = document.pop("artifacts")
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
    _print_rows(("STEP", "KIND", "STATE", "TOOK", "BYTES"), map(_step_row, steps))
    _print_rows(("ARTIFACT", "BYTES", "DIGEST", "URL"), map(_artifact_row, artifacts))
    _print_rows(("DECISION", "BY", "AT", "NOTE"), map(_decision_row, decisions))
    titles = ("ATTEMPT", "STATUS", "STARTED", "TOOK", "RETRIED", "ERROR")
    _print_rows(titles, map(_history_row, lines))


def _print_rows(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table after an empty line, unless it has no rows."""
    if found := list(rows):
        print_text("")
        print_table(titles, found)


def _artifact_row(artifact: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(artifact[name] for name in ("name", "size", "digest", "url"))


def _unchanged(value: Any) -> Any:
    return value


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
        **job_document(job_info(record, kept)),
        "payload": redacted(redact, _read(record.payload)),
        "result": result,
        "resultExpired": record.result_expired,
        "cancelRequested": record.cancel_requested,
        "history": [to_wire(line) for line in execution_results(record, history)],
    }


def _read(text: bytes) -> Any:
    """Decode JSON; return what is not JSON, or is encrypted, as text."""
    if is_sealed(text):
        return text.decode()
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.decode(errors="replace")
