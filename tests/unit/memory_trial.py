# SPDX-License-Identifier: MIT
"""A memory store on trial, with the short words of the conformance suite."""

from __future__ import annotations

from packhorse.stores.memory import Faults, MemoryStore
from packhorse.stores.memory.state import MemoryState
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.virtual_clock import VirtualClock


class MemoryHarness:
    """The one store there is."""

    def __init__(self, clock: VirtualClock, faults: Faults | None = None) -> None:
        self._store = MemoryStore(clock=clock, faults=faults)

    def open(self) -> MemoryStore:
        return self._store

    def reopen(self) -> MemoryStore:
        return self._store

    def close(self) -> None:
        self._store.close()


def memory_trial(faults: Faults | None = None) -> Trial:
    """An empty store and the clock it judges by."""
    clock = VirtualClock()
    return Trial(MemoryHarness(clock, faults), clock, "run")


def state_of(trial: Trial) -> MemoryState:
    """What the store keeps, to look at from inside."""
    assert isinstance(trial.store, MemoryStore)
    return trial.store._state
