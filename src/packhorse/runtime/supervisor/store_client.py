# SPDX-License-Identifier: MIT
"""The supervisor's access to the store, and the leases it keeps for its workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.lease import trusted_for_us
from packhorse.runtime.supervisor.child_process import ChildProcess
from packhorse.runtime.supervisor.liveness import needs_renewal
from packhorse.runtime.supervisor.messages import Hello
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Renewal, Renewed

T = TypeVar("T")


class StoreClient:
    """Ask the store in a thread, so that probes and signals never wait for it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packhorse-supervisor-store")

    def prepare(self) -> None:
        """Connect in the thread now: there is no time for it when a lease has to be renewed."""
        self._thread.submit(self._answer, lambda _store: None)

    async def ask(self, question: Callable[[Store], T]) -> T:
        """Call a function with the store; raise what the store raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answer, question)

    def close(self) -> None:
        """Close the store after the last call, without waiting for one that hangs."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _answer(self, question: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = open_store(self._url)
        return question(self._store)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()


_LOG: Final = logging.getLogger("packhorse.supervisor")


class LeaseKeeper:
    """Renew the lease of a process that lives and cannot renew it itself.

    A process that holds the interpreter lock, or is stopped, cannot. Its jobs are still its own.
    """

    def __init__(
        self, child: ChildProcess, hello: Hello, client: StoreClient, clock: Clock
    ) -> None:
        self.renewals = 0  #: how often that was necessary
        self._child = child
        self._client = client
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
        """Start a renewal if the worker has not renewed in time."""
        if self._under_way is not None and not self._under_way.done():
            return
        newest = max(self._child.memory.renewed_at, self._kept_at)
        if needs_renewal(self._monotonic(), renewed_at=newest, lease_s=self._lease_s):
            self._under_way = asyncio.ensure_future(self._renew(newest))

    async def _renew(self, newest: float) -> None:
        asked_at = self._monotonic()
        memory = self._child.memory
        if asked_at >= newest + self._lease_s:
            # Before the store is asked: after that the lease would look whole to the worker.
            memory.may_have_lapsed()
        try:
            renewed = await self._client.ask(self._ask)
        except Exception as error:  # noqa: BLE001 - tried again at the next look
            _LOG.warning("the lease of process %s could not be kept: %s", self._child.pid, error)
            return
        if self._child.death is not None or renewed is None:
            return  # it died meanwhile, and its jobs are recovered elsewhere
        if renewed.lapsed:
            memory.may_have_lapsed()
        self._kept_at = asked_at
        self.renewals += 1
        memory.keep_lease(asked_at + self._trust_s)

    def _ask(self, store: Store) -> Renewed | None:
        """Renew in the client's thread, unless the worker is dead by now."""
        if self._child.death is not None:
            return None
        renewal = msgspec.structs.replace(self._renewal, quiet=self._child.quiet)
        return store.run(store.leases.renew(renewal))
