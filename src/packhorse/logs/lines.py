# SPDX-License-Identifier: MIT
"""Write log lines out of the process without blocking jobs.

    record ─▶ LineHandler ─▶ LineWriter ─thread─▶ a descriptor      this process writes itself
                          ─▶ LineRing ─▶ its parent's LineWriter    a process under a supervisor

One write per line costs a worker more than the job it is about, and blocks it while a pipe is full.
So a thread writes many lines together, a moment later. If the buffer is full, `put` waits a moment
for that thread. If this is in vain, the line is dropped and counted, and until the thread has gone
on no other line waits. The count is written once there is room again.

A ring is memory that a process shares with its parent. Once `put` returns a line is in it, and
survives the process that wrote it. One process writes and one reads.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import struct
import threading
from collections.abc import Callable
from typing import Final, Protocol, TextIO

import msgspec

from packhorse.core.interpreter import at_fork

#: Bytes that are buffered; the last ones are kept for warnings and errors.
_BYTES_MAX: Final = 1 << 21
_FOR_ALL: Final = _BYTES_MAX - (1 << 18)
#: How long to collect lines before writing them together, unless a quarter of the buffer is full.
_TOGETHER_S: Final = 0.1
_EARLY_BYTES: Final = _BYTES_MAX // 4
#: The shortest time between two looks at a ring that fills fast.
_LOOK_S_MIN: Final = 0.005
#: A line that finds no room waits for so many looks of so long: for a quarter of a second.
_LOOKS: Final = 250
_LOOK_S: Final = 0.001
#: How long a program waits at its end for its last lines to be written.
_LAST_S: Final = 1.0


class Lines(Protocol):
    """A destination of lines."""

    def put(self, line: bytes, *, urgent: bool = False) -> None:
        """Accept a line, or drop it; there is room for an urgent one longer."""
        ...

    def flush(self) -> None:
        """Write what was accepted, within a bounded time."""
        ...


class LineHandler(logging.Handler):
    """Passes each record on as a line."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.lines = lines
        self._in_forks = lines
        at_fork(self._forked)

    def use_in_forks(self, lines: Lines) -> None:
        """Set another destination for forked children."""
        self._in_forks = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and pass it on."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
        else:
            self.add(line.encode(errors="backslashreplace"), record.levelno)

    def add(self, line: bytes, level: int) -> None:
        """Pass on a line that has no record."""
        self.lines.put(line + b"\n", urgent=level >= logging.WARNING)

    def flush(self) -> None:
        """Write everything; `logging` calls this when the program ends."""
        self.lines.flush()

    def _forked(self) -> None:
        self.lines = self._in_forks


def _pause() -> None:
    select.select([], [], [], _LOOK_S)


def follow(ring: LineRing) -> Callable[[], None]:
    """Write the lines of another process like those of this one; return what ends it."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, LineHandler)]
    writers = [each.lines for each in handlers if isinstance(each.lines, LineWriter)]
    for writer in writers:
        writer.follow(ring)

    def leave() -> None:
        for writer in writers:
            writer.leave(ring)

    return leave


class StreamLines:
    """Writes each line to a given stream at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def put(self, line: bytes, *, urgent: bool = False) -> None:  # noqa: ARG002 - all are
        """Write a line."""
        with contextlib.suppress(OSError, ValueError):  # the stream is gone
            self._stream.write(line.decode())
            self._stream.flush()

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class LineWriter:
    """Writes lines to a descriptor from its own thread, so that only that one may block."""

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor = descriptor
        self._notice = notice  # the line that says how many were dropped
        self._rings: list[LineRing] = []  # at most one per process
        self._ended: list[LineRing] = []
        self._forget()
        at_fork(self._forget)

    def put(self, line: bytes, *, urgent: bool = False) -> None:
        """Buffer a line for the thread, or drop it."""
        most = _BYTES_MAX if urgent else _FOR_ALL
        if self._took(line, most) or self._gets_room(line, most):
            self._wake(hurry=urgent or self._size > _EARLY_BYTES)

    def follow(self, ring: LineRing) -> None:
        """Write the lines of another process as well."""
        with self._lock:
            self._rings.append(ring)
        self._wake()

    def leave(self, ring: LineRing) -> None:
        """Write the last lines of a process that has ended."""
        with self._lock:
            self._ended.append(ring)
        self._wake(hurry=True)

    def flush(self) -> None:
        """Wait until the present lines have been written, within a bounded time."""
        if self._waiting or self._writing or self._rings:
            written = threading.Event()
            with self._lock:
                self._flushes.append(written)
            self._wake(hurry=True)
            written.wait(_LAST_S)

    def _forget(self) -> None:
        """Reset the state; a forked child must not use its parent's."""
        self._lock = threading.RLock()  # a signal's handler may log while its thread does
        self._waiting: list[bytes] = []
        self._size = 0  # of what waits and of what is being written
        self._dropped = 0
        self._in_vain = False  # a line waited for the thread, which has written nothing since
        self._look_s = _TOGETHER_S  # until the next look at the rings
        self._writing = False
        self._rings, self._ended = [], []
        self._due, self._hurry = threading.Event(), threading.Event()
        self._flushes: list[threading.Event] = []
        self._thread: threading.Thread | None = None

    def _took(self, line: bytes, most: int) -> bool:
        with self._lock:
            size = self._size + len(line)
            if size > most:
                return False
            self._size = size
            self._waiting.append(line)
            return True

    def _gets_room(self, line: bytes, most: int) -> bool:
        """Wait until the thread has written enough; if it stands still, only one line waits."""
        for _ in range(_LOOKS):
            if self._in_vain or len(line) > most or threading.current_thread() is self._thread:
                break
            self._wake(hurry=True)
            _pause()
            if self._took(line, most):
                return True
        with self._lock:
            self._dropped += 1
            self._in_vain = True
        return False

    def _wake(self, *, hurry: bool = False) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="packhorse-log-lines", daemon=True)
            try:
                self._thread = thread
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is going down
                self._thread = None
                self._write()
                return
        if hurry and not self._hurry.is_set():
            self._hurry.set()
        if not self._due.is_set():
            self._due.set()

    def _serve(self) -> None:
        while True:
            self._due.wait(self._look_s if self._rings else None)
            if not self._rings:
                self._hurry.wait(_TOGETHER_S)
            self._due.clear()
            self._hurry.clear()
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._writing = True
            lines, self._waiting = self._waiting, []
            rings, ended, self._ended = list(self._rings), self._ended, []
            flushes, self._flushes = self._flushes, []
        own, taken = b"".join(lines), [ring.take() for ring in rings]
        self._look_s = _next_look_s(self._look_s, max((len(text) for text, _ in taken), default=0))
        self._write_all(own + b"".join(text for text, _ in taken))
        with self._lock:
            self._size -= len(own)
            dropped, self._dropped = self._dropped + sum(count for _, count in taken), 0
            self._in_vain = False
            self._rings = [ring for ring in self._rings if ring not in ended]
        if dropped:
            self._write_all(self._notice(dropped))
        self._writing = False
        for event in flushes:
            event.set()

    def _write_all(self, text: bytes) -> None:
        left = memoryview(text)
        with contextlib.suppress(OSError):  # the descriptor is closed
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # another user made it non-blocking
                    select.select([], [self._descriptor], [])


