# SPDX-License-Identifier: MIT
"""What people meet who try things out by hand: cells that are run again, and what things are."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import packhorse
from packhorse import ConfigError, Packhorse, UsageError
from tests.support.children import python
from tests.unit.app_support import memory_app

CELLS = """
from packhorse import Packhorse

app = Packhorse("memory://")
for answer in (1, 2):
    exec(f"@app.task(aliases=['old{answer}'])\\ndef work() -> int: return {answer}")
assert (work(), app.tasks["work"](), app.registry.get("old1")) == (2, 2, None)
try:
    @app.task(name="work")
    def another() -> int: return 4
except Exception as error:
    print(error)
"""


def test_a_cell_that_is_run_again_replaces_its_task() -> None:
    done = python(CELLS)

    assert (done.returncode, done.stderr) == (0, "")
    assert "task 'work' is declared twice" in done.stdout


def test_a_script_that_declares_a_function_twice_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "jobs.py"
    script.write_text(CELLS)

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    assert "task 'work' is declared twice" in done.stderr


TWICE = """
import importlib, importlib.util, sys

shared = importlib.import_module("shared")
path = shared.__file__.replace("shared", "jobs")
spec = importlib.util.spec_from_file_location("other.name", path)
import jobs
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""
JOBS = """
from shared import app

@app.task
def work() -> None: ...
"""


def test_a_module_that_was_imported_under_two_names_is_named_by_both(tmp_path: Path) -> None:
    shared = "from packhorse import Packhorse\napp = Packhorse('memory://')\n"
    for name, text in (("shared", shared), ("jobs", JOBS), ("main", TWICE)):
        (tmp_path / f"{name}.py").write_text(text)

    done = subprocess.run(
        [sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False
    )

    told = done.stderr.splitlines()[-1]
    assert f"task 'work' is declared twice: at {tmp_path}/jobs.py:4, a line that ran twice" in told
    assert "as jobs and as other.name" in told


def test_a_schedule_whose_line_ran_twice_is_told_so() -> None:
    app = memory_app()

    @app.task
    def work(number: int) -> None: ...

    def declare(number: int) -> None:
        app.schedule("nightly", work.call(number), every="1h")

    declare(1)
    with pytest.raises(ConfigError, match=r"declared twice: at \S+, a line that ran twice"):
        declare(2)


def test_a_task_gives_a_handle_on_a_job_by_its_id() -> None:
    app = memory_app()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)
    app.run(burst=True)

    assert add.job(job.id) == app.job(job.id)
    assert add.job(job.id).result() == 3


def test_the_release_is_known() -> None:
    assert packhorse.__version__ == version("packhorse")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("memory://", "memory"),
        ("postgresql://ada:s3cret@host/db", "postgresql"),
        ("s3cret", "a store"),
        ("ada:s3cret://", "a store"),
    ],
)
def test_an_app_tells_what_it_is_without_its_password(url: str, place: str) -> None:
    app = Packhorse(url)
    app.task(name="one")(lambda: None)

    assert repr(app) == f"<Packhorse on {place}, 1 task>"


def test_an_open_app_names_its_store(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
    app.depth("default")

    assert repr(app) == f"<Packhorse on sqlite:///{tmp_path}/jobs.db, 0 tasks>"
    app.close()


def test_an_app_may_be_given_another_store_until_it_uses_one(tmp_path: Path) -> None:
    app = Packhorse("postgresql://nowhere/db")
    app.use_store(f"sqlite:///{tmp_path}/jobs.db")
    assert app.depth("default") == 0

    with pytest.raises(UsageError, match="in use already"):
        app.use_store("memory://")
    with pytest.raises(ConfigError, match="was given a store"):
        memory_app().use_store("memory://")
    with pytest.raises(ConfigError, match="is empty"):
        Packhorse("memory://").use_store(" ")
    app.close()
