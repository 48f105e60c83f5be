# SPDX-License-Identifier: MIT
"""An app on a real SQLite file or PostgreSQL schema, and connections of every library to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.servers.schemas import schemas
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
