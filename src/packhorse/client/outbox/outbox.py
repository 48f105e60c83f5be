# SPDX-License-Identifier: MIT
"""An outbox: made once, written by users' transactions, drained into the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from packhorse.client.asides import Aside, AsideSteps, ask, ask_async
from packhorse.client.outbox.databases import Database
from packhorse.client.outbox.delivery import deliver, forget
from packhorse.client.outbox.table import OutboxBatch, OutboxTable
from packhorse.client.sealed_store import SealedStore, plain_store
from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.records import RecordId
from packhorse.stores.intake import IntakeRequest, UserStatement
from packhorse.stores.protocol import Store


class OutboxState(NamedTuple):
    """What waits in an outbox."""

    waiting: int  #: jobs and cancels, counted up to 10,000
    oldest_s: float | None  #: for how long the first of them has been waiting


class Outbox:
    """A table in a database of yours, for `tx=` where the app's store lies elsewhere."""

    def __init__(self, database: Database, table: str, clock: Clock) -> None:
        self._database = database
        self._table = OutboxTable(table, database.family, clock)
        self._identity: object = None
        self._held: str | None = None  # a batch that could not be delivered
        self.family = database.family
        self.label = f"{database.label}, table {table}"  #: where it is, without secrets

    def __repr__(self) -> str:
        return f"<Outbox {self.label}>"

    def create(self) -> None:
        """Make its table, unless it is there; `packhorse migrate` and workers do the same."""
        try:
            self._database.work(self._table.create)
        except Exception:
            if not self.exists():  # else another process was a moment earlier
                raise

    async def acreate(self) -> None:
        """As `create`, without blocking the event loop."""
        await asyncio.to_thread(self.create)

    def state(self) -> OutboxState:
        """How many jobs and cancels wait, and for how long."""
        waiting, oldest_us = self._database.work(self._table.waiting)
        return OutboxState(waiting, None if oldest_us is None else oldest_us / SECOND_US)

    async def astate(self) -> OutboxState:
        """As `state`, without blocking the event loop."""
        return await asyncio.to_thread(self.state)

    def close(self) -> None:
        """Let go of connections that were opened for it; an engine of yours stays as it is."""
        self._database.close()

    @property
    def duty(self) -> RecordId:
        """The record that says which worker drains it."""
        return RecordId("duty", "", f"outbox:{self.label}"[:400])

    def exists(self) -> bool:
        """Whether its table is there; which one that is, is asked again."""
        probe = self._table.probe()
        rows = self._database.work(lambda way: way.rows(probe))
        self._identity, exists, _ = self._table.read_probe(rows)
        return exists

    # ------------------------------------------------------------------------ for `tx=`

    def probe(self) -> UserStatement:
        """Ask a connection, without harm to its transaction, which table it would write to."""
        return self._table.probe()

    def unfit(self, rows: Sequence[Sequence[Any]]) -> str | None:
        """What is wrong with a connection that answered this; None: it writes to this outbox."""
        identity, exists, may_insert = self._table.read_probe(rows)
        if identity != self._identity:
            return (
                f"it is connected to another database than the outbox ({self.label}), or sees "
                "another table there: give a connection to the same one"
            )
        if not exists:
            return (
                f"its database has no table {self._table.name} yet: call create() of the outbox, "
                "or run 'packhorse migrate' for this app, before the transaction begins"
            )
        if not may_insert:
            return f"its role may not write: grant it insert on {self._table.name}"
        return None

    def append(self, store: Store, requests: Sequence[IntakeRequest]) -> UserStatement:
        """Add requests; their values are sealed if those of the store are."""
        if isinstance(store, SealedStore):
            requests = store.sealed_requests(requests)
        return self._table.append(requests)

    # ----------------------------------------------------------------------- into the store

    def drain(self, store: Store) -> int:
        """Deliver one batch; says how many requests that were."""
        plain = plain_store(store)  # what was sealed when it was written stays as it is
        return ask(plain, self._draining(plain))

    async def adrain(self, store: Store) -> int:
        """As `drain`, without blocking the event loop."""
        plain = plain_store(store)
        return await ask_async(plain, self._draining(plain))

    def _draining(self, store: Store) -> AsideSteps[int]:
        batch: OutboxBatch | None = yield Aside(self._take)
        if batch is None:
            return 0
        self._held = batch.id
        yield from deliver(store, batch)
        yield Aside(lambda: self._database.work(lambda way: self._table.remove(way, batch.id)))
        self._held = None
        yield from forget(store, batch)
        return len(batch.requests)

    def _take(self) -> OutboxBatch | None:
        if not self._database.work(self._table.any):
            return None
        return self._database.work(lambda way: self._table.take(way, self._held))

    def is_empty(self) -> bool:
        """Whether nothing waits, nor is being delivered; a table that is not there is empty."""
        with contextlib.suppress(Exception):
            return not self._database.work(self._table.any)
        return True
