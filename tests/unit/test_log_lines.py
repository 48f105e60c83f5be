# SPDX-License-Identifier: MIT
"""Log lines: logging never waits, drops are counted, and a killed process loses none."""

from __future__ import annotations

import io
import json
import logging
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from packhorse import logs
from packhorse.events import Event, EventBus, JobStarted, WorkerResumed
from packhorse.logs import lines as log_lines
from packhorse.logs.lines import (
    RING_SIZE,
    LineHandler,
    LineRing,
    Lines,
    LineWriter,
    StreamLines,
    follow,
)

LONG_S = 3600.0
PATIENCE_S = 10.0
STARTED = JobStarted(
    job_id="j-1", worker="w-1", queue="mail", task="send", attempt=1, trace_id="t-1"
)


class Pipe:
    """A pipe, and a writer of lines to it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.writer = LineWriter(self.writing, lambda dropped: f"{dropped} dropped\n".encode())
        self._heard = b""

    def line(self) -> str:
        """The next line; waits for it."""
        while b"\n" not in self._heard:
            self._heard += os.read(self.reading, 1 << 20)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the end of a program wait for its lines for as long as a busy machine needs."""
    monkeypatch.setattr(log_lines, "_LAST_S", PATIENCE_S)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reading)  # a thread that waits to write goes on
    made.writer.flush()
    os.close(made.writing)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("packhorse.tests.lines")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lines wait for others for as long as they may."""
    monkeypatch.setattr(log_lines, "_TOGETHER_S", LONG_S)


#: Twenty megabytes: more than a worker logs in a second, and than the buffers hold.
FAST_LINES: Final = 20_000


def put_fast(lines: Lines) -> None:
    """Log much faster than a worker does."""
    for number in range(FAST_LINES):
        lines.put(f"{number:0999}\n".encode())


def within(call: Callable[[], object]) -> None:
    """Call what may not wait; a hang fails the test instead of holding it up."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits"


@pytest.mark.usefixtures("patient")
def test_a_warning_is_written_at_once_behind_what_came_before(
    pipe: Pipe, logger: logging.Logger
) -> None:
    logger.addHandler(LineHandler(pipe.writer))

    logger.info("before")
    logger.warning("now")

    assert [pipe.line(), pipe.line()] == ["before", "now"]


def test_lines_come_a_moment_later_without_anything_else(pipe: Pipe) -> None:
    pipe.writer.put(b"one\n")
    pipe.writer.put(b"two\n")

    assert [pipe.line(), pipe.line()] == ["one", "two"]


@pytest.mark.usefixtures("patient")
def test_the_end_of_the_program_loses_nothing(pipe: Pipe) -> None:
    pipe.writer.put(b"last words\n")

    pipe.writer.flush()

    os.set_blocking(pipe.reading, False)
    assert pipe.line() == "last words"


def test_the_end_of_the_program_waits_for_lines_that_are_being_written(pipe: Pipe) -> None:
    pipe.writer.put(b"x" * 500_000 + b"\n", urgent=True)  # more than the pipe takes
    assert os.read(pipe.reading, 1) == b"x"  # the thread has taken the line

    flushing = threading.Thread(target=pipe.writer.flush, daemon=True)
    flushing.start()
    flushing.join(0.05)

    assert flushing.is_alive()
    assert len(pipe.line()) == 499_999
    within(flushing.join)


def test_a_pipe_that_is_not_read_makes_no_thread_wait_and_drops_are_told_once(pipe: Pipe) -> None:
    line = b"x" * 999 + b"\n"

    def put_many() -> None:
        for _ in range(3_000):
            pipe.writer.put(line, urgent=True)

    within(put_many)

    seen, notices, left_out = 0, 0, 0
    while seen + left_out < 3_000:  # some may have found room behind those that did not
        text = pipe.line()
        if text.endswith("dropped"):
            notices, left_out = notices + 1, left_out + int(text.split()[0])
        else:
            seen += 1
    assert (notices, left_out > 0) == (1, True)
    pipe.writer.put(b"after\n", urgent=True)
    assert pipe.line() == "after"


def test_a_reader_that_reads_gets_every_line_however_fast_they_come(pipe: Pipe) -> None:
    logging_thread = threading.Thread(target=put_fast, args=(pipe.writer,), daemon=True)
    logging_thread.start()

    assert [int(pipe.line()) for _ in range(FAST_LINES)] == list(range(FAST_LINES))
    within(logging_thread.join)


