# SPDX-License-Identifier: MIT
"""The URL of an empty store of each kind, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packhorse.core.clock import new_id
from packhorse.testing.places import clear_namespace
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas
from tests.support.empty_files import empty_file


@contextmanager
def store_url_of(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store, emptied afterwards; in memory it is no use to a second app."""
    match kind:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{empty_file(folder / 'jobs.db')}"
        case "postgres":
            schema = schemas().take()
            yield schemas().url_of(schema)
            schemas().give(schema)
        case _:
            name = f"test-{new_id()}"
            yield f"{redis_url()}?namespace={name}"
            clear_namespace(redis_url(), name)