def _next_look_s(waited_s: float, found: int) -> float:
    """Return when a ring that goes on filling as fast will be a quarter full."""
    return min(_TOGETHER_S, max(_LOOK_S_MIN, waited_s * _EARLY_BYTES / max(1, found)))


_DATA: Final = _BYTES_MAX
_HEAD: Final = 64
#: Bytes of shared memory that a ring takes.
RING_SIZE: Final = _HEAD + _DATA
_LAST_BYTES: Final = 2_000
_NUMBER: Final = struct.Struct("<q")
#: Bytes written and lines dropped, set by the writer; bytes taken, by the reader. All only grow.
_WRITTEN_AT, _DROPPED_AT, _TAKEN_AT = 0, 8, 16


class LineRing:
    """A ring buffer in shared memory; writer and reader each create one on the same memory."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._lock = threading.RLock()  # a signal's handler may log while its thread does
        self._written = self._taken = 0
        self._dropped_before = 0
        self._in_vain_at = -1  # what had been taken when a line waited for more in vain

    # -------------------------------------------------------------------------- the writer

    def put(self, line: bytes, *, urgent: bool = False) -> None:
        """Write a line for the parent, or drop it."""
        with self._lock:
            most = (_BYTES_MAX if urgent else _FOR_ALL) - len(line)
            if self._written - self._taken > most and not self._gets_room(most):
                self._set(_DROPPED_AT, self._number(_DROPPED_AT) + 1)
                return
            start = self._at + _HEAD + self._written % _DATA
            room = self._at + RING_SIZE - start
            self._memory[start : start + len(line[:room])] = line[:room]
            if len(line) > room:
                first = self._at + _HEAD
                self._memory[first : first + len(line) - room] = line[room:]
            self._written += len(line)
            self._set(_WRITTEN_AT, self._written)  # from here on the reader sees it

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _gets_room(self, most: int) -> bool:
        """Wait until the parent has taken enough; a parent that stands still is waited for once."""
        for _ in range(_LOOKS):
            self._taken = self._number(_TAKEN_AT)
            if self._written - self._taken <= most:
                return True
            if most < 0 or self._taken == self._in_vain_at:
                return False
            _pause()
        self._in_vain_at = self._taken
        return False

    # -------------------------------------------------------------------------- the reader

    def take(self) -> tuple[bytes, int]:
        """Return what was written since the last call, and how many lines were dropped."""
        written, dropped = self._number(_WRITTEN_AT), self._number(_DROPPED_AT)
        text = self._between(self._taken, written)
        self._taken = written
        self._set(_TAKEN_AT, written)
        dropped, self._dropped_before = dropped - self._dropped_before, dropped
        return text, dropped

    def last_message(self) -> str:
        """Return the message of the last line; empty if there is none."""
        written = self._number(_WRITTEN_AT)
        end = self._between(max(0, written - _LAST_BYTES), written).rstrip(b"\n")
        line = end.rpartition(b"\n")[2]
        try:
            return str(msgspec.json.decode(line)["message"])
        except (msgspec.DecodeError, KeyError, TypeError):  # a line for people
            return line.decode("utf-8", "replace")

    def _between(self, start: int, end: int) -> bytes:
        first, size = self._at + _HEAD, end - start
        begin = start % _DATA
        text = self._memory[first + begin : first + min(begin + size, _DATA)]
        return text + self._memory[first : first + size - len(text)]

    def _number(self, at: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, self._at + at)[0]
        return value

    def _set(self, at: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, self._at + at, value)
