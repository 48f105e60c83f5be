# SPDX-License-Identifier: MIT
"""The demo tells the truth, in time, leaves no process behind, and what it says to type works."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import packhorse
from examples.shop.books import read_books
from packhorse import Packhorse
from tests.end_to_end.support import ROOT, ended, until

#: The demo's own limit is 30 seconds; the machine of a test may be busy with others.
DEMO_S: Final = 45.0
STOPPED_S: Final = 20.0
VERDICT: Final = re.compile(r"submitted (\d+), finished (\d+), lost (\d+)")


class Demo:
    """The demo, with its temporary folder inside the test's own."""

    def __init__(self, folder: Path, store: str = "sqlite") -> None:
        self._output = folder / "output.txt"
        with self._output.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [sys.executable, "examples/shop/demo.py", store],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": PATH},
                stdout=file,
                stderr=file,
                text=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")


PATH: Final = os.pathsep.join(map(str, (Path(packhorse.__file__).parents[1], ROOT)))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    started = Demo(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
    ended(started.process, STOPPED_S)


@pytest.mark.timeout(120)
def test_the_demo_loses_nothing_and_its_advice_works(demo: Demo, tmp_path: Path) -> None:
    code = ended(demo.process, DEMO_S)

    told = demo.output
    (verdict,) = VERDICT.findall(told)
    submitted, finished, lost = map(int, verdict)
    counts = dict(re.findall(r"^  (completed|cancelled|dead) +(\d+)$", told, re.MULTILINE))
    assert code == 0, told
    assert submitted >= 300
    assert (finished, lost) == (submitted, 0)
    assert sum(map(int, counts.values())) == submitted
    assert re.search(r"killed with SIGKILL, in the middle of [1-9]\d* jobs", told)
    assert {"poison_message", "rejected"} <= set(told.split())
    assert "checked 2000 of 2000 prices; item 1300 failed" in told
    assert "a parcel with tea, honey, rope, on its way" in told
    assert re.search(r"counted [1-9]\d* times, on schedule", told)
    assert "packhorse dashboard examples.shop.jobs:app" in told
    assert workers_of(tmp_path) == []

    stats, dead, shown, schedules, batches, order, redriven, worked = map(run, advice(told))
    (processed,) = re.findall(r"processed (\d+):", stats)
    assert int(processed) > submitted - int(counts["cancelled"])  # batch, workflow and ticks too
    assert re.search(r"count_stock .*every 2s", schedules)
    assert re.search(r"failed +100 % +2000 +1 +2000", batches), batches
    assert "ship" in order
    assert dead.count("the printer is out of paper") == 3
    assert "poison_message" in shown
    assert "redriven 3" in redriven
    assert worked.count('"job.completed"') == 3, worked


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_the_demo_loses_nothing_on_a_server(tmp_path: Path, store: str) -> None:
    demo = Demo(tmp_path, store)
    code = ended(demo.process, DEMO_S)

    (verdict,) = VERDICT.findall(demo.output)
    submitted, finished, lost = map(int, verdict)
    assert code == 0, demo.output
    assert (finished, lost) == (submitted, 0)


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "worker 2 started"), (signal.SIGINT, "started in its place")],
    ids=["at the start", "in the middle"],
)
def test_a_demo_that_is_interrupted_leaves_no_process_behind(
    demo: Demo, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    until(moment, lambda: moment in demo.output)
    working = workers_of(tmp_path)

    demo.process.send_signal(number)
    code = ended(demo.process, STOPPED_S)

    assert len(working) == 2
    assert code == 128 + number
    assert workers_of(tmp_path) == []


def test_a_job_that_is_missing_or_left_behind_is_not_well() -> None:
    app = Packhorse("memory://")

    @app.task
    def pack() -> None: ...

    done, waiting = pack.enqueue(), pack.using(delay="1h").enqueue()
    app.run(burst=True)

    well = read_books(app, {done.id: "mail"})
    left = read_books(app, {done.id: "mail", waiting.id: "mail"})
    missing = read_books(app, {done.id: "mail", "gone": "mail"})

    assert (well.all_well, well.finished, well.submitted) == (True, 1, 1)
    assert (left.all_well, left.finished) == (False, 1)
    assert [job.id for job in left.unfinished] == [waiting.id]
    assert (missing.all_well, missing.finished, missing.missing) == (False, 1, ["gone"])
    app.close()


def workers_of(folder: Path) -> list[int]:
    """The processes whose store lies in this folder, save the demo's own."""
    mark = f"PACKHORSE_URL=sqlite:///{folder}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environ.read_bytes()
        except OSError:  # it has just ended, or belongs to another user
            continue
        if mark in text:
            found.append(int(environ.parent.name))
    return found


def advice(output: str) -> list[str]:
    """The commands the demo says to type."""
    return [line.strip() for line in output.splitlines() if "--url" in line or "SHOP_PAPER" in line]


def run(line: str) -> str:
    """Type it, where the user stands."""
    words = shlex.split(line)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    command = [word for word in words if word.partition("=")[0] not in given]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **given, "PYTHONPATH": PATH, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout + done.stderr
