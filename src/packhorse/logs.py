# SPDX-License-Identifier: MIT
"""Events to log records. Every log sentence of Packhorse lives here.

All go to the standard logger `packhorse`, with the event's fields as `extra`, so that any handler
can use them; `configure` sets up a console or JSON handler for programs that have none. Lines about
every job (started, completed, snoozed, ...) are INFO: where the logger is set above that, nobody
subscribes, and they cost nothing. Payloads and results are never logged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from packhorse import events
from packhorse.clock import Clock, moments
from packhorse.errors import ConfigError
from packhorse.events import Event, EventBus
from packhorse.log_lines import LineHandler
from packhorse.log_texts import event_fields, json_text, line_writer, sentence_writer
from packhorse.printable import printable

__all__ = [
    "LOGGER",
    "ConsoleFormatter",
    "EventRecord",
    "JsonFormatter",
    "LogFormat",
    "attach",
    "configure",
]

LOGGER: Final = "packhorse"
LogFormat = Literal["console", "json", "auto"]

#: The level and the sentence of each event; the fields in it are the event's own.
_SENTENCES: Final[Mapping[type[Event], tuple[int, str]]] = MappingProxyType(
    {
        events.WorkerStarted: (
            logging.INFO,
            "worker {worker_id} started: {concurrency} slots for {queues} on {store}",
        ),
        events.WorkerQuiet: (
            logging.INFO,
            "worker {worker_id} is quiet: it claims nothing more; {running} jobs are running",
        ),
        events.WorkerResumed: (logging.INFO, "worker {worker_id} claims jobs again"),
        events.WorkerStopping: (
            logging.INFO,
            "worker {worker_id} is stopping ({reason}); {running} jobs are running",
        ),
        events.WorkerStopped: (
            logging.INFO,
            "worker {worker_id} stopped: {processed} attempts done, {abandoned} abandoned",
        ),
        events.JobStarted: (logging.INFO, "{task} started, attempt {attempt}"),
        events.JobCompleted: (logging.INFO, "{task} completed in {duration_ms:.1f} ms"),
        events.JobFailed: (
            logging.INFO,
            "{task} failed in {duration_ms:.1f} ms: {error_type}: {error_message}",
        ),
        events.JobTimedOut: (
            logging.INFO,
            "{task} timed out after {duration_ms:.1f} ms: {error_message}",
        ),
        events.JobRetried: (
            logging.WARNING,
            (
                "{task} runs again in {delay_ms:.1f} ms, retry {retry} of {max_retries} after "
                "attempt {attempt} ({reason}): {error_type}: {error_message}"
            ),
        ),
        events.JobSnoozed: (logging.INFO, "{task} asked to wait {delay_ms:.1f} ms"),
        events.JobLimited: (
            logging.INFO,
            "{task} met a rate limit; jobs of its task and rate key wait {retry_after_ms:.1f} ms",
        ),
        events.JobDead: (
            logging.ERROR,
            "{task} is dead ({reason}) after attempt {attempt}: {error_type}: {error_message}",
        ),
        events.JobCancelling: (logging.INFO, "{task} is being cancelled"),
        events.JobCancelled: (logging.INFO, "{task} was cancelled after {duration_ms:.1f} ms"),
        events.JobReleased: (logging.INFO, "{task} was given back after {duration_ms:.1f} ms"),
        events.JobStale: (
            logging.WARNING,
            "{task} ended after it had been given to another worker; its outcome is dropped",
        ),
        events.JobAbandoned: (
            logging.ERROR,
            "{task} did not stop when told to; its slot is free, its code may still run",
        ),
        events.JobRescued: (
            logging.WARNING,
            "job {job_id} was lost with worker {lost_worker} (crash {crashes}) and taken from it",
        ),
        events.LeaseLost: (
            logging.ERROR,
            (
                "worker {worker_id} could not renew its lease; its {running} running jobs may be "
                "given to others, and are told so"
            ),
        ),
        events.LeaseRegained: (logging.WARNING, "worker {worker_id} has a lease again"),
        events.StoreTrouble: (
            logging.ERROR,
            (
                "the store failed at {operation} ({error_type}: {error_message}); trying again, "
                "nothing is lost"
            ),
        ),
        events.StoreRecovered: (logging.WARNING, "the store works again after {seconds:.1f} s"),
        events.TasksParked: (
            logging.WARNING,
            "no live worker knows {tasks}; these jobs are set aside: start a worker that has them",
        ),
        events.QueueConflict: (
            logging.WARNING,
            (
                "queue {queue} was declared as {before} before and is {now} now; "
                "declare it alike everywhere"
            ),
        ),
        events.TaskConflict: (
            logging.WARNING,
            (
                "the limits of task {task} were declared as {before} before and are {now} now; "
                "declare them alike everywhere"
            ),
        ),
        events.QueueFilling: (
            logging.WARNING,
            (
                "queue {queue} is filling: {depth} jobs wait, its soft depth is {soft_depth}; "
                "submit less, or add workers"
            ),
        ),
        events.JobsSpooled: (
            logging.WARNING,
            "the store is away: {jobs} jobs were kept in {path} and will be delivered",
        ),
        events.SpoolDelivered: (logging.INFO, "the store has taken {jobs} jobs from the spool"),
        events.SpoolRefused: (
            logging.ERROR,
            "the store refused spooled jobs {job_ids} ({reason}); they are set aside in {path}",
        ),
        events.QueueStarving: (
            logging.WARNING,
            (
                "queue {queue} is starving: a ready job has waited {waited_s:.0f} s while later "
                "ones of priority {priority} ran; add workers, or give the queue ageing="
            ),
        ),
        events.LoopBlocked: (
            logging.ERROR,
            (
                "the event loop has been blocked for {seconds:.1f} s while running {tasks}; "
                "make a blocking handler a plain def, so that it runs in a thread\n{stack}"
            ),
        ),
        events.ObserverFailed: (
            logging.ERROR,
            "{observer} failed at {event} ({error_type}: {error_message}); the job was not touched",
        ),
    }
)
#: How late JSON lines may be, to be written together.
_TOGETHER_S: Final = 0.1
#: What a plain log record holds; everything else on it was given as `extra`.
_RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName"),
}


def attach(
    bus: EventBus, logger: logging.Logger | None = None, *, clock: Clock | None = None
) -> Callable[[], None]:
    """Log what happens on a bus; returns what ends it.

    Only events whose level the logger lets through now are subscribed to.
    """
    target = logging.getLogger(LOGGER) if logger is None else logger
    now = moments(clock)
    ends = [
        bus.subscribe(kind, _observer(target, kind, level, sentence, now))
        for kind, (level, sentence) in _SENTENCES.items()
        if target.isEnabledFor(level)
    ]

    def detach() -> None:
        for end in ends:
            end()

    return detach


def _observer(
    target: logging.Logger,
    kind: type[Event],
    level: int,
    sentence: str,
    now: Callable[[], datetime],
) -> Callable[[Event], None]:
    """What logs one kind of event.

    Makes the record itself: the logger would look for the calling line, which is always this one,
    and that costs more than all the rest. Where nobody but our own handler would see the record,
    there is none, only the line.
    """
    blank = logging.LogRecord(target.name, level, __file__, 0, "", None, None).__dict__
    level_name = logging.getLevelName(level).lower()
    message_of = sentence_writer(kind, sentence)
    line_of = line_writer(kind, level=level_name, logger=target.name)

    def log_event(event: Event) -> None:
        if not target.isEnabledFor(level):
            return
        message, moment = message_of(event), now()
        handler = _only_handler(target)
        if handler is not None:
            handler.add(line_of(event, moment, message), level)
            return
        record = EventRecord.__new__(EventRecord)
        record.__dict__.update(blank)
        record.msg = message
        record.created = moment.timestamp()
        record.msecs = int(record.created % 1 * 1000) + 0.0
        record.fields = event_fields(event)
        record.__dict__.update(record.fields)
        target.handle(record)

    return log_event


def _only_handler(target: logging.Logger) -> LineHandler | None:
    """The handler that `configure` made, if no filter and no other handler sees the records."""
    if target.propagate or target.filters or len(target.handlers) != 1:
        return None
    handler = target.handlers[0]
    if type(handler) is not LineHandler or handler.filters or handler.level:
        return None
    return handler if type(handler.formatter) is JsonFormatter else None


class EventRecord(logging.LogRecord):
    """A record made from an event: its fields are on it like any `extra`, and together here."""

    fields: dict[str, Any]


def configure(
    level: str = "info", log_format: LogFormat = "auto", *, stream: TextIO | None = None
) -> logging.Handler:
    """Give the logger `packhorse` a handler of its own, as the command line does.

    `auto` is console on a terminal and JSON otherwise. A second call replaces the first.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(
            f"log level is {level!r}; give 'debug', 'info', 'warning', 'error' or 'critical'"
        )
    target = sys.stderr if stream is None else stream
    formatter = _formatter(log_format, target)
    # Programs read JSON lines; people, and whoever brings a stream, see each as it comes.
    together = stream is None and isinstance(formatter, JsonFormatter)
    handler = LineHandler(target, delay_s=_TOGETHER_S if together else 0.0)
    handler.setFormatter(formatter)
    logger = logging.getLogger(LOGGER)
    for other in list(logger.handlers):
        if isinstance(other.formatter, JsonFormatter | ConsoleFormatter):
            logger.removeHandler(other)
            other.flush()
    logger.addHandler(handler)
    logger.setLevel(number)
    logger.propagate = False
    return handler


