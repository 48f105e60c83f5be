# SPDX-License-Identifier: MIT
"""A real standby: it is read from, refuses writes as what it is, and is used once promoted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packhorse.errors import StoreUnavailable
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.store import PostgresStore
from packhorse.testing.conformance.samples import QUEUE
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    claiming,
    postgres_store,
    renewing,
    submitting,
    until,
)

Run = Callable[[PostgresStore, Plan[Any]], Any]


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer()
    store = postgres_store(server.url())
    store.run(submitting(store, "before"))
    store.close()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    server = primary.standby()
    yield server
    server.remove()


def test_a_standby_is_read_from_and_takes_no_writes(standby: PostgresServer, run: Run) -> None:
    store = postgres_store(standby.url())

    for refused in (
        submitting(store, "job"),
        store.leases.renew(renewing()),
        store.jobs.cancel("before"),
        store.queues.pause(QUEUE, paused=True),
    ):
        with pytest.raises(StoreUnavailable, match="this server takes no writes") as told:
            run(store, refused)
        assert not told.value.maybe_stored

    assert run(store, store.inspection.job("before")) is not None
    assert store.facts()["writable"] == "no"
    store.close()


def test_what_the_primary_stores_is_seen_on_its_standby(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    here, there = postgres_store(primary.url()), postgres_store(standby.url())

    here.run(submitting(here, "job"))

    until(lambda: there.run(there.inspection.job("job")) is not None)
    here.close()
    there.close()


async def test_a_store_is_used_again_once_its_standby_is_promoted(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    store = postgres_store(standby.url())
    listener = store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))  # which a standby refuses
    with pytest.raises(StoreUnavailable, match="this server takes no writes"):
        await store.arun(submitting(store, "job"))
    primary.stop()

    ask(standby.url(), "select pg_promote(true, 30)")

    async with asyncio.timeout(PATIENCE_S):
        await store.arun(submitting(store, "job"))
        await store.arun(store.leases.renew(renewing()))
        claimed = await store.arun(store.jobs.claim(claiming()))
        while f"queue:{QUEUE}" not in await listener.wait(1):
            await store.arun(submitting(store, "another"))
    assert [job.id for job in claimed.jobs] == ["before", "job"]
    listener.close()
    store.close()
