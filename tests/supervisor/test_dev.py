# SPDX-License-Identifier: MIT
"""`packhorse dev`: everything at once while code is written, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from packhorse.runtime.supervisor.posix import descendants
from tests.supervisor.yard import PATIENCE_S, Yard, asked, lives, until

SOURCE = """
from pathlib import Path
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")

@app.task
def answer() -> str:
    return "first"

@app.every("0.3s")
def tick() -> None:
    Path("ticked").touch()
"""


@pytest.fixture
def source() -> str:
    return SOURCE


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_served(port: int) -> bool:
    try:
        return asked(f"http://127.0.0.1:{port}/api/v1/openapi.json")[0] == 200
    except OSError:
        return False


def test_jobs_schedules_and_pages_go_on_while_code_changes_and_ctrl_c_ends_all(yard: Yard) -> None:
    port, code = free_port(), yard.folder / "jobs.py"
    answer = yard.app.tasks["answer"]
    code.write_text("app = Packhorse(\n", encoding="utf-8")
    process = yard.start("dev", "jobs:app", "--port", str(port))
    until("the error", lambda: "Waiting for the next change" in yard.output(process))
    assert "SyntaxError" in yard.output(process)

    code.write_text(SOURCE, encoding="utf-8")
    assert answer.enqueue().result(timeout=PATIENCE_S) == "first"
    until("the schedule", (yard.folder / "ticked").exists)
    until("the dashboard", lambda: is_served(port))

    code.write_text(f"{SOURCE}\nraise RuntimeError('mistake')\n", encoding="utf-8")
    until("the mistake", lambda: "RuntimeError: mistake" in yard.output(process))
    assert answer.enqueue().result(timeout=PATIENCE_S) == "first"  # as before

    code.write_text(SOURCE.replace("first", "second"), encoding="utf-8")
    until("new code", lambda: answer.enqueue().result(timeout=PATIENCE_S) == "second")
    until("the dashboard", lambda: is_served(port))
    started = descendants(process.pid)

    assert len(started) >= 2  # a worker and the dashboard
    assert yard.stop(process, signal.SIGINT) == 0
    assert not any(map(lives, started))


def test_what_it_started_ends_with_it_even_if_it_is_killed(yard: Yard) -> None:
    (yard.folder / "elsewhere.py").write_text(
        "from packhorse import Packhorse\napp = Packhorse('memory://')\n", encoding="utf-8"
    )
    process = yard.start("dev", "elsewhere:app", "--port", str(free_port()))
    # Worker and dashboard could not share what is inside one process.
    until("a store that both can reach", (yard.folder / "packhorse.db").exists)
    until("both", lambda: len(descendants(process.pid)) >= 2)
    started = descendants(process.pid)

    os.kill(process.pid, signal.SIGKILL)

    until("all of it to end", lambda: not any(map(lives, started)))
