# SPDX-License-Identifier: MIT
"""Drain an outbox into the store; marks and batches keep two workers from delivering twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from packhorse.client.outbox import Outbox
from packhorse.core.clock import SECOND_US
from packhorse.runtime.services.service import Duty, ServiceContext
from packhorse.runtime.services.upkeep import Transfer

#: A worker on duty renews within this time, or another worker takes over.
_DUTY_US: Final = 10 * SECOND_US


class Drainer(Transfer):
    """Deliver what waits in an outbox."""

    name = "outbox"

    def __init__(
        self, context: ServiceContext, outbox: Outbox, *, found: Callable[[], None]
    ) -> None:
        super().__init__(context, found)
        self._outbox = outbox
        #: One worker drains, which saves the user's database the queries of all others.
        self._duty = Duty(context, outbox.duty.key, _DUTY_US)
        self._exists = False

    async def run_once(self) -> float:
        """Deliver one batch."""
        if not await self._duty.is_mine():
            return self._wait_s()
        if not self._exists:
            await asyncio.to_thread(self._outbox.create)
            self._exists = True
        return self._after(await self._outbox.adrain(self._store))
