# SPDX-License-Identifier: MIT
"""What the author of a store provides to the suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing.virtual_clock import VirtualClock


class StoreHarness(Protocol):
    """Opens stores for one test: first an empty one, then others on the same data."""

    def open(self) -> Store:
        """Return an empty store, ready for use, with the clock of the harness."""
        ...

    def reopen(self) -> Store:
        """Return another `Store` object on the same data, as another process would have.

        A store that lives in one process returns the same one.
        """
        ...

    def close(self) -> None:
        """Close what was opened, and remove the data unless something else does."""
        ...


class ReferenceHarness:
    """Opens the reference store, which others are compared with."""

    def __init__(self, clock: VirtualClock) -> None:
        self._store = open_store("memory://", clock=clock)

    def open(self) -> Store:
        return self._store

    def reopen(self) -> Store:
        return self._store

    def close(self) -> None:
        self._store.close()


#: Makes a harness from a folder that only this harness uses, and the clock of its stores.
HarnessFactory = Callable[[Path, VirtualClock], StoreHarness]
