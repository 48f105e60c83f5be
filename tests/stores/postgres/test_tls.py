# SPDX-License-Identifier: MIT
"""PostgreSQL through TLS: the store works there, and refuses what it must not trust."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import StoreError
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.store import PostgresStore
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import PATIENCE_S, claiming, postgres_store, renewing, submitting
from tests.support.tls import Certificates, TlsProxy

Run = Callable[[PostgresStore, Plan[Any]], Any]
#: Larger than any buffer on the way, so that one answer comes in many records.
LARGE = 3_000_000
SECRET = "hunter2"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours")


@pytest.fixture
def proxy(own_server: PostgresServer, certificates: Certificates) -> Iterator[TlsProxy]:
    """In front of a server of one's own; its certificate is for `localhost`."""
    context = certificates.serving("localhost")
    made = TlsProxy("127.0.0.1", own_server.port, context, postgres=True)
    yield made
    made.close()


@pytest.fixture
def database(own_server: PostgresServer) -> Iterator[str]:
    with own_server.connect() as connection:
        connection.execute("create database encrypted")
    yield "encrypted"
    with own_server.connect() as connection:
        connection.execute("drop database encrypted with (force)")


def url_of(
    proxy: TlsProxy, trusted: Certificates, *, host: str = "localhost", mode: str = "verify-full"
) -> str:
    query = f"sslmode={mode}&sslrootcert={trusted.authority_file}&connect_timeout=5"
    return f"postgresql://postgres:{SECRET}@{host}:{proxy.port}/encrypted?{query}"


def test_jobs_travel_encrypted_both_ways(
    proxy: TlsProxy, certificates: Certificates, database: str, run: Run
) -> None:
    store = postgres_store(url_of(proxy, certificates))
    payload = b'"' + b"x" * LARGE + b'"'

    run(store, store.jobs.submit([new_job("small"), new_job("large", payload=payload)]))

    assert proxy.handshakes > 0
    found = run(store, store.inspection.job("large"))
    assert found.payload == payload
    run(store, store.leases.renew(renewing()))
    claimed = run(store, store.jobs.claim(claiming()))
    assert sorted(job.id for job in claimed.jobs) == ["large", "small"]
    store.close()


async def test_wakeups_come_through(
    proxy: TlsProxy, certificates: Certificates, database: str
) -> None:
    store = postgres_store(url_of(proxy, certificates))
    await asyncio.to_thread(store.migrate)
    listener = store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
    heard: frozenset[str] = frozenset()
    async with asyncio.timeout(PATIENCE_S):
        while f"queue:{QUEUE}" not in heard:
            await store.arun(store.jobs.submit([new_job()]))
            heard = await listener.wait(0.2)
    listener.close()
    store.close()


def test_a_certificate_of_strangers_is_refused(
    proxy: TlsProxy, database: str, tmp_path: Path, run: Run
) -> None:
    store = postgres_store(url_of(proxy, Certificates(tmp_path / "strangers")))

    with pytest.raises(StoreError, match=r"(?i)certificate") as refused:
        run(store, submitting(store, "job"))

    assert not getattr(refused.value, "maybe_stored", False)
    assert SECRET not in str(refused.value)
    assert proxy.handshakes == 0
    store.close()


def test_a_certificate_for_another_name_is_refused_unless_names_do_not_matter(
    proxy: TlsProxy, certificates: Certificates, database: str
) -> None:
    strict = postgres_store(url_of(proxy, certificates, host="127.0.0.1"))
    with pytest.raises(StoreError, match=r"(?i)certificate"):
        strict.run(submitting(strict, "job"))
    strict.close()

    trusting = postgres_store(url_of(proxy, certificates, host="127.0.0.1", mode="verify-ca"))
    trusting.run(submitting(trusting, "job"))
    assert trusting.run(trusting.inspection.job("job")) is not None
    trusting.close()


def test_a_server_that_asks_who_we_are_is_shown_a_certificate(
    own_server: PostgresServer, certificates: Certificates, database: str
) -> None:
    context = certificates.serving("localhost", ask_clients=True)
    proxy = TlsProxy("127.0.0.1", own_server.port, context, postgres=True)
    cert, key = certificates.client_files("packhorse")
    try:
        stranger = postgres_store(url_of(proxy, certificates))
        with pytest.raises(StoreError):
            stranger.run(submitting(stranger, "job"))
        stranger.close()

        known = postgres_store(f"{url_of(proxy, certificates)}&sslcert={cert}&sslkey={key}")
        known.run(submitting(known, "job"))
        assert known.run(known.inspection.job("job")) is not None
        known.close()
    finally:
        proxy.close()


def test_a_server_without_tls_is_refused_and_that_is_said(own_server: PostgresServer) -> None:
    store = postgres_store(f"{own_server.url()}?sslmode=require")

    with pytest.raises(StoreError, match="SSL"):
        store.run(submitting(store, "job"))
    store.close()
