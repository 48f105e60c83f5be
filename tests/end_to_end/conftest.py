# SPDX-License-Identifier: MIT
"""One world per test; no process outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.support import World
from tests.servers.urls import store_url_of


@pytest.fixture
def store() -> str:
    """The store: a file unless a test says otherwise."""
    return "sqlite"


@pytest.fixture
def url(store: str, tmp_path: Path) -> Iterator[str | None]:
    """A place of its own on a shared server; None for a file."""
    if store == "sqlite":
        yield None
        return
    with store_url_of(store, tmp_path) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, url: str | None) -> Iterator[World]:
    made = World(tmp_path, url)
    yield made
    made.end()
