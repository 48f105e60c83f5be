# SPDX-License-Identifier: MIT
"""Writes down who has subscribed to topics, and retires those that no worker declares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.core.policies.records import Put, Record
from packhorse.core.releases import SEEN_EVERY_US
from packhorse.core.topics import (
    SUBSCRIBER_KIND,
    SubscriberDeclaration,
    doubted,
    put_subscriber,
    read_subscriber,
)
from packhorse.runtime.services.declarer import Declarer
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.protocol import Store

_INTERVAL_S: Final = 60.0


class Subscribers:
    """Declares the subscribers of its app, and looks after those of the queues it serves."""

    name = "subscribers"
    interval_s = _INTERVAL_S

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        *,
        subscribers: Sequence[SubscriberDeclaration] = (),
        queues: Collection[str] = (),
        release: str = "",
    ) -> None:
        self._monotonic = clock.monotonic
        self._chance = chance
        self._queues = queues
        self._own = {each.id.key for each in subscribers}
        self._declarer = Declarer(store, clock, SUBSCRIBER_KIND, subscribers, release)
        self._look_at = float("-inf")

    async def declare(self) -> None:
        """Write down the subscribers of this app, if that is due."""
        await self._declarer.declare()

    async def run_once(self) -> float:
        """Declare if that is due, and doubt those that workers have fallen silent about."""
        await self.declare()
        now = self._monotonic()
        if now >= self._look_at:
            await self._doubt()
            self._look_at = now + SEEN_EVERY_US / SECOND_US
        return spread(_INTERVAL_S, self._chance)

    async def _doubt(self) -> None:
        records, now_us = await self._declarer.records()
        for key, record in records.items():
            put = None if key in self._own else self._doubted(record, now_us)
            if put is not None:  # a conflict: another worker has declared it, or doubts it too
                await self._declarer.change(put)

    def _doubted(self, record: Record, now_us: int) -> Put | None:
        try:
            subscriber = read_subscriber(record.document)
        except msgspec.DecodeError:  # a newer release wrote it
            return None
        if subscriber.job.queue not in self._queues:
            return None
        after = doubted(subscriber, now_us)
        return None if after is None else put_subscriber(after, record.version)
