# SPDX-License-Identifier: MIT
"""Where the tests of the supervisor run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.yard import JOBS, Yard, opened


@pytest.fixture
def source() -> str:
    """The app's module."""
    return JOBS


@pytest.fixture
def yard(source: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """A folder with an app and a store; no process outlives the test."""
    for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
        if not name.startswith("PACKHORSE_TEST"):
            monkeypatch.delenv(name)
    # A short path, so that the sockets for wake-ups find room beside the file.
    with tempfile.TemporaryDirectory(prefix="packhorse-test-") as folder:
        monkeypatch.chdir(folder)
        with opened(Path(folder), source) as made:
            yield made
        monkeypatch.undo()
