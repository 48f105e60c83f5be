# SPDX-License-Identifier: MIT
"""Take over the terminal: read single keys, draw frames in place, and restore it at the end.

with Screen() as screen:
    screen.draw(lines)
    for key in screen.pressed(): ...
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

#: Switch to the alternate screen without cursor and line wrap; and back.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
#: Arrows up and down, as terminals send them, and the same keys in vi.
_ARROWS: Final = (("\x1b[A", "k"), ("\x1bOA", "k"), ("\x1b[B", "j"), ("\x1bOB", "j"))
_READ_MAX: Final = 256
#: What shells add to a signal's number.
_SIGNAL_BASE: Final = 128

_Handler = Callable[[int, FrameType | None], object]


class Screen:
    """Takes over the terminal of this process while inside."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        handlers: tuple[tuple[int, _Handler], ...] = (
            (signal.SIGTERM, _ended),
            (signal.SIGHUP, _ended),
            (
                signal.SIGWINCH,
                lambda _number, _frame: None,
            ),  # wakes `pressed` to draw again
            (signal.SIGTSTP, self._suspend),
        )
        self._handlers = {number: signal.signal(number, call) for number, call in handlers}
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number, call in self._handlers.items():
            signal.signal(number, call)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(self._output)
        return found.columns, found.lines

    def wake(self) -> None:
        """Let `pressed` return; from any thread."""
        with contextlib.suppress(BlockingIOError):  # it will return anyway
            os.write(self._wake, b"\0")

    def pressed(self) -> Iterator[str]:
        """Wait for keys, for `wake` or for another size; yield the keys."""
        ready, _, _ = select.select([self._input, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, _READ_MAX)
        if self._input not in ready:
            return
        text = os.read(self._input, _READ_MAX).decode("utf-8", "replace")
        if not text:  # the terminal is gone
            raise SystemExit(0)
        for sequence, key in _ARROWS:
            text = text.replace(sequence, key)
        yield from text

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines: as many as the screen has."""
        text = "\r\n".join(f"\x1b[2K{line}" for line in lines)
        self._write(f"\x1b[H{text}")

    def _take(self) -> None:
        tty.setcbreak(self._input)
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: give the terminal to the shell until it continues this process."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _ended(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_SIGNAL_BASE + number)
