# SPDX-License-Identifier: MIT
"""A log handler that writes lines together: one write for many, a moment later.

A write for each line costs a worker more than the job the line is about. A warning, and what came
before it, is written at once; so is what is left when the program ends. A process that is killed
takes the last moment's lines with it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from typing import Final, TextIO

from packhorse.waiting import at_fork

__all__ = ["LineHandler"]

_UTF_8: Final = ("utf-8", "utf8")
#: Lines written together at most.
_LINES_MAX: Final = 1000


class LineHandler(logging.Handler):
    """Writes each record as a line; those below WARNING up to `delay_s` late, 0 is at once."""

    def __init__(self, stream: TextIO, *, delay_s: float = 0.0) -> None:
        super().__init__()
        self._stream = stream
        self._delay_s = delay_s
        self._lock = threading.RLock()  # that of the base class may be None
        self._lines: list[bytes] = []
        self._due = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        at_fork(self._forget)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or keep its line for a moment."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
        else:
            self.add(line.encode(errors="backslashreplace"), record.levelno)

    def add(self, line: bytes, level: int) -> None:
        """Write a line without a record, or keep it for a moment."""
        with self._lock:
            lines = self._lines
            lines.append(line)
            if level >= logging.WARNING or not self._delay_s or len(lines) >= _LINES_MAX:
                self._write()
            elif len(lines) == 1:
                self._write_soon()

    def flush(self) -> None:
        """Write what is kept; `logging` asks for it when the program ends."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write what is kept, and keep nothing any more."""
        with self._lock:
            self._write()
            self._delay_s = 0.0
        self._ended.set()
        self._due.set()
        super().close()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError, ValueError):  # the stream is gone: nobody is left to tell
                _put(b"\n".join(lines) + b"\n", self._stream)

    def _write_soon(self) -> None:
        if self._thread is None:
            thread = threading.Thread(
                target=_serve,
                args=(weakref.ref(self), self._due, self._ended, self._delay_s),
                name="packhorse-log-lines",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is going down
                self._write()
                return
            self._thread = thread
        self._due.set()

    def _forget(self) -> None:
        """In a forked child: the kept lines are the parent's to write, and so is the thread."""
        self._lock, self._lines, self._thread = threading.RLock(), [], None
        self._due, self._ended = threading.Event(), threading.Event()


def _put(text: bytes, stream: TextIO) -> None:
    """Write UTF-8; most streams take it as it is."""
    below = getattr(stream, "buffer", None)
    stream.flush()  # what was written to it before
    if below is None or (stream.encoding or "").lower() not in _UTF_8:
        stream.write(text.decode())
        stream.flush()
    else:
        below.write(text)
        below.flush()


def _serve(
    known: weakref.ref[LineHandler],
    due: threading.Event,
    closed: threading.Event,
    delay_s: float,
) -> None:
    """A moment after the first of some lines, have them written."""
    while not closed.is_set():
        due.wait()
        due.clear()
        closed.wait(delay_s)
        handler = known()
        if handler is None:
            return
        handler.flush()
        del handler
