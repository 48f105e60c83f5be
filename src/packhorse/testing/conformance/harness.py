# SPDX-License-Identifier: MIT
"""What the author of a store gives to the suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from packhorse.stores.protocol import Store
from packhorse.testing.virtual_clock import VirtualClock


class StoreHarness(Protocol):
    """Opens stores for one test: first an empty one, then others on the same data."""

    def open(self) -> Store:
        """An empty store, ready for use, that judges by the clock the harness was made with."""
        ...

    def reopen(self) -> Store:
        """Another `Store` object on the same data, such as another process would have.

        A store that lives in one process answers with the one it has.
        """
        ...

    def close(self) -> None:
        """Close whatever was opened, and remove the data where that is not done otherwise."""
        ...


#: Makes a harness from a folder that only this harness uses, and the clock its stores judge by.
HarnessFactory = Callable[[Path, VirtualClock], StoreHarness]
