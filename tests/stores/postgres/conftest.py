# SPDX-License-Identifier: MIT
"""Stores in a schema of their own, and a private server for tests that mistreat it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.proxy import Proxy
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.servers.schemas import schemas
from tests.stores.postgres.support import postgres_store


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of an empty store."""
    schema = schemas().take()
    yield schemas().url_of(schema)
    schemas().give(schema)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = postgres_store(url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def own_server() -> Iterator[PostgresServer]:
    """A server that may be stopped, paused and set to anything; a test puts right what it did."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def proxy(own_server: PostgresServer) -> Iterator[Proxy]:
    """A way to that server on which anything can happen."""
    opened = Proxy("127.0.0.1", own_server.port)
    yield opened
    opened.close()


@pytest.fixture(params=["run", "arun"])
def run(request: pytest.FixtureRequest) -> Callable[[PostgresStore, Plan[Any]], Any]:
    if request.param == "run":
        return lambda store, plan: store.run(plan)
    return lambda store, plan: asyncio.run(store.arun(plan))
