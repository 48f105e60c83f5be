# SPDX-License-Identifier: MIT
"""Makes due jobs ready, also those of queues that nobody serves right now."""

from __future__ import annotations

from typing import Final

from packhorse.clock import Chance
from packhorse.services.service import spread
from packhorse.stores.protocol import Store

__all__ = ["Promoter"]

#: Jobs made ready per queue in one write; a full batch is followed by the next at once.
_BATCH: Final = 1_000


class Promoter:
    """Claims promote what they serve at its due time; this is for the rest."""

    name = "promote"
    interval_s = 2.0

    def __init__(self, store: Store, chance: Chance) -> None:
        self._store = store
        self._chance = chance

    async def run_once(self) -> float:
        """Promote one batch."""
        promoted = await self._store.arun(self._store.upkeep.promote(limit=_BATCH))
        return 0.0 if promoted >= _BATCH else spread(self.interval_s, self._chance)
