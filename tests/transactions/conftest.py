# SPDX-License-Identifier: MIT
"""An app on a real SQLite file or PostgreSQL schema, and connections of every library to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.core.clock import new_id
from packhorse.testing.places import clear_namespace
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas
from tests.transactions.outbox_support import Outboxed
from tests.transactions.support import Orders


@pytest.fixture(params=["sqlite", "postgres"])
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Orders]:
    """An app, and a table of the user's own beside its tables."""
    if request.param == "sqlite":
        with Orders(f"sqlite:///{tmp_path}/jobs.db") as made:
            yield made
        return
    schema = schemas().take()
    with Orders(schemas().url_of(schema)) as made:
        yield made
    schemas().give(schema)


@pytest.fixture
def app(orders: Orders) -> Packhorse:
    return orders.app


@pytest.fixture
def store_url() -> Iterator[str]:
    namespace = f"test-{new_id()}"
    yield f"{redis_url()}?namespace={namespace}"
    clear_namespace(redis_url(), namespace)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db"
        return
    schema = schemas().take()
    yield schemas().url_of(schema)
    schemas().give(schema)


@pytest.fixture
def outboxed(database: str, store_url: str) -> Iterator[Outboxed]:
    with Outboxed(database, store_url) as made:
        yield made
