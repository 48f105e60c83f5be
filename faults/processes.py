# SPDX-License-Identifier: MIT
"""Processes as the system shows them, and waiting for something to be so. Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

#: The longest anything that should happen soon is waited for; a slow machine takes its time.
PATIENCE_S: Final = 50.0
#: Between two looks of `until`.
LOOK_S: Final = 0.01


def until(what: str, look: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """What `look` returns once that is neither None nor False nor empty."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {within_s} s in vain for {what}")
        time.sleep(LOOK_S)
    return found


def children_of(pid: int) -> list[int]:
    """The processes that it has started, all its threads together."""
    found: list[int] = []
    tasks: list[Path] = []
    with suppress(OSError):  # it may end meanwhile, and so may each thread
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
    for task in tasks:
        with suppress(OSError):
            found += [int(child) for child in task.read_text("ascii").split()]
    return found


def tree_of(pid: int) -> list[int]:
    """It, and all below it, itself first."""
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for child in children_of(one) if child not in found]
    return found


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
