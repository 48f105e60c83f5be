# SPDX-License-Identifier: MIT
"""Events as log lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from itertools import chain

import pytest
from msgspec.structs import replace

from packhorse import RetryPolicy, logs
from packhorse.core.clock import new_id
from packhorse.core.outcome import FOREVER_US
from packhorse.errors import ConfigError
from packhorse.events import (
    EVENTS,
    EventBus,
    JobCompleted,
    JobDead,
    JobRetried,
    JobSnoozed,
    JobStarted,
    LoopBlocked,
    ObserverFailed,
    StoreTrouble,
    WorkerStarted,
)
from packhorse.logs import attach, configure, records
from tests.unit.app_support import memory_app

ABOUT = {
    "job_id": "j-1",
    "worker": "w-1",
    "tenant": "acme",
    "queue": "mail",
    "task": "send",
    "attempt": 2,
    "trace_id": "t-1",
    "span_id": "s-1",
}
ENDED = {
    **ABOUT,
    "duration_ms": 12.5,
    "error_code": "EXCEPTION",
    "error_type": "ValueError",
    "error_message": "no luck",
}
RETRIED = JobRetried(
    **ENDED,  # type: ignore[arg-type]
    status="failed",
    retry=2,
    max_retries=3,
    delay_ms=1500.0,
    reason="exception:ValueError",
)


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger(records.LOGGER)
    before = logger.level, logger.propagate, list(logger.handlers)
    yield io.StringIO()
    logger.level, logger.propagate, logger.handlers = before
    logger.setLevel(before[0])


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.req("S4-19", "S4-22", "S3-32")
def test_a_jobs_end_is_one_json_line_with_its_fields(bus: EventBus, stream: io.StringIO) -> None:
    configure("info", "json", stream=stream)
    attach(bus)

    bus.emit(JobCompleted(**ABOUT, duration_ms=12.5, status="completed"))  # type: ignore[arg-type]

    (line,) = lines(stream)
    assert line["event"] == "job.completed"
    assert line["level"] == "info"
    assert line["message"] == "send completed in 12.5 ms"
    assert str(line["time"]).endswith("Z")
    assert {**line, **ABOUT, "duration_ms": 12.5, "status": "completed"} == line
    assert "error_code" not in line


@pytest.mark.req("S4-18")
def test_a_retry_is_logged_with_its_attempt_count(bus: EventBus, stream: io.StringIO) -> None:
    configure("warning", "json", stream=stream)
    attach(bus)

    bus.emit(RETRIED)

    (line,) = lines(stream)
    assert line["level"] == "warning"
    assert line["message"] == (
        "send runs again in 1.5s, retry 2 of 3 after attempt 2 (exception:ValueError): "
        "ValueError: no luck"
    )
    assert (line["attempt"], line["retry"], line["error_code"]) == (2, 2, "EXCEPTION")


def test_a_crash_is_told_with_the_count_and_the_limit_of_crashes(
    bus: EventBus, stream: io.StringIO
) -> None:
    configure("warning", "json", stream=stream)
    attach(bus)

    bus.emit(replace(RETRIED, reason="worker_lost", lone_crashes=1, max_crashes=3))
    bus.emit(RETRIED)

    crashed, failed = lines(stream)
    assert str(crashed["message"]).startswith(
        "send runs again in 1.5s, crash 1 of 3 after attempt 2 (worker_lost): "
    )
    assert (crashed["lone_crashes"], crashed["max_crashes"]) == (1, 3)
    assert "max_crashes" not in failed


def test_a_crash_beside_other_jobs_is_no_retry_either(bus: EventBus, stream: io.StringIO) -> None:
    configure("warning", "json", stream=stream)
    attach(bus)

    bus.emit(replace(RETRIED, reason="worker_lost", lone_crashes=0, max_crashes=3))

    (line,) = lines(stream)
    assert str(line["message"]).startswith(
        "send runs again in 1.5s, crash 0 of 3 since it did not run alone, after attempt 2 "
        "(worker_lost): "
    )


@pytest.mark.parametrize(
    ("delay_ms", "fields", "sentence"),
    [
        (999.0, {}, "send asked to wait 999.0 ms"),
        (1_715.7, {}, "send asked to wait 1.72s"),
        (600_000.0, {}, "send asked to wait 10m"),
        (FOREVER_US / 1000, {}, "send waits for a signal"),
        (
            FOREVER_US / 1000,
            {"error_type": "NeedsHuman", "error_message": "may I?"},
            "send waits for a person to approve or decline: may I?",
        ),
    ],
)
def test_a_wait_is_told_with_what_ends_it(
    bus: EventBus, stream: io.StringIO, delay_ms: float, fields: dict[str, str], sentence: str
) -> None:
    configure("info", "json", stream=stream)
    attach(bus)

    bus.emit(JobSnoozed(**ABOUT, **fields, status="pending", delay_ms=delay_ms))  # type: ignore[arg-type]

    (line,) = lines(stream)
    assert (line["message"], line["delay_ms"]) == (sentence, delay_ms)


def test_a_dead_letter_is_an_error(bus: EventBus, stream: io.StringIO) -> None:
    configure("error", "json", stream=stream)
    attach(bus)

    bus.emit(JobDead(**ENDED, status="dead", reason="poison_message"))  # type: ignore[arg-type]

    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "send is dead (poison_message) after attempt 2" in str(line["message"])


STACK = 'Traceback (most recent call last):\n  File "shop.py", line 3, in f\nValueError: no\n'


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_about_a_dead_job_shows_where_it_failed(
    bus: EventBus, stream: io.StringIO, log_format: logs.LogFormat
) -> None:
    configure("error", log_format, stream=stream)
    attach(bus)

    bus.emit(JobDead(**ENDED, status="dead", reason="poison_message", error_stack=STACK))  # type: ignore[arg-type]

    if log_format == "json":
        assert str(lines(stream)[0]["exception"]).rstrip() == STACK.rstrip()
    else:
        assert stream.getvalue().endswith(STACK)


def test_a_record_about_a_dead_job_carries_the_exception_and_its_text(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    attach(bus)
    error = ValueError("no luck")

    bus.emit(RETRIED.carrying(error))
    bus.emit(
        JobDead(**ENDED, status="dead", reason="x", error_stack=STACK).carrying(error)  # type: ignore[arg-type]
    )

    first, second = caplog.records
    assert (first.exc_info, first.exc_text) == (None, None)
    assert second.exc_info == (ValueError, error, None)
    assert second.exc_text == STACK.rstrip()
    assert not hasattr(second, "exception")
    assert logging.Formatter().format(second).endswith(STACK.rstrip())


def test_a_record_for_handlers_of_others_names_its_job_and_its_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = memory_app()

    @app.task(retry=RetryPolicy(max_retries=0))
    def reserve() -> None:
        raise ValueError("no seat")

    job = reserve.enqueue()
    with caplog.at_level(logging.INFO, "packhorse"):
        app.run(burst=True)

    by_event = {vars(record)["event"]: record for record in caplog.records}
    dead, worker = by_event["job.dead"], by_event["worker.started"]
    assert dead.getMessage().endswith(f": ValueError: no seat  job={job.id}")
    assert dead.pathname == __file__
    assert dead.lineno == reserve.function.__code__.co_firstlineno
    assert (dead.filename, dead.module) == ("test_logs.py", "test_logs")
    assert worker.filename == "worker_runtime.py"
    assert worker.lineno > 0
    shown = logs.ConsoleFormatter().format(dead).split("\n")[0]
    assert shown.count("job=") == 1
    assert json.loads(logs.JsonFormatter().format(dead))["message"].endswith("no seat")


def test_what_a_job_says_reaches_no_handler_of_others_as_it_came(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    attach(bus)
    said = {**ENDED, "error_message": "bad\x1b[31m\nERROR forged"}

    bus.emit(
        JobDead(**said, status="dead", reason="x", error_stack="in send\nValueError: \x1b[31m")  # type: ignore[arg-type]
    )

    (record,) = caplog.records
    first, *stack = logging.Formatter().format(record).split("\n")
    assert first.endswith("ValueError: bad [31m ERROR forged  job=j-1")
    assert stack == ["in send", "ValueError:  [31m"]


def test_lines_that_are_switched_off_cost_nothing(bus: EventBus, stream: io.StringIO) -> None:
    configure("warning", "json", stream=stream)

    attach(bus)

    assert not bus.wants(JobStarted)
    assert not bus.wants(JobCompleted)
    assert bus.wants(JobRetried)
    assert bus.wants(ObserverFailed)


def test_workers_that_come_and_go_define_the_lines_of_events_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger("packhorse")
    attach(EventBus(), logger)()
    defined: list[str] = []
    monkeypatch.setattr("msgspec.defstruct", lambda name, *_, **__: defined.append(name))

    attach(EventBus(), logger)()

    assert defined == []


def test_logging_ends_when_it_is_told_to(bus: EventBus, stream: io.StringIO) -> None:
    configure("info", "json", stream=stream)
    end = attach(bus)

    end()
    bus.emit(RETRIED)

    assert stream.getvalue() == ""
    assert not bus.wants(JobRetried)


def test_a_console_line_is_for_people(bus: EventBus, stream: io.StringIO) -> None:
    configure("info", "console", stream=stream)
    attach(bus)

    bus.emit(
        WorkerStarted(worker="w-1", queues=("mail", "default"), concurrency=5, store="memory://")
    )
    bus.emit(JobStarted(**ABOUT))  # type: ignore[arg-type]

    first, second = stream.getvalue().splitlines()
    assert "INFO    worker w-1 started: serves mail, default on memory://, concurrency 5" in first
    assert first.endswith("concurrency 5")
    assert second.endswith("send started, attempt 2  job=j-1")


def test_a_console_line_carries_one_short_id(bus: EventBus, stream: io.StringIO) -> None:
    configure("info", "console", stream=stream)
    attach(bus)

    made, chosen = new_id(), "invoice-2026-000017-of-acme-and-sons"
    bus.emit(JobStarted(**{**ABOUT, "job_id": made}))  # type: ignore[arg-type]
    bus.emit(JobStarted(**{**ABOUT, "job_id": chosen}))  # type: ignore[arg-type]
    bus.emit(StoreTrouble(worker="w-1", operation="claim", error_type="E", error_message="x"))

    ends = [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()]
    assert ends == [f"job={made[-8:]}", f"job={chosen}", "worker=w-1"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_sees_colours_unless_it_must_not(
    bus: EventBus, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    configure("info", stream=terminal)
    attach(bus)

    bus.emit(JobStarted(**{**ABOUT, "task": NASTY}))  # type: ignore[arg-type]

    line = terminal.getvalue()
    assert ("\x1b[32mINFO   \x1b[0m" in line) is (not no_color)
    assert ("\x1b[2m  job=j-1\x1b[0m" in line) is (not no_color)
    assert f"{TAMED} started" in line


def test_no_sentence_counts_one_as_many() -> None:
    for sentence in chain(*(each.values() for each in records._SENTENCES.values())):
        assert not re.search(r"\} (jobs|attempts|slots|workers|tasks)\b", sentence)


#: A line of its own, a colour, a bell, text that runs backwards.
NASTY = "a\nb\x1b[31mc\x07d\u202ee\rf\u2028g"
TAMED = "a b [31mc d e f g"


def test_what_jobs_say_neither_breaks_a_console_line_nor_reaches_the_terminal(
    bus: EventBus, stream: io.StringIO
) -> None:
    configure("info", "console", stream=stream)
    attach(bus)
    fields = {**ENDED, "job_id": f"id{NASTY}", "task": NASTY, "error_message": NASTY}

    bus.emit(JobDead(**fields, status="dead", reason="rejected"))  # type: ignore[arg-type]
    logging.getLogger("packhorse.job").warning("seen %s", NASTY, extra={"job_id": f"id{NASTY}"})

    dead, seen = stream.getvalue().removesuffix("\n").split("\n")
    assert dead.endswith(f"attempt 2: ValueError: {TAMED}  job=id{TAMED}")
    assert f"{TAMED} is dead (rejected)" in dead
    assert seen.endswith(f"seen {TAMED}  job=id{TAMED}")
    assert all(line.isprintable() for line in (dead, seen))


def test_stacks_and_tracebacks_keep_their_lines_on_the_console_and_nothing_else(
    bus: EventBus, stream: io.StringIO
) -> None:
    configure("info", "console", stream=stream)
    attach(bus)
    stack = '  File "jobs.py", line 1, in slow\n    time.sleep(9)  # \x1b[31m\n'

    def fail() -> None:
        raise ValueError("no\x07 luck")

    bus.emit(LoopBlocked(worker="w-1", seconds=2.0, tasks=("slow\x1b",), stack=stack))
    try:
        fail()
    except ValueError:
        logging.getLogger("packhorse.job").exception("it\nfailed")

    blocked, place, code, failed, *trace = stream.getvalue().removesuffix("\n").split("\n")
    assert "while running slow ;" in blocked
    assert blocked.endswith("so that it runs in a thread  worker=w-1")
    assert (place, code) == (
        '  File "jobs.py", line 1, in slow',
        "    time.sleep(9)  #  [31m",
    )
    assert failed.endswith("it failed")
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: no  luck")
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))


def test_without_a_terminal_the_format_is_json(stream: io.StringIO) -> None:
    handler = configure("info", "auto", stream=stream)

    assert isinstance(handler.formatter, logs.JsonFormatter)


def test_configuring_twice_does_not_log_twice(bus: EventBus, stream: io.StringIO) -> None:
    configure("info", "json", stream=stream)
    configure("info", "json", stream=stream)
    attach(bus)

    bus.emit(RETRIED)

    assert len(lines(stream)) == 1


def test_exceptions_and_odd_values_fit_on_one_json_line(stream: io.StringIO) -> None:
    configure("info", "json", stream=stream)
    logger = logging.getLogger("packhorse.job")

    try:
        int("odd")
    except ValueError:
        logger.exception("line\nbreak", extra={"thing": object})

    (line,) = lines(stream)
    assert line["message"] == "line\nbreak"
    assert "ValueError: invalid literal" in str(line["exception"])


@pytest.mark.parametrize(("level", "log_format"), [("loud", "json"), ("info", "yaml")])
def test_a_level_or_format_that_is_not_known_is_refused(level: str, log_format: str) -> None:
    with pytest.raises(ConfigError, match=r"loud|yaml"):
        configure(level, log_format, stream=io.StringIO())  # type: ignore[arg-type]


def test_every_event_has_a_sentence() -> None:
    told = list(chain(*records._SENTENCES.values()))

    assert len(told) == len(set(told))
    assert set(told) == set(EVENTS.values())


def test_a_format_may_name_the_fields_of_a_job_where_there_is_none() -> None:
    record = logging.makeLogRecord({"msg": "starting", "amount": 0})

    assert logs.JobFields().filter(record)

    named = logging.Formatter("%(message)s|%(job_id)s|%(tenant)s|%(attempt)s").format(record)
    assert named == "starting|||"
    shown = json.loads(logs.JsonFormatter().format(record))
    assert set(shown) == {"time", "level", "logger", "message", "amount"}
