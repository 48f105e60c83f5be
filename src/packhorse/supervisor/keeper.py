# SPDX-License-Identifier: MIT
"""Keeps the lease of a worker whose process lives and cannot keep it itself.

Usually a worker renews by itself, and this does nothing but look. A process that holds the
interpreter lock, or is stopped, cannot; as long as it lives, its jobs are still its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from packhorse.clock import SECOND_US, Clock
from packhorse.policies.lease import trusted_for_us
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Renewal, Renewed
from packhorse.supervisor.desk import StoreDesk
from packhorse.supervisor.judge import needs_renewal
from packhorse.supervisor.messages import Hello
from packhorse.supervisor.process import ChildProcess

__all__ = ["LeaseKeeper"]

_LOG: Final = logging.getLogger("packhorse.supervisor")


class LeaseKeeper:
    """Renews for one process, when it is needed."""

    def __init__(self, child: ChildProcess, hello: Hello, desk: StoreDesk, clock: Clock) -> None:
        self.renewals = 0  #: how often it was needed
        self._child = child
        self._desk = desk
        self._monotonic = clock.monotonic
        self._lease_s = hello.lease_us / SECOND_US
        self._trust_s = trusted_for_us(hello.lease_us) / SECOND_US
        self._renewal = Renewal(
            worker=hello.worker,
            lease_us=hello.lease_us,
            queues=hello.queues,
            tasks=tuple(hello.tasks),
            host=hello.host,
            pid=hello.pid,
            version=hello.version,
            concurrency=hello.concurrency,
        )
        self._kept_at = 0.0
        self._under_way: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Renew if the worker has not done so in time; does not wait for it."""
        if self._under_way is not None and not self._under_way.done():
            return
        newest = max(self._child.page.renewed_at, self._kept_at)
        if needs_renewal(self._monotonic(), renewed_at=newest, lease_s=self._lease_s):
            self._under_way = asyncio.ensure_future(self._renew(newest))

    async def _renew(self, newest: float) -> None:
        asked_at = self._monotonic()
        page = self._child.page
        if asked_at >= newest + self._lease_s:
            # Before the store is asked: from then on the lease would look whole to the worker.
            page.may_have_lapsed()
        running = len(page.running())
        try:
            renewed = await self._desk.ask(lambda store: self._ask(store, running))
        except Exception as error:  # noqa: BLE001 - tried again at the next look
            _LOG.warning("the lease of process %s could not be kept: %s", self._child.pid, error)
            return
        if self._child.death is not None or renewed is None:
            return  # it died meanwhile, and what it held is settled elsewhere
        if renewed.lapsed:
            page.may_have_lapsed()
        self._kept_at = asked_at
        self.renewals += 1
        page.keep_lease(asked_at + self._trust_s)

    def _ask(self, store: Store, running: int) -> Renewed | None:
        """In the desk's thread; a worker that is dead by now must not seem to live."""
        if self._child.death is not None:
            return None
        renewal = msgspec.structs.replace(self._renewal, running=running)
        return store.run(store.leases.renew(renewal))
