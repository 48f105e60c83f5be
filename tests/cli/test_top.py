# SPDX-License-Identifier: MIT
"""`packhorse top` at a real terminal: what it shows, what keys do, and how it leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.cli.top_frame import FrameRow, rows_shown
from packhorse.stores.requests import ClaimRequest
from tests.cli.project import PATIENCE_S, SOURCE, Project
from tests.cli.test_overview import hire
from tests.servers.redis import RedisServer

#: The terminal of a process is its standard input from here on.
RUN = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
STYLES = re.compile(r"\x1b\[[0-9;]*[mK]|\x1b\[\?\d+[hl]")


class Terminal:
    """A terminal with `packhorse top` on it."""

    def __init__(self, project: Project, *arguments: str, columns: int = 80) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, 24 if columns else 0)
        self.before = termios.tcgetattr(self.ours)
        words = ("-m", "packhorse", "top", "--interval", "0.1s", *arguments)
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, *words],
            cwd=project.folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.output = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def lines(self) -> list[str]:
        """The last whole frame."""
        frames = self.output.split("\x1b[H")
        return STYLES.sub("", frames[-2] if len(frames) > 1 else "").replace("\r", "").split("\n")

    def until(self, what: str, is_so: Callable[[list[str]], object]) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so(self.lines()):
            assert time.monotonic() < deadline, (
                f"waited in vain for {what}:\n{self.output[-2_000:]}"
            )
            self._read(0.1)
        return self.lines()

    def shows(self, text: str) -> list[str]:
        return self.until(text, lambda lines: any(text in line for line in lines))

    def left(self) -> int:
        """Wait until it has left; its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        self._read(0.0)
        return self.process.wait(1)

    @property
    def is_as_before(self) -> bool:
        modes = self.output.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
        return modes and termios.tcgetattr(self.ours) == self.before

    def _read(self, within_s: float) -> None:
        if select.select([self.ours], [], [], within_s)[0]:
            try:
                self.output += os.read(self.ours, 65_536).decode()
            except OSError:  # nothing has it open any more
                time.sleep(within_s)


@pytest.fixture
def terminals() -> Iterator[ExitStack]:
    with ExitStack() as ended:
        yield ended


def opened(terminals: ExitStack, project: Project, *arguments: str, columns: int = 80) -> Terminal:
    terminal = Terminal(project, *arguments, columns=columns)
    terminals.callback(os.close, terminal.ours)
    terminals.callback(terminal.process.wait)
    terminals.callback(terminal.process.kill)
    return terminal


@pytest.mark.usefixtures("app")
def test_a_terminal_that_says_no_size_is_taken_for_a_usual_one(
    project: Project, terminals: ExitStack
) -> None:
    terminal = opened(terminals, project, columns=0)

    lines = terminal.shows("q quit")
    assert len(lines) == 24
    terminal.press("q")
    assert terminal.left() == 0


def test_keys_pause_a_queue_explain_and_cancel_a_job_and_leave(
    project: Project, app: Packhorse, terminals: ExitStack
) -> None:
    job = app.tasks["greet"].enqueue("Ada")
    hire(app, "anna", "default", "mail")
    taken = ClaimRequest("anna", ("default",), ("greet",), 1, 60_000_000)
    app.store.run(app.store.jobs.claim(taken))
    app.tasks["explode"].enqueue()
    terminal = opened(terminals, project)
    lines = terminal.shows("greet")
    assert lines[1].startswith("1 worker, 1 of ")
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 24

    terminal.press("\x1b[Bp")  # down, to the queue where most jobs wait
    terminal.shows("Queue mail is paused.")
    terminal.shows("> mail     paused")
    assert next(one for one in app.insights.queues() if one.name == "mail").paused
    terminal.press("e")
    terminal.shows("queue 'mail' is paused: resume it")

    terminal.press("jjj")  # over the other queue and the worker to the job
    terminal.shows(f"> {job.id[-8:]}")
    terminal.press("cn")
    terminal.shows("Nothing was changed.")
    terminal.press("c")
    terminal.shows(f"Cancel job {job.id}? y or n")
    terminal.press("y")
    terminal.shows("told to stop")
    assert app.store.run(app.store.inspection.job(job.id)).cancel_requested  # type: ignore[union-attr]  # it is there

    terminal.resize(46, 14)
    lines = terminal.until("fewer lines", lambda lines: len(lines) == 14)
    assert max(map(len, lines)) <= 46
    terminal.press("q")
    assert terminal.left() == 0
    assert terminal.is_as_before


def test_an_outage_is_told_until_it_is_over_and_a_signal_gives_the_terminal_back(
    project: Project, terminals: ExitStack, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes")
    terminals.callback(server.stop)
    project.run("migrate", "--url", server.url)
    project.run("enqueue", "greet", '"Ada"', "--url", server.url)
    terminal = opened(terminals, project, "--url", server.url)
    terminal.shows("1 waiting")

    server.stop()
    lines = terminal.shows("No answer for ")
    assert any("0 workers" in line for line in lines)  # as it was last seen
    terminal.press("jp")
    terminal.shows("it may not be done")
    server.start()
    terminal.until("an answer", lambda lines: not any("No answer" in line for line in lines))

    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.left() == 143
    assert terminal.is_as_before


def rows(kind: str, number: int) -> list[FrameRow]:
    return [FrameRow(kind, f"{kind}-{place}") for place in range(number)]


def test_what_one_table_leaves_free_shows_the_rows_of_the_others() -> None:
    queues, workers, jobs = shown = rows_shown(
        [rows("queue", 9), rows("worker", 1), rows("job", 40)], 24, None
    )

    assert (len(queues), len(workers), len(jobs)) == (7, 1, 8)
    assert sum(map(len, shown)) + 8 == 24
    assert rows_shown([rows("queue", 9), [], []], 24, None)[0] == rows("queue", 9)


def test_the_chosen_row_is_among_those_shown_wherever_it_stands() -> None:
    every = [rows("queue", 40), rows("worker", 40), rows("job", 40)]

    for chosen in (row for one in every for row in one):
        shown = rows_shown(every, 24, chosen)
        assert any(chosen in one for one in shown)
        assert sum(map(len, shown)) == 16


def test_piped_it_prints_plain_frames(project: Project, app: Packhorse) -> None:
    app.tasks["add"].enqueue(1)

    result = project.run("top", "--once")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "0 workers, 0 of 0 slots busy; 1 waiting, 0 dead"
    assert "\x1b" not in result.stdout
    assert re.search(r"default +open +1 +1 +0 +- +0 +\d+s", result.stdout)


@pytest.mark.parametrize("interval", ["0", "0.05s", "61s", "500"])
def test_an_interval_outside_its_bounds_is_refused(project: Project, interval: str) -> None:
    told = project.run("top", "--once", "--interval", interval)

    assert told.exit_code == ExitCode.USAGE
    assert f"'--interval': {interval} is not from 0.1 s to 60 s" in " ".join(told.output.split())
