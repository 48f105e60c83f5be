# SPDX-License-Identifier: MIT
"""The SQLite store keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock
from tests.support.empty_files import empty_file


class SqliteHarness:
    """One file; every opening of it is a store of its own, as in another process."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self._url = f"sqlite:///{empty_file(folder / 'jobs.db')}"
        self._clock = clock
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self.reopen()
        store.migrate()
        return store

    def reopen(self) -> Store:
        store = open_store(self._url, clock=self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestSqlite = conformance.suite(SqliteHarness)
