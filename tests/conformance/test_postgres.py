# SPDX-License-Identifier: MIT
"""The PostgreSQL store keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.stores.protocol import Store
from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.kept import KeptStore
from tests.servers.schemas import schemas


class PostgresHarness:
    """One schema; every opening of it is a store of its own, as in another process."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self._schema = schemas().take()
        self._clock = clock
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self.reopen()
        store.migrate()
        return store

    def reopen(self) -> Store:
        store = KeptStore(schemas().url_of(self._schema), self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        schemas().give(self._schema)


# The state machines talk to the server some hundred thousand times; a busy machine takes its time.
pytestmark = pytest.mark.timeout(1800)

TestPostgres = conformance.suite(PostgresHarness)
