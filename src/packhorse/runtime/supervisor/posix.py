# SPDX-License-Identifier: MIT
"""Stop signals and process trees of the operating system. Much of it works on Linux only."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
#: Dead processes whose sessions are remembered.
_SESSIONS_MAX: Final = 100
#: How long the supervisor waits for orphans to end when it stops itself.
_ENDED_S: Final = 5.0


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals to handle: all but a SIGHUP that `nohup` has told to ignore."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return STOP_SIGNALS[:-1] if outlives else STOP_SIGNALS


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended just before
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def adopts_orphans() -> bool:
    """Tell whether this process adopts orphans: process 1 of a container always does."""
    answer = ctypes.c_int(0)
    if sys.platform == "linux":
        _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return os.getpid() == 1 or answer.value == 1


def has_children() -> bool:
    """Whether this process may have a child; asking is far cheaper than naming them."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def child_pids(pid: int) -> frozenset[int]:
    """Return the children of a process, zombies too; none where the kernel does not say."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.update(map(int, (thread / "children").read_text(encoding="ascii").split()))
    return frozenset(found)


def descendants(pid: int) -> set[int]:
    """Return the children of a process, and theirs."""
    found: set[int] = set()
    unseen = set(child_pids(pid))
    while unseen:
        found |= unseen
        unseen = set().union(*map(child_pids, unseen)) - found
    return found


def kill_all(pids: Collection[int]) -> None:
    """Kill processes; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reaped(pid: int) -> bool:
    """Reap a child that has ended; return False while it lives."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


class Orphans:
    """Kill and reap what dead worker processes left in their sessions, if it is adopted here."""

    def __init__(self) -> None:
        self._adopts = adopts_orphans()
        self._sessions: deque[int] = deque(maxlen=_SESSIONS_MAX)

    def died(self, pid: int) -> None:
        """Note that a worker process has died: what lives in its session is to end."""
        self._sessions.append(pid)

    def end(self, own: Collection[int]) -> bool:
        """Kill and reap orphans, except `own` processes; return whether none is left."""
        if not self._adopts:
            return True
        strangers = [pid for pid in child_pids(os.getpid()) if pid not in own and not reaped(pid)]
        left = [pid for pid in strangers if _session(pid) in self._sessions]
        kill_all(left)
        return not left

    async def ended(self, changed: asyncio.Event) -> None:
        """Wait briefly until none is left; `changed` is set whenever a process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                changed.clear()
                while not self.end(()):
                    await changed.wait()
                    changed.clear()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
