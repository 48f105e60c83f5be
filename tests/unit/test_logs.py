# SPDX-License-Identifier: MIT
"""Events as log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from packhorse import logs
from packhorse.errors import ConfigError
from packhorse.events import (
    EVENTS,
    EventBus,
    JobCompleted,
    JobDead,
    JobRetried,
    JobStarted,
    LoopBlocked,
    ObserverFailed,
    WorkerStarted,
)
from packhorse.logs import attach, configure

ABOUT = {
    "job_id": "j-1",
    "worker_id": "w-1",
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
    logger = logging.getLogger(logs.LOGGER)
    before = logger.level, logger.propagate, list(logger.handlers)
    yield io.StringIO()
    logger.level, logger.propagate, logger.handlers = before
    logger.setLevel(before[0])


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.req("S4-19", "S4-22", "S0-30", "S3-32")
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
        "send runs again in 1500.0 ms, retry 2 of 3 after attempt 2 (exception:ValueError): "
        "ValueError: no luck"
    )
    assert (line["attempt"], line["retry"], line["error_code"]) == (2, 2, "EXCEPTION")


@pytest.mark.req("S4-17")
def test_a_dead_letter_is_an_error(bus: EventBus, stream: io.StringIO) -> None:
    configure("error", "json", stream=stream)
    attach(bus)

    bus.emit(JobDead(**ENDED, status="dead", reason="poison_message"))  # type: ignore[arg-type]

    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "send is dead (poison_message) after attempt 2" in str(line["message"])


def test_lines_that_are_switched_off_cost_nothing(bus: EventBus, stream: io.StringIO) -> None:
    configure("warning", "json", stream=stream)

    attach(bus)

    assert not bus.wants(JobStarted)
    assert not bus.wants(JobCompleted)
    assert bus.wants(JobRetried)
    assert bus.wants(ObserverFailed)


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
        WorkerStarted(worker_id="w-1", queues=("mail", "default"), concurrency=5, store="memory://")
    )
    bus.emit(JobStarted(**ABOUT))  # type: ignore[arg-type]

    first, second = stream.getvalue().splitlines()
    assert "INFO    worker w-1 started: 5 slots for mail, default on memory://" in first
    assert "send started, attempt 2  job_id=j-1 worker_id=w-1" in second


#: A line of its own, a colour, a bell, text that runs backwards.
NASTY = "a\nb\x1b[31mc\x07d\u202ee\rf\u2028g"
TAMED = "a b [31mc d e f g"


def test_what_jobs_say_neither_breaks_a_console_line_nor_reaches_the_terminal(
    bus: EventBus, stream: io.StringIO
) -> None:
    configure("info", "console", stream=stream)
    attach(bus)
    fields = {**ENDED, "job_id": NASTY, "task": NASTY, "error_message": NASTY}

    bus.emit(JobDead(**fields, status="dead", reason="rejected"))  # type: ignore[arg-type]
    logging.getLogger("packhorse.job").warning("seen %s", NASTY, extra={"job_id": NASTY})

    dead, seen = stream.getvalue().removesuffix("\n").split("\n")
    assert dead.endswith(f"attempt 2: ValueError: {TAMED}  job_id={TAMED} worker_id=w-1")
    assert f"{TAMED} is dead (rejected)" in dead
    assert seen.endswith(f"seen {TAMED}  job_id={TAMED}")
    assert all(line.isprintable() for line in (dead, seen))


def test_stacks_and_tracebacks_keep_their_lines_on_the_console_and_nothing_else(
    bus: EventBus, stream: io.StringIO
) -> None:
    configure("info", "console", stream=stream)
    attach(bus)
    stack = '  File "jobs.py", line 1, in slow\n    time.sleep(9)  # \x1b[31m\n'

    def fail() -> None:
        raise ValueError("no\x07 luck")

    bus.emit(LoopBlocked(worker_id="w-1", seconds=2.0, tasks=("slow\x1b",), stack=stack))
    try:
        fail()
    except ValueError:
        logging.getLogger("packhorse.job").exception("it\nfailed")

    blocked, place, code, failed, *trace = stream.getvalue().removesuffix("\n").split("\n")
    assert "while running slow ;" in blocked
    assert blocked.endswith("so that it runs in a thread  worker_id=w-1")
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
    assert set(logs._SENTENCES) == set(EVENTS.values())
