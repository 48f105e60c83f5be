# SPDX-License-Identifier: MIT
"""Removes records and results whose lifetime has passed."""

from __future__ import annotations

from typing import Final

from packhorse.clock import Chance
from packhorse.services.service import spread
from packhorse.stores.protocol import Store

__all__ = ["Pruner"]

#: Removed in one write: small, so that claims do not wait for it.
_BATCH: Final = 500


class Pruner:
    """Keeps a store from growing with what is over."""

    name = "prune"
    interval_s = 30.0

    def __init__(self, store: Store, chance: Chance) -> None:
        self._store = store
        self._chance = chance

    async def run_once(self) -> float:
        """Prune one batch; a full one is followed by the next at once."""
        pruned = await self._store.arun(self._store.upkeep.prune(limit=_BATCH))
        return 0.0 if pruned >= _BATCH else spread(self.interval_s, self._chance)
