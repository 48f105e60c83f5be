# SPDX-License-Identifier: MIT
"""Servers and stores for the tests of the Redis store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.proxy import Proxy
from packhorse.core.clock import new_id
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.places import clear_namespace
from tests.servers.redis import RedisServer, free_port, redis_url

#: Makes a store from a URL and options, and closes it when the test is over.
Opening = Callable[..., RedisStore]


@pytest.fixture
def opening() -> Iterator[Opening]:
    stores: list[RedisStore] = []

    def opened(url: str, **options: str | int) -> RedisStore:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        store = RedisStore(RedisSettings.from_url(f"{url}?{query}"))
        stores.append(store)
        return store

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace of one's own on the shared server."""
    name = f"test-{new_id()}"
    yield name
    clear_namespace(redis_url(), name)


@pytest.fixture
def store(opening: Opening, namespace: str) -> RedisStore:
    """A store on the shared server; it is patient, since some tests ask much of a busy machine."""
    return opening(redis_url(), namespace=namespace, timeout="40s")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one's own, to do anything to."""
    server = RedisServer(tmp_path / "redis", port=free_port())
    yield server
    server.stop()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """A way to that server on which things may go wrong."""
    proxy = Proxy(*server.address)
    yield proxy
    proxy.close()
