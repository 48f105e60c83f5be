# SPDX-License-Identifier: MIT
"""Turn events into log records. The log sentences about events are all here.

They go to the standard logger `packhorse`, with the event's fields as `extra`, so that any handler
can use them; `configure` sets up a console or JSON handler for programs that have none. Lines about
every job (started, completed, snoozed, ...) are INFO: if the logger's level is higher, no observer
is registered, and they cost nothing. Payloads and results are never logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from packhorse import events
from packhorse.core.clock import Clock, moments
from packhorse.core.outcome import FOREVER_US
from packhorse.core.text import counted, printable, printable_lines
from packhorse.errors import ConfigError
from packhorse.events import Event, EventBus, JobEvent
from packhorse.logs.formats import (
    ConsoleFormatter,
    EventRecord,
    JsonFormatter,
    event_fields,
    job_tail,
    line_writer,
    sentence_writer,
)
from packhorse.logs.lines import LineHandler, Lines, LineWriter, StreamLines

LOGGER: Final = "packhorse"
_FOREVER_MS: Final = FOREVER_US / 1_000
_WHY_DROPPED: Final = "what reads the log stands still or is slow, or this machine is overloaded"
LogFormat = Literal["console", "json", "auto"]

#: The sentence of each event, by level; the fields in it are the event's own.
_SENTENCES: Final[Mapping[int, Mapping[type[Event], str]]] = MappingProxyType(
    {
        logging.INFO: {
            events.WorkerStarted: (
                "worker {worker} started: serves {queues} on {store}, concurrency {concurrency}"
            ),
            events.WorkerQuiet: (
                "worker {worker} is quiet: it claims nothing more; still running: {running}"
            ),
            events.WorkerResumed: "worker {worker} claims jobs again",
            events.WorkerStopping: (
                "worker {worker} is stopping ({reason}); still running: {running}"
            ),
            events.WorkerStopped: (
                "worker {worker} stopped; attempts done: {processed}, abandoned: {abandoned}"
            ),
            events.JobStarted: "{task} started, attempt {attempt}",
            events.JobCompleted: "{task} completed in {duration_ms:ms}",
            events.JobFailed: "{task} failed in {duration_ms:ms}: {error_type}: {error_message}",
            events.JobTimedOut: "{task} timed out after {duration_ms:ms}: {error_message}",
            events.JobSnoozed: "{task} asked to wait {delay_ms:ms}",
            events.JobLimited: (
                "{task} met a rate limit; jobs of its task and rate key wait {retry_after_ms:ms}"
            ),
            events.JobCancelling: "{task} is being cancelled",
            events.JobCancelled: "{task} was cancelled after {duration_ms:ms}",
            events.JobReleased: "{task} was given back after {duration_ms:ms}",
            events.SpoolDelivered: "the store is back; jobs delivered from the spool: {jobs}",
            events.FlowRebuilt: "a flow gave way to a new one ({reason}; jobs: {jobs})",
            events.TickMissed: (
                "runs of {schedule} left out, since no worker looked when they were due: {missed}"
            ),
            events.CompletedBatch: "batch {batch} is completed: {total} items",
            events.CancelledBatch: "batch {batch} is cancelled",
            events.CompletedWorkflow: "workflow {workflow} is completed",
            events.CancelledWorkflow: "workflow {workflow} is cancelled",
        },
        logging.WARNING: {
            events.JobRetried: (
                "{task} runs again in {delay_ms:ms}, retry {retry} of {max_retries} after "
                "attempt {attempt} ({reason}): {error_type}: {error_message}"
            ),
            events.JobStale: (
                "{task} ended after it had been given to another worker; its outcome is dropped"
            ),
            events.JobRescued: (
                "job {job_id} was lost with worker {lost_worker} (crash {crashes}) and taken from "
                "it"
            ),
            events.LeaseRegained: "worker {worker} has a lease again",
            events.StoreRecovered: "the store works again after {seconds:.1f} s",
            events.TasksParked: (
                "no live worker knows {tasks}; these jobs are set aside: start a worker that has "
                "them"
            ),
            events.QueueConflict: (
                "queue {queue} was declared as {before} before and is {now} now; declare it alike "
                "everywhere"
            ),
            events.TaskConflict: (
                "the limits of task {task} were declared as {before} before and are {now} now; "
                "declare them alike everywhere"
            ),
            events.QueueFilling: (
                "queue {queue} is filling: waiting: {depth}, its soft depth: {soft_depth}; submit "
                "less, or add workers"
            ),
            events.JobsSpooled: (
                "the store is away; jobs kept in {path}, to be delivered later: {jobs}"
            ),
            events.QueueStarving: (
                "queue {queue} is starving: a ready job has waited {waited_s:.0f} s while later "
                "ones of priority {priority} ran; add workers, or give the queue ageing="
            ),
            events.ScheduleMissed: (
                "fires of schedule {schedule} were missed while no worker looked, and left out: "
                "{missed} (catch_up={catch_up})"
            ),
            events.ScheduleLate: (
                "schedule {schedule} fired {late_s:.0f} s late; see that a worker runs, and that "
                "the store is not overloaded"
            ),
            events.FlowTrouble: "{event} of node {node} in a flow {error_code} {error_type}",
            events.FailedBatch: (
                "batch {batch} has ended, and {failed} of its {total} items have failed"
            ),
            events.FailedWorkflow: (
                "workflow {workflow} has failed: {failed} of its {nodes} nodes did not complete"
            ),
        },
        logging.ERROR: {
            events.JobDead: (
                "{task} is dead ({reason}) after attempt {attempt}: {error_type}: {error_message}"
            ),
            events.JobAbandoned: (
                "{task} did not stop when told to; its slot is free, its code may still run: have "
                "it look at ctx.cancel_requested, or give it a longer timeout="
            ),
            events.LeaseLost: (
                "worker {worker} could not renew its lease; what it runs ({running}) may be given "
                "to others, and is told so"
            ),
            events.StoreTrouble: (
                "the store failed at {operation} ({error_type}: {error_message}); trying again, "
                "nothing is lost"
            ),
            events.SpoolRefused: (
                "the store refused spooled jobs {job_ids} ({reason}); they are set aside in {path}"
            ),
            events.ScheduleRefused: "the job of schedule {schedule} was not stored: {reason}",
            events.ScheduleStuck: (
                "schedule {schedule} does not fire, the others do; it is tried again: {reason}"
            ),
            events.LoopBlocked: (
                "the event loop has been blocked for {seconds:.1f} s while running {tasks}; make a "
                "blocking handler a plain def, so that it runs in a thread\n{stack}"
            ),
            events.ObserverFailed: (
                "{observer} failed at {event} ({error_type}: {error_message}); the job was not "
                "touched"
            ),
        },
        logging.DEBUG: {
            events.FlowEvent: "{event} of node {node} in a flow",
        },
    }
)

_CRASHED: Final = (
    "{task} runs again in {delay_ms:ms}, crash {lone_crashes} of {max_crashes} after attempt "
    "{attempt} ({reason}): {error_type}: {error_message}"
)
_CRASHED_BESIDE: Final = (
    "{task} runs again in {delay_ms:ms}, crash 0 of {max_crashes} since it did not run alone, "
    "after attempt {attempt} ({reason}): {error_type}: {error_message}"
)
_ASKED: Final = "{task} waits for a person to approve or decline: {error_message}"
#: Sentences that some events of a kind have instead; the first that applies.
_SPECIAL: Final[Mapping[type[Event], Sequence[tuple[Callable[[Any], bool], str]]]] = (
    MappingProxyType(
        {
            events.JobSnoozed: (
                (lambda event: event.error_type == "NeedsHuman", _ASKED),
                (lambda event: event.delay_ms >= _FOREVER_MS, "{task} waits for a signal"),
            ),
            events.JobRetried: (
                (lambda event: event.lone_crashes > 0, _CRASHED),
                (lambda event: event.max_crashes > 0, _CRASHED_BESIDE),
            ),
        }
    )
)


def attach(
    bus: EventBus, logger: logging.Logger | None = None, *, clock: Clock | None = None
) -> Callable[[], None]:
    """Log the events of a bus; return a function that ends it.

    Subscribes only to events whose level the logger lets through now.
    """
    target = logging.getLogger(LOGGER) if logger is None else logger
    target.disabled = False  # dictConfig disables loggers that it does not name
    now = moments(clock)
    ends = [
        bus.subscribe(kind, _observer(bus, target, kind, level, sentence, now=now))
        for level, sentences in _SENTENCES.items()
        if target.isEnabledFor(level)
        for kind, sentence in sentences.items()
    ]

    def detach() -> None:
        for end in ends:
            end()

    return detach


@contextlib.contextmanager
def attached(bus: EventBus) -> Iterator[None]:
    """Log the events of a bus while inside, unless the program does so itself."""
    detach = None if bus.wants(events.ObserverFailed) else attach(bus)
    try:
        yield
    finally:
        if detach is not None:
            detach()


def _observer(
    bus: EventBus,
    target: logging.Logger,
    kind: type[Event],
    level: int,
    sentence: str,
    *,
    now: Callable[[], datetime],
) -> Callable[[Event], None]:
    """Return the observer that logs one kind of event.

    It creates the record itself: the logger would search for the calling line, always this one, and
    that costs more than all the rest. If only our own handler would get the record, it writes just
    the line.
    """
    blank = logging.LogRecord(target.name, level, __file__, 0, "", None, None).__dict__
    level_name = logging.getLevelName(level).lower()
    message_of = _message_writer(kind, sentence)
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
        record.created = moment.timestamp()
        record.msecs = int(record.created % 1 * 1000) + 0.0
        record.fields = event_fields(event)
        record.__dict__.update(record.fields)
        _write(record, event, message)
        _locate(record, bus.place_of(event.task) if isinstance(event, JobEvent) else "")
        target.handle(record)

    return log_event


def _message_writer(kind: type[Event], sentence: str) -> Callable[[Event], str]:
    usual = sentence_writer(kind, sentence)
    special = [(applies, sentence_writer(kind, each)) for applies, each in _SPECIAL.get(kind, ())]

    def message_of(event: Event) -> str:
        for applies, write in special:
            if applies(event):
                return write(event)
        return usual(event)

    return message_of if special else usual


def _write(record: EventRecord, event: Event, message: str) -> None:
    """Set the texts of a record, without terminal control characters."""
    stack = getattr(event, "stack", "")
    record.msg = printable(message.removesuffix(f"\n{stack}"))
    if record.fields.get("job_id") and record.fields["job_id"] not in record.msg:
        record.msg += job_tail(record.fields)
    if stack:
        record.fields["stack"] = record.__dict__["stack"] = shown = printable_lines(stack)
        record.msg += f"\n{shown}"
    if error_stack := getattr(event, "error_stack", ""):
        # Formatters use this text; other handlers may want the exception itself.
        record.exc_text = printable_lines(error_stack.rstrip("\n"))
        if (error := event.exception) is not None:
            record.exc_info = (type(error), error, error.__traceback__)


def _locate(record: EventRecord, place: str) -> None:
    """Let a record name the function of its task, else the line that emitted the event."""
    path, _, line = place.rpartition(":")
    if line.isdigit():
        record.pathname, record.lineno = path, int(line)
    else:
        emitter = sys._getframe(3)  # noqa: SLF001 - behind `log_event` and `EventBus.emit`
        record.pathname, record.lineno = emitter.f_code.co_filename, emitter.f_lineno
    whole = PurePath(record.pathname)
    record.filename, record.module = whole.name, whole.stem


def _only_handler(target: logging.Logger) -> LineHandler | None:
    """Return the handler of `configure`, if no filter and no other handler gets the records."""
    if target.filters:
        return None
    logger = target
    while not logger.handlers and logger.propagate and logger.parent is not None:
        logger = logger.parent
    if len(logger.handlers) != 1 or (logger.propagate and logger.parent is not None):
        return None
    handler = logger.handlers[0]
    if type(handler) is not LineHandler or handler.filters or handler.level:
        return None
    return handler if type(handler.formatter) is JsonFormatter else None


def configure(
    level: str = "info",
    log_format: LogFormat = "auto",
    *,
    stream: TextIO | None = None,
    lines: Lines | None = None,
    whole: bool = False,
) -> LineHandler:
    """Give the logger `packhorse` its own handler; a second call replaces the first.

    `auto` is console on a terminal and JSON otherwise. `whole` sets up the root logger instead, as
    the command line does. `lines` receives the lines, by default stderr.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(
            f"log level is {level!r}; give 'debug', 'info', 'warning', 'error' or 'critical'"
        )
    formatter = _formatter(log_format, sys.stderr if stream is None else stream)
    handler = LineHandler(lines or _lines(stream, formatter))
    if lines is not None:
        handler.use_in_forks(_lines(stream, formatter))
    handler.setFormatter(formatter)
    own, root = logging.getLogger(LOGGER), logging.getLogger()
    for logger in (own, root):
        for other in [each for each in logger.handlers if isinstance(each, LineHandler)]:
            logger.removeHandler(other)
            other.flush()
    (root if whole else own).addHandler(handler)
    (root if whole else own).setLevel(number)
    own.propagate = whole
    return handler


