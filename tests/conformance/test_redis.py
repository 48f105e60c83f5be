# SPDX-License-Identifier: MIT
"""The Redis store keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.core.clock import new_id
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing import conformance
from packhorse.testing.places import clear_namespace
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.redis import redis_url


class RedisHarness:
    """A namespace on a shared server; every opening of it is a store as in another process."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self._namespace = f"test-{new_id()}"
        self._clock = clock
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self.reopen()
        store.migrate()
        return store

    def reopen(self) -> Store:
        store = open_store(f"{redis_url()}?namespace={self._namespace}", clock=self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        clear_namespace(redis_url(), self._namespace)


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestRedis = conformance.suite(RedisHarness)
