# SPDX-License-Identifier: MIT
"""Format events and log records: as JSON lines, as lines for people, as the fields of a record.

A worker may log two lines per job, so what depends only on the kind of an event is computed once,
and the rest is done in C.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from string import Formatter
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.context import JOB_FIELDS, job_fields
from packhorse.core.durations import span_text
from packhorse.core.text import printable, short_id
from packhorse.events import Event

#: Fields that are left out while they are empty.
_OPTIONAL: Final = frozenset(
    (
        *("tenant", "span_id", "upstream_request_id", "error_code", "error_type", "error_message"),
        *("error_stack", "lone_crashes", "max_crashes"),
    )
)
#: The fields of a record that no job logs.
_NO_JOB: Final = MappingProxyType(dict.fromkeys(JOB_FIELDS, ""))
#: Fields that may be lists; a sentence joins them with commas.
_LISTED: Final = frozenset(("queues", "tasks"))
#: In a sentence, the format of a field that is a span in milliseconds.
_SPAN: Final = "ms"
_SECOND_MS: Final = 1_000
_json: Final = msgspec.json.Encoder(enc_hook=str).encode


def json_text(value: object) -> str:
    """Encode a value as JSON; what JSON does not know becomes a text."""
    return _json(value).decode()


@cache
def sentence_writer(kind: type[Event], sentence: str) -> Callable[[Event], str]:
    """Return a function that fills the sentence of this kind of event."""
    if _LISTED.intersection(kind.__struct_fields__):
        return lambda event: sentence.format_map(_words(event))
    parts = list(Formatter().parse(sentence))
    names = [name for _, name, _, _ in parts if name]
    spans = [at for at, (_, name, spec, _) in enumerate(parts) if name and spec == _SPAN]
    write = "".join(
        literal if name is None else f"{literal}{{:{'' if spec == _SPAN else spec}}}"
        for literal, name, spec, _ in parts
    ).format
    # With one name attrgetter returns no tuple, so give the first one twice; `format` ignores it.
    values = attrgetter(*names, names[0])

    def write_spans(event: Event) -> str:
        given = list(values(event))
        for at in spans:
            given[at] = _span(given[at])
        return write(*given)

    return write_spans if spans else lambda event: write(*values(event))


def _span(span_ms: float) -> str:
    return f"{span_ms:.1f} ms" if span_ms < _SECOND_MS else span_text(span_ms * 1000)


@cache  # each worker of a test or burst asks again, and to define a struct takes 0.2 ms
def line_writer(
    kind: type[Event], *, level: str, logger: str
) -> Callable[[Event, datetime, str], bytes]:
    """Return a function that writes this kind of event as a JSON line."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    always = [name for name in known if name not in _OPTIONAL]
    filled = [name for name in known if name in _OPTIONAL]
    head = ("time", "level", "logger", "message", "event")
    # Optional fields are empty by default, and `omit_defaults` leaves them out then.
    line: Callable[..., msgspec.Struct] = msgspec.defstruct(
        kind.__name__,
        [
            *((name, Any) for name in head),
            *((_label(name), Any) for name in always),
            *((_label(name), Any, known[name].default) for name in filled),
        ],
        omit_defaults=True,
        gc=False,  # short-lived, and in no cycle
    )
    # With `name` there are at least two: for one attrgetter returns no tuple.
    values = attrgetter("name", *always, *filled)

    def write(event: Event, moment: datetime, message: str) -> bytes:
        return _json(line(moment, level, logger, message, *values(event)))

    return write


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event for a log record, which has its own place for the stack."""
    fields = msgspec.structs.asdict(event)
    fields.pop("error_stack", None)
    kept = {_label(name): fields[name] for name in fields if fields[name] or name not in _OPTIONAL}
    return {"event": event.name, **kept}


def _label(name: str) -> str:
    """Return the name of a field in a line, which must not clash with those of every record."""
    return {"event": "at_event", "error_stack": "exception"}.get(name, name)


def _words(event: Event) -> dict[str, Any]:
    """Return the fields as a sentence shows them."""
    return {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(event).items()
    }


#: Attributes of a plain log record; others were given as `extra`.
_RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName"),
}
#: Terminal colours of levels, and of less important parts.
_COLORS: Final[Mapping[int, str]] = MappingProxyType(
    {logging.INFO: "32", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
)
_FAINT: Final = "2"


class EventRecord(logging.LogRecord):
    """A record made from an event; `fields` has what is also set on it as `extra`.

    Its message ends with the id of its job, for formatters that do not show fields.
    """

    fields: dict[str, Any]


def job_tail(fields: Mapping[str, Any]) -> str:
    """Return the end of an event's message, which names its job."""
    return f"  job={fields['job_id']}" if fields.get("job_id") else ""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_extra(record),
        }
        if exception := _exception(self, record):
            line["exception"] = exception
        return json_text(line)


class ConsoleFormatter(logging.Formatter):
    """A line for people: time, level, sentence, then the shortened id of the job or worker.

    Its texts come from jobs and producers: only stacks and tracebacks may have several lines, and
    terminal control characters are removed.
    """

    def __init__(self, *, colored: bool = False) -> None:
        super().__init__()
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        extra = _extra(record)
        moment = _time(record).astimezone().strftime("%H:%M:%S")
        stack = str(extra.get("stack", ""))
        whole = _message(record)
        message = whole.removesuffix(f"\n{stack}")
        level = self._painted(f"{record.levelname:<7}", _COLORS.get(record.levelno, ""))
        tail = self._painted(printable(_subject(extra, message)), _FAINT)
        lines = [f"{moment} {level} {printable(message)}{tail}"]
        if stack and message != whole:
            lines += map(printable, stack.rstrip("\n").split("\n"))
        if exception := _exception(self, record):
            lines += map(printable, exception.split("\n"))
        return "\n".join(lines)

    def _painted(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._colored and color and text else text


class JobFields(logging.Filter):
    """Adds the fields of the running job to each record; for handlers of other libraries.

    Unknown fields are empty, so that a format string may name any of them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have."""
        for name, value in {**_NO_JOB, **job_fields()}.items():
            record.__dict__.setdefault(name, value)
        return True


def _message(record: logging.LogRecord) -> str:
    """Return a message without the job's id at its end, for which our formats have a place."""
    message = record.getMessage()
    tail = job_tail(record.fields) if isinstance(record, EventRecord) else ""
    return message.removesuffix(tail)


def _subject(extra: Mapping[str, Any], message: str) -> str:
    """Name the job of a line, else its worker, unless the sentence does."""
    for label, name in (("job", "job_id"), ("worker", "worker")):
        value = str(extra.get(name) or "")
        if value:
            return "" if value in message else f"  {label}={short_id(value)}"
    return ""


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """Return the traceback of a record; one from another process brings its text."""
    if record.exc_text:
        return record.exc_text
    return formatter.formatException(record.exc_info) if record.exc_info else None


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    if isinstance(record, EventRecord):
        return record.fields
    given = {
        name: value
        for name, value in record.__dict__.items()
        if name not in _RECORD_FIELDS and _NO_JOB.get(name) != value  # as `JobFields` left it
    }
    return job_fields() | given
