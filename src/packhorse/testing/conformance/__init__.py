# SPDX-License-Identifier: MIT
"""The promises of `packhorse.stores.protocol` as tests: one suite that every store passes.

A store's own test file is a harness and one line; nothing is skipped, and both runners are tried:

    class MemoryHarness:
        def __init__(self, folder: Path, clock: VirtualClock) -> None:
            self._store = open_store("memory://", clock=clock)

        def open(self) -> Store:
            return self._store

        def reopen(self) -> Store:
            return self._store

        def close(self) -> None:
            self._store.close()

    TestMemory = conformance.suite(MemoryHarness)

The topics follow a job's life; each is a module with a class of tests, named in full sentences. It
needs pytest and hypothesis. `PACKHORSE_MACHINE_EXAMPLES=1000` runs the state machine longer,
with other examples each time.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# Before the topics are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{topic.name}" for topic in iter_modules(__path__)))

from packhorse.testing.conformance.harness import HarnessFactory, StoreHarness  # noqa: E402
from packhorse.testing.conformance.suite import suite  # noqa: E402

__all__ = ["HarnessFactory", "StoreHarness", "suite"]
