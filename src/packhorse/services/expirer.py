# SPDX-License-Identifier: MIT
"""Gives up waiting jobs whose deadline has passed."""

from __future__ import annotations

from typing import Final

from packhorse.clock import Chance
from packhorse.services.service import spread
from packhorse.stores.protocol import Store

__all__ = ["Expirer"]

#: Jobs given up in one write; a full batch is followed by the next at once.
_BATCH: Final = 500


class Expirer:
    """An expired job is never started, whenever this runs; it is only put away here."""

    name = "expire"
    interval_s = 5.0

    def __init__(self, store: Store, chance: Chance) -> None:
        self._store = store
        self._chance = chance

    async def run_once(self) -> float:
        """Expire one batch."""
        expired = await self._store.arun(self._store.upkeep.expire(limit=_BATCH))
        return 0.0 if expired >= _BATCH else spread(self.interval_s, self._chance)
