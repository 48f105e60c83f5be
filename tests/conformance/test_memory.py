# SPDX-License-Identifier: MIT
"""The reference store keeps the promises of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing import conformance
from packhorse.testing.virtual_clock import VirtualClock


class MemoryHarness:
    """One process, one store: all who open it share it."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self._store = open_store("memory://", clock=clock)

    def open(self) -> Store:
        return self._store

    def reopen(self) -> Store:
        return self._store

    def close(self) -> None:
        self._store.close()


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestMemory = conformance.suite(MemoryHarness)