def _formatter(log_format: LogFormat, stream: TextIO) -> logging.Formatter:
    if log_format == "auto":
        log_format = "console" if stream.isatty() else "json"
    if log_format == "console":
        return ConsoleFormatter()
    if log_format == "json":
        return JsonFormatter()
    raise ConfigError(f"log format is {log_format!r}; give 'console', 'json' or 'auto'")


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
    """A line for people: time, level, sentence, then the ids one would search for.

    Much of it was said by jobs and whoever submitted them: only a stack and a traceback may have
    lines of their own, and nothing gets through that a terminal would obey.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write the record."""
        extra = _extra(record)
        tail = " ".join(
            f"{name}={extra[name]}" for name in ("job_id", "worker_id") if extra.get(name)
        )
        moment = _time(record).astimezone().strftime("%H:%M:%S")
        stack = str(extra.get("stack", ""))
        message = record.getMessage().removesuffix(f"\n{stack}")
        line = f"{moment} {record.levelname:<7} {message}"
        lines = [f"{line}  {tail}" if tail else line]
        if stack and message != record.getMessage():
            lines += stack.rstrip("\n").split("\n")
        if exception := _exception(self, record):
            lines += exception.split("\n")
        return "\n".join(map(printable, lines))


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The traceback of a record; one that comes from another process brings its text."""
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return record.exc_text


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    if isinstance(record, EventRecord):
        return record.fields
    return {name: value for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
