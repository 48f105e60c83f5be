# SPDX-License-Identifier: MIT
"""Drains an outbox into the store: one worker is on duty, marks and batches decide."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from packhorse.client.outbox import Outbox
from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.runtime.services.duty import Duty
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.intake import ADMITTED_MAX
from packhorse.stores.protocol import Store

#: A worker on duty says so again before this has passed, or another one takes over.
_DUTY_US: Final = 10 * SECOND_US
#: Between two looks, once something came through it within so long.
_BUSY_S: Final = 0.1
_LATELY_S: Final = 60.0


class Drainer:
    """Delivers what waits in an outbox: soon while it is used, else now and then."""

    interval_s = 1.0

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        clock: Clock,
        chance: Chance,
        worker: str,
        *,
        found: Callable[[], None],
    ) -> None:
        self.name = "outbox"
        self._outbox = outbox
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        #: One worker drains, which saves the user's database the looks of all others.
        self._duty = Duty(store, clock, outbox.duty.key, worker, _DUTY_US)
        self._found = found
        self._exists = False
        self._seen_at = -math.inf

    async def run_once(self) -> float:
        """Deliver one batch."""
        if not await self._duty.is_mine():
            return spread(self.interval_s, self._chance)
        if not self._exists:
            await asyncio.to_thread(self._outbox.create)
            self._exists = True
        delivered = await self._outbox.adrain(self._store)
        now = self._monotonic()
        if delivered:
            self._seen_at = now
            self._found()
        if delivered >= ADMITTED_MAX:
            return 0.0
        lately = now < self._seen_at + _LATELY_S
        return spread(_BUSY_S if lately else self.interval_s, self._chance)
