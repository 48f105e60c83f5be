# SPDX-License-Identifier: MIT
"""Stores of PostgreSQL that take over the connections of those that were closed before them.

To begin a session, and to read there what a schema holds, takes the server longer than most tests
do. All else of a store is new, also what it remembers of its jobs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections import defaultdict
from functools import cache
from typing import TypeVar

from packhorse.core.clock import Clock
from packhorse.stores.postgres.connection import LoopConnection, ThreadConnection
from packhorse.stores.postgres.pool import AsyncPool, LoopPools, SyncPool
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore

C = TypeVar("C", ThreadConnection, LoopConnection)


class KeptConnections:
    """Idle connections that belong to no store, by the schema that they were opened for."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._threads: defaultdict[str, list[ThreadConnection]] = defaultdict(list)
        self._loops: defaultdict[str, list[LoopConnection]] = defaultdict(list)

    def of_thread(self, schema: str) -> ThreadConnection | None:
        """One for a thread, if there is one."""
        return self._usable(self._threads[schema])

    def of_loop(self, schema: str) -> LoopConnection | None:
        """One for the running loop, if there is one."""
        found = self._usable(self._loops[schema])
        if found is not None:
            found._loop = asyncio.get_running_loop()
            found._opened_s = found._loop.time()
            found._loop.add_reader(found._socket, found._on_readable)
            found._watched = True
        return found

    def keep_of_threads(self, schema: str, pool: SyncPool) -> None:
        """Take over what lies idle in a pool."""
        with pool._lock:
            self._threads[schema] += pool._idle
            pool._idle.clear()

    def keep_of_loops(self, schema: str, pools: LoopPools) -> None:
        """Take over what lies idle in the pools of loops that do not run."""
        for loop, pool in pools._pools.items():
            if not (loop.is_running() or loop.is_closed()):
                for connection in pool._idle:
                    connection._unwatch()
                    if connection._timer is not None:
                        connection._timer.cancel()
                        connection._timer = None
                self._loops[schema] += pool._idle
                pool._idle.clear()

    def close(self) -> None:
        """Close all, in the process that opened them."""
        for schema in (*self._threads, *self._loops):
            while (thread := self._usable(self._threads[schema])) is not None:
                thread.close()
            while (loop := self._usable(self._loops[schema])) is not None:
                loop.close()

    def _usable(self, found: list[C]) -> C | None:
        while found and os.getpid() == self._process:
            connection = found.pop()
            if connection.usable:
                return connection
            connection.close()
        return None


@cache
def kept_connections() -> KeptConnections:
    """Those of this process."""
    made = KeptConnections()
    atexit.register(made.close)
    return made


class KeptStore(PostgresStore):
    """A store that opens a connection only when no earlier one has left one."""

    def __init__(self, url: str, clock: Clock) -> None:
        settings = PostgresSettings.from_url(url)
        self._schema = settings.schema
        super().__init__(settings, clock=clock)

    def close(self) -> None:
        for threads in (self._pools.hot, self._pools.other):
            kept_connections().keep_of_threads(self._schema, threads)
        for loops in (self._pools.hot_async, self._pools.other_async):
            kept_connections().keep_of_loops(self._schema, loops)
        super().close()

    def _sync_pool(self, size: int) -> SyncPool:
        pool = super()._sync_pool(size)
        opened = pool._connect
        pool._connect = lambda: kept_connections().of_thread(self._schema) or opened()
        return pool

    def _async_pool(self, size: int) -> AsyncPool:
        pool = super()._async_pool(size)
        opened = pool._connect

        async def connect() -> LoopConnection:
            return kept_connections().of_loop(self._schema) or await opened()

        pool._connect = connect
        return pool
