# SPDX-License-Identifier: MIT
"""Running a worker so that the signals it got can be told afterwards.

The worker decides what a signal does; how many came decides the exit code.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from packhorse.cli.exits import ToldToStop
from packhorse.cli.render import note

__all__ = ["exit_after_signals", "leave_when_told", "run_listening"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
#: The first asks the worker to stop; from this one on it was forced.
_FORCING: Final = 2
#: What shells add to a signal's number.
_SIGNAL_BASE: Final = 128


class _ListeningLoop(asyncio.SelectorEventLoop):
    """An event loop that writes down the signals to stop that its handlers are called for."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def add_signal_handler(
        self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> None:
        def heard(*given: *Ts) -> None:
            if sig in _STOPPING:
                self.heard.append(sig)
            callback(*given)

        super().add_signal_handler(sig, heard, *args)


def leave_when_told() -> None:
    """Until the worker listens itself, SIGTERM ends it as it should end: nothing has begun.

    SIGUSR1 and SIGUSR2, which would end it too, are for workers that have begun.
    """
    signal.signal(signal.SIGTERM, _leave)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    note("Told to stop before the worker had begun.")
    raise ToldToStop(0)


def run_listening(work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, list[int]]:
    """Run a coroutine on a loop of its own; its result, and the signals that were handled."""
    loop = _ListeningLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work()), loop.heard


def exit_after_signals(exit_code: int, heard: list[int]) -> int:
    """What a worker's process ends with: its own code, or that of the signal that forced it."""
    if exit_code == 0 and len(heard) >= _FORCING:
        return _SIGNAL_BASE + heard[-1]
    return exit_code