@pytest.mark.parametrize("put_first", [3_000, 20])
def test_a_warning_finds_room_where_other_lines_find_none(
    pipe: Pipe, memory: mmap.mmap, put_first: int
) -> None:
    """Whether it stands behind many short lines or a few long ones."""
    line = b"x" * (3_000_000 // put_first) + b"\n"
    pipe.writer.put(b"x" * 500_000 + b"\n", urgent=True)
    assert os.read(pipe.reading, 1) == b"x"  # the thread waits for who reads the rest
    ring = LineRing(memory, 0)

    for _ in range(put_first):
        pipe.writer.put(line)
        ring.put(line)
    for lines in (pipe.writer, ring):
        lines.put(b"the cause\n", urgent=True)

    text, dropped = LineRing(memory, 0).take()
    assert (text.endswith(b"\nthe cause\n"), dropped > 0) == (True, True)
    while pipe.line() != "the cause":
        pass


def test_a_reader_that_stands_still_is_waited_for_once(
    pipe: Pipe, memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(log_lines, "_pause", lambda: pauses.append(None))
    ring, line = LineRing(memory, 0), b"x" * 999 + b"\n"
    pipe.writer.put(b"x" * 500_000 + b"\n", urgent=True)
    assert os.read(pipe.reading, 1) == b"x"

    for lines in (pipe.writer, ring):
        pauses.clear()
        for _ in range(5_000):
            lines.put(line)
            lines.put(line, urgent=True)
        assert 0 < len(pauses) <= 2 * log_lines._LOOKS


def test_a_program_ends_though_nothing_reads_its_last_lines(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_LAST_S", 0.05)
    for _ in range(500):
        pipe.writer.put(b"x" * 999 + b"\n")

    within(pipe.writer.flush)


def test_a_descriptor_that_others_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)

    for number in range(500):
        pipe.writer.put(f"{number:0999}\n".encode(), urgent=True)

    assert [int(pipe.line()) for _ in range(500)] == list(range(500))


def test_a_stream_that_is_gone_hurts_no_caller(logger: logging.Logger) -> None:
    stream = io.StringIO()
    logger.addHandler(LineHandler(StreamLines(stream)))
    stream.close()

    logger.error("nothing hears this")


@pytest.mark.usefixtures("patient")
def test_a_forked_child_does_not_write_its_parents_lines(pipe: Pipe) -> None:
    pipe.writer.put(b"the parent's\n")

    child = os.fork()
    if child == 0:
        pipe.writer.put(b"the child's\n", urgent=True)
        pipe.writer.flush()
        os._exit(0)
    os.waitpid(child, 0)

    assert pipe.line() == "the child's"
    pipe.writer.flush()
    assert pipe.line() == "the parent's"


# ----------------------------------------------------------------------------------- shared memory


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, RING_SIZE)


def test_lines_pass_through_shared_memory_in_order_around_its_end(memory: mmap.mmap) -> None:
    child, parent = LineRing(memory, 0), LineRing(memory, 0)
    told, heard = b"", b""

    for number in range(9_000):
        line = f"{number:0{number % 900}}\n".encode()
        child.put(line)
        told += line
        if number % 700 == 0:
            heard += parent.take()[0]
    heard += parent.take()[0]

    assert heard == told
    assert len(told) > RING_SIZE


def test_a_line_that_finds_no_room_is_counted_and_no_other_is_harmed(memory: mmap.mmap) -> None:
    child, parent = LineRing(memory, 0), LineRing(memory, 0)
    line = b"x" * 999 + b"\n"

    for _ in range(3_000):
        child.put(line)
    text, dropped = parent.take()
    child.put(b"after\n")

    assert text == line * (3_000 - dropped)
    assert dropped > 0
    assert parent.take() == (b"after\n", 0)


def test_lines_of_a_process_that_was_killed_are_there(memory: mmap.mmap) -> None:
    child = os.fork()
    if child == 0:
        LineRing(memory, 0).put(b"last words\n")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    parent = LineRing(memory, 0)
    assert parent.last_message() == "last words"
    assert parent.take() == (b"last words\n", 0)


@pytest.mark.parametrize("line", [b"half way\n", b'{"level":"info","message":"half way"}\n'])
def test_what_the_last_line_says_is_known(memory: mmap.mmap, line: bytes) -> None:
    ring = LineRing(memory, 0)
    assert ring.last_message() == ""

    ring.put(b"first\n")
    ring.put(line)

    assert ring.last_message() == "half way"


def test_a_parent_writes_the_lines_of_its_processes_to_the_last(
    pipe: Pipe, memory: mmap.mmap
) -> None:
    root, ring = logging.getLogger(), LineRing(memory, 0)
    handler = LineHandler(pipe.writer)
    root.addHandler(handler)
    try:
        leave = follow(ring)
        ring.put(b"first\n")
        assert pipe.line() == "first"
        ring.put(b"last\n")
        leave()
        assert pipe.line() == "last"
    finally:
        root.removeHandler(handler)


def test_a_parent_writes_every_line_of_a_process_however_fast_they_come(
    pipe: Pipe, memory: mmap.mmap
) -> None:
    ring = LineRing(memory, 0)
    pipe.writer.follow(ring)

    child = os.fork()
    if child == 0:
        put_fast(LineRing(memory, 0))
        os._exit(0)

    assert [int(pipe.line()) for _ in range(FAST_LINES)] == list(range(FAST_LINES))
    os.waitpid(child, 0)
    pipe.writer.leave(ring)


def test_forked_children_of_a_process_with_shared_memory_write_elsewhere(
    pipe: Pipe, memory: mmap.mmap, logger: logging.Logger
) -> None:
    handler = LineHandler(LineRing(memory, 0))
    handler.use_in_forks(pipe.writer)
    logger.addHandler(handler)

    child = os.fork()
    if child == 0:
        logger.warning("the child's")
        handler.flush()
        os._exit(0)
    os.waitpid(child, 0)

    assert pipe.line() == "the child's"
    assert LineRing(memory, 0).take() == (b"", 0)


@pytest.mark.parametrize("event", [STARTED, WorkerResumed(worker="w-1")])
def test_an_event_reads_the_same_with_and_without_a_record(
    logger: logging.Logger, event: Event
) -> None:
    bus, stream = EventBus(), io.StringIO()
    logs.attach(bus, logger)
    own = LineHandler(StreamLines(stream))
    own.setFormatter(logs.JsonFormatter())
    logger.addHandler(own)

    bus.emit(event)  # no other subscriber sees it: no record is made
    seen: list[str] = []
    own.addFilter(lambda record: not seen.append(record.getMessage()))  # type: ignore[func-returns-value]
    bus.emit(event)

    short, long = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [text.removesuffix("  job=j-1") for text in seen] == [short["message"]]
    assert list(short) == list(long)
    assert {**short, "time": ""} == {**long, "time": ""}
