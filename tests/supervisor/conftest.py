# SPDX-License-Identifier: MIT
"""Where the tests of the supervisor run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.urls import store_url_of
from tests.supervisor.yard import JOBS, Yard, opened
from tests.support.folders import short_folder


@pytest.fixture
def source() -> str:
    """The app's module."""
    return JOBS


@pytest.fixture
def store() -> str:
    """The store: a file in the folder unless a test says otherwise."""
    return "sqlite"


@pytest.fixture
def store_url(store: str, tmp_path: Path) -> Iterator[str]:
    """Where the app's jobs are, in a place of their own on a shared server."""
    if store == "sqlite":
        yield "sqlite:///jobs.db"
        return
    with store_url_of(store, tmp_path) as url:
        yield url


@pytest.fixture
def yard(source: str, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """A folder with an app and a store; no process outlives the test."""
    for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
        if not name.startswith("PACKHORSE_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("YARD_URL", store_url)
    with short_folder() as folder:
        monkeypatch.chdir(folder)
        with opened(folder, source) as made:
            yield made
        monkeypatch.undo()
