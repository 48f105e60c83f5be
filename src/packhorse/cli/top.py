# SPDX-License-Identifier: MIT
"""`packhorse top`: queues, workers and running jobs, live, with keys to act on them.

One thread reads and changes the store, so that keys work while the store is slow or unreachable.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import termios
import textwrap
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import click

from packhorse.cli.options import duration, on_store
from packhorse.cli.output import age, note, one_line, print_text
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.durations import microseconds, span_text
from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.cli.top_frame import FleetLook, FrameRow

_INTERVAL_MIN_US: Final = SECOND_US // 10
_INTERVAL_MAX_US: Final = 60 * SECOND_US
_KEYS: Final = "up/down choose  p pause or resume  c cancel  e explain  +/- interval  q quit"
#: Lines of an explanation that are shown.
_MESSAGE_LINES_MAX: Final = 8

#: The message until an action is done.
_PENDING: Final = "..."

#: Switch to the alternate screen without cursor and line wrap; and back.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
#: Arrows up and down, as terminals send them, and the same keys in vi.
_ARROWS: Final = (("\x1b[A", "k"), ("\x1bOA", "k"), ("\x1b[B", "j"), ("\x1bOB", "j"))
_READ_MAX: Final = 256
#: What shells add to a signal's number.
_SIGNAL_BASE: Final = 128

_Handler = Callable[[int, FrameType | None], object]

_Action = Callable[["Packhorse"], str]


def _interval_us(text: str) -> int:
    interval_us = microseconds(duration(text))
    if not _INTERVAL_MIN_US <= interval_us <= _INTERVAL_MAX_US:
        raise click.BadParameter(f"{text} is not from 0.1 s to 60 s")
    return interval_us


@click.command()
@click.option(
    "--interval",
    "interval_us",
    type=_interval_us,
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Between looks.",
)
@click.option("--once", is_flag=True, help="Print one frame and leave.")
@on_store
def top(app: Packhorse, *, interval_us: int, once: bool) -> None:
    """Show queues, workers and running jobs, live.

    On a terminal, keys pause or resume the chosen queue, cancel the chosen job, and explain it, or
    what waits in the chosen queue. Elsewhere a frame is printed each time, as plain lines.
    """
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_frames(app, interval_us, once=once)
        return
    with _Screen() as screen:
        _TopView(app, screen, interval_us).run()


def _print_frames(app: Packhorse, interval_us: int, *, once: bool) -> None:
    from packhorse.cli.top_frame import Rates, frame_lines, look_at_fleet, rows_of

    rates, ended = Rates(), threading.Event()
    while True:
        try:
            look = look_at_fleet(app)
        except PackhorseError as error:
            if once:
                raise
            note(f"Error {error.code}: {error}")
        else:
            rates.add(look)
            print_text("\n".join(frame_lines(look, rates, rows=rows_of(look), width=None)))
        if once:
            return
        print_text("")
        sys.stdout.flush()
        ended.wait(interval_us / SECOND_US)


class _TopView:
    """The screen, and what keys do."""

    def __init__(self, app: Packhorse, screen: _Screen, interval_us: int) -> None:
        from packhorse.cli.top_frame import Rates

        self._app = app
        self._screen = screen
        self._interval_us = interval_us
        self._clock = SystemClock()
        self._actions = queue.SimpleQueue[_Action]()
        self._look: FleetLook | None = None
        self._counted: FleetLook | None = None  #: the last one in the rates
        self._rates = Rates()
        self._rows: list[FrameRow] = []
        self._chosen: FrameRow | None = None
        self._place = 0  #: index of the chosen row, kept for when it is gone
        self._asked: FrameRow | None = None  #: the job that a yes would cancel
        self._quit = False
        self._message = ""
        self._trouble: tuple[float, str] | None = None  #: since when, and what

    def run(self) -> None:
        """Show frames until the user quits."""
        threading.Thread(target=self._read, name="packhorse-top", daemon=True).start()
        with suppress(KeyboardInterrupt):
            while not self._quit:
                self._screen.draw(self._lines())
                for key in self._screen.pressed():
                    self._press(key)

    # --------------------------------------------------------------------------------- the store

    def _read(self) -> None:
        """Do what keys ask for, and look at the store in between."""
        from packhorse.cli.top_frame import look_at_fleet

        act: _Action | None = None
        while True:
            try:
                if act is not None:
                    self._message = act(self._app)
                look = look_at_fleet(self._app)
            except Exception as error:  # noqa: BLE001 - shown, and tried again
                since = self._clock.monotonic() if self._trouble is None else self._trouble[0]
                self._trouble = (since, f"{getattr(error, 'code', type(error).__name__)}: {error}")
                if act is not None and self._message == _PENDING:
                    self._message = "The store gave no answer: it may not be done. Try again."
            else:
                self._look, self._trouble = look, None
            self._screen.wake()
            try:
                act = self._actions.get(timeout=self._interval_us / SECOND_US)
            except queue.Empty:
                act = None

    # -------------------------------------------------------------------------------------- keys

    def _press(self, key: str) -> None:
        if self._asked is not None:
            asked, self._asked, self._message = self._asked, None, "Nothing was changed."
            if key in "yY":
                self._message = _PENDING
                self._actions.put(lambda app: _cancel(app, asked.name))
            return
        self._message = ""
        match key:
            case "q":
                self._quit = True
            case "j" | "k":
                self._move(1 if key == "j" else -1)
            case "p":
                self._pause()
            case "c":
                self._asked = self._of_kind("job")
            case "e":
                self._explain()
            case "+" | "-":
                changed = self._interval_us // 2 if key == "+" else self._interval_us * 2
                self._interval_us = min(_INTERVAL_MAX_US, max(_INTERVAL_MIN_US, changed))
                self._message = f"A look every {span_text(self._interval_us)}."

    def _move(self, by: int) -> None:
        if self._rows:
            at = self._place + by if self._chosen in self._rows else self._place
            self._place = max(0, min(at, len(self._rows) - 1))
            self._chosen = self._rows[self._place]

    def _of_kind(self, kind: str) -> FrameRow | None:
        if self._chosen is not None and self._chosen.kind == kind:
            return self._chosen
        self._message = f"Choose a {kind} with the arrows first."
        return None

    def _pause(self) -> None:
        row = self._of_kind("queue")
        if row is not None:
            self._message = _PENDING
            self._actions.put(lambda app: _pause_or_resume(app, row.name))

    def _explain(self) -> None:
        row = self._chosen
        if row is None or row.kind == "worker":
            self._message = "Choose a job or a queue with the arrows first."
            return
        self._message = _PENDING
        self._actions.put(lambda app: _explain(app, row))

    # ------------------------------------------------------------------------------------- lines

    def _lines(self) -> list[str]:
        from packhorse.cli.top_frame import frame_lines, rows_of, rows_shown

        width, height = self._screen.size
        message = self._message_lines(width)
        title = f"packhorse top, every {span_text(self._interval_us)}: {self._app.store.label}"
        lines = [title[:width]]
        if self._trouble is not None:
            since, what = self._trouble
            waited = age(self._clock.monotonic() - since)
            lines += textwrap.wrap(f"No answer for {waited}: {one_line(what)}", width)[:3]
        look = self._look
        if look is None:
            lines.append("Reading ...")
        else:
            if look is not self._counted:
                self._counted = look
                self._rates.add(look)
            every = rows_of(look)
            self._rows = [row for rows in every for row in rows]
            if self._chosen in self._rows:
                self._place = self._rows.index(self._chosen)
            shown = rows_shown(every, height - len(lines) - len(message), self._chosen)
            lines += frame_lines(
                look, self._rates, rows=shown, width=width, chosen=self._chosen, colored=True
            )
        room = max(0, height - len(message))
        return [*lines[:room], *[""] * (room - len(lines)), *message][:height]

    def _message_lines(self, width: int) -> list[str]:
        text = self._message
        if self._asked is not None:
            text = f"Cancel job {self._asked.name}? y or n"
        wrapped = [
            part for line in text.splitlines() for part in textwrap.wrap(one_line(line), width)
        ]
        return [*wrapped[:_MESSAGE_LINES_MAX], _KEYS[:width]]


def _pause_or_resume(app: Packhorse, name: str) -> str:
    """Pause a queue, or resume one that is paused."""
    paused = any(queue.paused for queue in app.insights.queues() if queue.name == name)
    if paused:
        app.resume(name)
    else:
        app.pause(name)
    return f"Queue {name} is {'resumed' if paused else 'paused'}."


def _cancel(app: Packhorse, job_id: str) -> str:
    done = app.job(job_id).cancel()
    return f"Job {job_id} {'is cancelled, or told to stop' if done else 'had finished'}."


def _explain(app: Packhorse, row: FrameRow) -> str:
    from packhorse.core.job import LOOK_MAX, WAITING
    from packhorse.stores.requests import JobFilter

    job_id = row.name
    if row.kind == "queue":
        chosen = JobFilter(queue=row.name, statuses=tuple(WAITING))
        waiting = app.insights.jobs(chosen, limit=1, most=LOOK_MAX).jobs
        if not waiting:
            return f"No job waits in queue {row.name}."
        job_id = waiting[0].id
    return str(app.explain(job_id))


class _Screen:
    """Takes over the terminal while inside: reads single keys, and draws frames in place."""

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
            (signal.SIGWINCH, lambda _number, _frame: None),  # wakes `pressed` to draw again
            (signal.SIGTSTP, self._suspend),
        )
        self._handlers = {number: signal.signal(number, call) for number, call in handlers}
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_error: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number, call in self._handlers.items():
            signal.signal(number, call)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; a terminal that a program has opened may say that it has none."""
        found = os.get_terminal_size(self._output)
        return found.columns or 80, found.lines or 24

    def wake(self) -> None:
        """Let `pressed` return; from any thread."""
        with suppress(BlockingIOError):  # it will return anyway
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
