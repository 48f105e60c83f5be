# SPDX-License-Identifier: MIT
"""The reference store: plain dicts in one process, and the oracle for every other store."""

from __future__ import annotations

from packhorse.stores.memory.store import Faults, MemoryStore

__all__ = ["Faults", "MemoryStore"]
