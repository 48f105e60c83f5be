# SPDX-License-Identifier: MIT
"""How events and log records read: as JSON lines, as lines for people, as the fields of a record.

A worker may log two lines for every job, so what depends on the kind of an event alone is worked
out once, and the rest is done in C.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from string import Formatter
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.context import JOB_FIELDS, job_fields
from packhorse.core.text import printable, short_id
from packhorse.events import Event

#: Fields that are left out while they are empty.
_OPTIONAL: Final = frozenset(
    (
        *("tenant", "span_id", "upstream_request_id", "error_code", "error_type", "error_message"),
        "error_stack",
    )
)
#: The fields of a job, where none is at work.
_NO_JOB: Final = MappingProxyType(dict.fromkeys(JOB_FIELDS, ""))
#: Fields that may be lists, which read otherwise in a sentence.
_LISTED: Final = frozenset(("queues", "tasks"))
_json: Final = msgspec.json.Encoder(enc_hook=str).encode


def json_text(value: object) -> str:
    """A value as JSON, whatever is in it."""
    return _json(value).decode()


def sentence_writer(kind: type[Event], sentence: str) -> Callable[[Event], str]:
    """What puts the fields of an event of this kind into its sentence."""
    if _LISTED.intersection(kind.__struct_fields__):
        return lambda event: sentence.format_map(_words(event))
    parts = list(Formatter().parse(sentence))
    names = [name for _, name, _, _ in parts if name]
    write = "".join(
        literal if name is None else f"{literal}{{:{spec}}}" for literal, name, spec, _ in parts
    ).format
    # Of two names or more: of one, its value would come alone. Who is not asked for is ignored.
    values = attrgetter(*names, names[0])
    return lambda event: write(*values(event))


def line_writer(
    kind: type[Event], *, level: str, logger: str
) -> Callable[[Event, datetime, str], bytes]:
    """What writes events of this kind, with a moment and a sentence, as JSON lines."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    always = [name for name in known if name not in _OPTIONAL]
    filled = [name for name in known if name in _OPTIONAL]
    head = ("time", "level", "logger", "message", "event")
    # Empty is what these are by default, and a struct that leaves out defaults leaves them out.
    line: Callable[..., msgspec.Struct] = msgspec.defstruct(
        kind.__name__,
        [
            *((name, Any) for name in head),
            *((_label(name), Any) for name in always),
            *((_label(name), Any, known[name].default) for name in filled),
        ],
        omit_defaults=True,
        gc=False,  # it lives for a moment, and holds nothing that could hold it
    )
    # With `name` there are two or more: of one alone, its value would come without a tuple.
    values = attrgetter("name", *always, *filled)

    def write(event: Event, moment: datetime, message: str) -> bytes:
        return _json(line(moment, level, logger, message, *values(event)))

    return write


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of an event as a log record carries them, which has a place for stacks."""
    fields = msgspec.structs.asdict(event)
    fields.pop("error_stack", None)
    kept = {_label(name): fields[name] for name in fields if fields[name] or name not in _OPTIONAL}
    return {"event": event.name, **kept}


def _label(name: str) -> str:
    """What a field is called in a line: an event about an event, a stack as in other records."""
    return {"event": "at_event", "error_stack": "exception"}.get(name, name)


def _words(event: Event) -> dict[str, Any]:
    """The fields as they read in a sentence."""
    return {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(event).items()
    }


#: What a plain log record holds; everything else on it was given as `extra`.
_RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName"),
}
#: How a terminal is told to show levels, and what matters less.
_COLORS: Final[Mapping[int, str]] = MappingProxyType(
    {logging.INFO: "32", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
)
_FAINT: Final = "2"


class EventRecord(logging.LogRecord):
    """A record made from an event: its fields are on it like any `extra`, and together here."""

    fields: dict[str, Any]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if exception := _exception(self, record):
            line["exception"] = exception
        return json_text(line)


class ConsoleFormatter(logging.Formatter):
    """A line for people: time, level, sentence, then the id one would search for, shortened.

    Much of it comes from jobs and producers: only a stack and a traceback may have
    lines of their own, and nothing gets through that a terminal would obey.
    """

    def __init__(self, *, colored: bool = False) -> None:
        super().__init__()
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        extra = _extra(record)
        moment = _time(record).astimezone().strftime("%H:%M:%S")
        stack = str(extra.get("stack", ""))
        message = record.getMessage().removesuffix(f"\n{stack}")
        level = self._painted(f"{record.levelname:<7}", _COLORS.get(record.levelno, ""))
        tail = self._painted(printable(_subject(extra, message)), _FAINT)
        lines = [f"{moment} {level} {printable(message)}{tail}"]
        if stack and message != record.getMessage():
            lines += map(printable, stack.rstrip("\n").split("\n"))
        if exception := _exception(self, record):
            lines += map(printable, exception.split("\n"))
        return "\n".join(lines)

    def _painted(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._colored and color and text else text


class JobFields(logging.Filter):
    """Puts the fields of the job whose code logs on each record; for handlers of others.

    Those that are not known are empty, so that a format may name any of them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what the record does not have."""
        for name, value in {**_NO_JOB, **job_fields()}.items():
            record.__dict__.setdefault(name, value)
        return True


def _subject(extra: Mapping[str, Any], message: str) -> str:
    """Which job a line is about, else which worker, unless its sentence says so."""
    for label, name in (("job", "job_id"), ("worker", "worker")):
        value = str(extra.get(name) or "")
        if value:
            return "" if value in message else f"  {label}={short_id(value)}"
    return ""


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The traceback of a record; one that comes from another process brings its text."""
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
