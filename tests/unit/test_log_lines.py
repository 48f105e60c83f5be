# SPDX-License-Identifier: MIT
"""Lines that are written together: none is lost, none is late for long, warnings never are."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from packhorse import logs
from packhorse.events import EventBus, JobStarted
from packhorse.log_lines import LineHandler

LONG_S = 3600.0
STARTED = JobStarted(
    job_id="j-1", worker_id="w-1", queue="mail", task="send", attempt=1, trace_id="t-1"
)


class Stream(io.StringIO):
    """Says when it was written to, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        count = super().write(text)
        self.written.set()
        return count


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("packhorse.tests.lines")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def handler(stream: Stream, *, delay_s: float) -> LineHandler:
    made = LineHandler(stream, delay_s=delay_s)
    made.setFormatter(logs.JsonFormatter())
    return made


def messages(stream: Stream) -> list[str]:
    return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]


def test_lines_are_written_together_a_moment_later(logger: logging.Logger, stream: Stream) -> None:
    logger.addHandler(handler(stream, delay_s=0.05))

    logger.info("one")
    logger.info("two")

    assert stream.written.wait(10)
    assert messages(stream) == ["one", "two"]
    assert stream.writes == 1


def test_a_warning_is_written_at_once_behind_what_came_before(
    logger: logging.Logger, stream: Stream
) -> None:
    logger.addHandler(handler(stream, delay_s=LONG_S))

    logger.info("before")
    assert messages(stream) == []
    logger.warning("now")

    assert messages(stream) == ["before", "now"]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_the_end_of_the_program_loses_nothing(
    logger: logging.Logger, stream: Stream, end: str
) -> None:
    own = handler(stream, delay_s=LONG_S)
    logger.addHandler(own)
    logger.info("last words")

    getattr(own, end)()

    assert messages(stream) == ["last words"]


def test_a_closed_handler_keeps_nothing_back(logger: logging.Logger, stream: Stream) -> None:
    own = handler(stream, delay_s=LONG_S)
    logger.addHandler(own)
    own.close()

    logger.info("after all")

    assert messages(stream) == ["after all"]


def test_very_many_lines_do_not_wait(logger: logging.Logger, stream: Stream) -> None:
    logger.addHandler(handler(stream, delay_s=LONG_S))

    for number in range(2_500):
        logger.info("%d", number)

    assert len(messages(stream)) == 2_000


def test_a_stream_that_is_gone_hurts_nobody(logger: logging.Logger, stream: Stream) -> None:
    logger.addHandler(handler(stream, delay_s=0.0))
    stream.close()

    logger.error("nobody hears this")


def test_a_forked_child_does_not_write_its_parents_lines(
    logger: logging.Logger, stream: Stream
) -> None:
    own = handler(stream, delay_s=LONG_S)
    logger.addHandler(own)
    logger.info("the parent's")

    child = os.fork()
    if child == 0:
        logger.warning("the child's")
        os._exit(messages(stream) != ["the child's"])
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    own.flush()
    assert messages(stream) == ["the parent's"]


def test_an_event_reads_the_same_with_and_without_a_record(
    logger: logging.Logger, stream: Stream
) -> None:
    bus = EventBus()
    logs.attach(bus, logger)
    own = handler(stream, delay_s=0.0)
    logger.addHandler(own)

    bus.emit(STARTED)  # nobody else sees it: no record is made
    seen: list[str] = []
    own.addFilter(lambda record: not seen.append(record.getMessage()))  # type: ignore[func-returns-value]
    bus.emit(STARTED)

    short, long = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert seen == [short["message"]]
    assert list(short) == list(long)
    assert {**short, "time": ""} == {**long, "time": ""}
