# SPDX-License-Identifier: MIT
"""The record of a run: one line for everything that happened, each written by one append.

    accepted NUMBER TIME              the submit returned
    refused NUMBER TIME               the submit raised
    start NUMBER PID TIME             a handler began
    end NUMBER PID BEGAN TIME         that handler returned
    cut NUMBER PID BEGAN TIME         that handler was stopped by an exception
    killed PID TIME                   this process of a worker was ended by SIGKILL
    paused PID TIME, resumed PID TIME it was stopped, and went on

Times are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from comparison.place import record_path


def note(path: str, *words: object) -> None:
    """Append a line that ends with the present time."""
    _append(path, *words, time.monotonic_ns())


@contextmanager
def working(number: int) -> Iterator[None]:
    """Record the work on a job, from inside its handler."""
    path, pid, began = record_path(), os.getpid(), time.monotonic_ns()
    _append(path, "start", number, pid, began)
    try:
        yield
    except BaseException:
        note(path, "cut", number, pid, began)
        raise
    note(path, "end", number, pid, began)


def _append(path: str, *words: object) -> None:
    """One write, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, " ".join(map(str, words)).encode() + b"\n")
    finally:
        os.close(descriptor)
