# SPDX-License-Identifier: MIT
"""Where the tests of the command line run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.cli.project import JOBS, PATIENCE_S, Project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
        if not name.startswith("PACKHORSE_TEST"):
            monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "")  # which --no-color sets
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


@pytest.fixture
def project(folder: Path) -> Project:
    """A folder with an app in jobs.py and a store in jobs.db."""
    made = Project(folder)
    made.write("jobs.py", JOBS)
    # By its URL, so that nothing of the project is imported yet.
    assert made.run("migrate", "--url", "sqlite:///jobs.db").exit_code == 0
    return made


@pytest.fixture
def app(project: Project) -> Iterator[Packhorse]:
    """The project's app."""
    opened = project.app()
    yield opened
    opened.close()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes a test has started; none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
