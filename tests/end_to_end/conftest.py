# SPDX-License-Identifier: MIT
"""One world per test; no process outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.clock import new_id
from packhorse.testing.places import clear_namespace
from tests.end_to_end.support import World
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas


@pytest.fixture
def store() -> str:
    """The store: a file unless a test says otherwise."""
    return "sqlite"


@pytest.fixture
def url(store: str) -> Iterator[str | None]:
    """A place of its own on a shared server; None for a file."""
    if store == "postgres":
        schema = schemas().take()
        yield schemas().url_of(schema)
        schemas().give(schema)
    elif store == "redis":
        namespace = f"test-{new_id()}"
        yield f"{redis_url()}?namespace={namespace}"
        clear_namespace(redis_url(), namespace)
    else:
        yield None


@pytest.fixture
def world(tmp_path: Path, url: str | None) -> Iterator[World]:
    made = World(tmp_path, url)
    yield made
    made.end()