def _lines(stream: TextIO | None, formatter: logging.Formatter) -> Lines:
    if stream is not None:
        return StreamLines(stream)

    def notice(dropped: int) -> bytes:
        record = logging.makeLogRecord(
            {
                "name": LOGGER,
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": f"{counted(dropped, 'log line')} left out: {_WHY_DROPPED}",
                "event": "log.dropped",
                "dropped": dropped,
            }
        )
        return formatter.format(record).encode() + b"\n"

    try:
        return LineWriter(sys.stderr.fileno(), notice)
    except (AttributeError, OSError, ValueError):  # no stderr, or one without a descriptor
        return StreamLines(sys.stderr)


def is_for_people(log_format: LogFormat) -> bool:
    """Whether this format on stderr is for people."""
    return isinstance(_formatter(log_format, sys.stderr), ConsoleFormatter)


def _formatter(log_format: LogFormat, stream: TextIO) -> logging.Formatter:
    if log_format == "auto":
        log_format = "console" if stream.isatty() else "json"
    if log_format == "console":
        return ConsoleFormatter(colored=stream.isatty() and not os.environ.get("NO_COLOR"))
    if log_format == "json":
        return JsonFormatter()
    raise ConfigError(f"log format is {log_format!r}; give 'console', 'json' or 'auto'")
