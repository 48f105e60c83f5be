# SPDX-License-Identifier: MIT
"""Write the subscribers of topics to the store, and retire those that no worker declares."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from packhorse.core.clock import SECOND_US
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
from packhorse.runtime.services.service import Service, ServiceContext


class Subscribers(Service):
    """Declare the subscribers of an app, and retire old ones in the queues its worker serves."""

    name = "subscribers"
    interval_s = 60.0

    def __init__(
        self,
        context: ServiceContext,
        *,
        subscribers: Sequence[SubscriberDeclaration] = (),
        queues: Collection[str] = (),
        release: str = "",
    ) -> None:
        super().__init__(context)
        self._queues = queues
        self._own = {each.id.key for each in subscribers}
        self._declarer = Declarer(context, SUBSCRIBER_KIND, subscribers, release)
        self._doubt_at = float("-inf")

    async def declare(self) -> None:
        """Write the subscribers of this app, if that is due."""
        await self._declarer.declare()

    async def run_once(self) -> float:
        """Declare if that is due, and start to retire subscribers that no worker declares."""
        await self.declare()
        now = self._monotonic()
        if now >= self._doubt_at:
            await self._doubt()
            self._doubt_at = now + SEEN_EVERY_US / SECOND_US
        return self._wait_s()

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
