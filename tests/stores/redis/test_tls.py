# SPDX-License-Identifier: MIT
"""Redis through TLS: the store works there, and refuses what it must not trust."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import StoreError
from packhorse.stores.plan import Plan
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.conformance.samples import new_job
from tests.servers.redis import RedisServer
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import PATIENCE_S, claim, names_in, submitting
from tests.support.children import in_threads
from tests.support.tls import Certificates, TlsProxy

Run = Callable[[RedisStore, Plan[Any]], Any]
#: Larger than any buffer on the way, so that one answer comes in many records.
LARGE = 3_000_000


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours")


@pytest.fixture
def encrypted(server: RedisServer, certificates: Certificates) -> Iterator[TlsProxy]:
    """In front of a server of one's own; its certificate is for `localhost`."""
    made = TlsProxy(*server.address, certificates.serving("localhost"))
    yield made
    made.close()


@pytest.fixture(params=["run", "arun"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "run":
        return lambda store, plan: store.run(plan)
    return lambda store, plan: asyncio.run(store.arun(plan))


def test_jobs_travel_encrypted_both_ways(
    opening: Opening, encrypted: TlsProxy, certificates: Certificates, run: Run
) -> None:
    trusted = certificates.authority_file
    store = opening(f"rediss://localhost:{encrypted.port}", tls_ca=str(trusted))
    payload = b'"' + b"x" * LARGE + b'"'

    run(store, store.jobs.submit([new_job("small"), new_job("large", payload=payload)]))

    assert encrypted.handshakes > 0
    found = run(store, store.inspection.job("large"))
    assert found.payload == payload
    assert sorted(job.id for job in claim(store)) == ["large", "small"]


def test_threads_and_a_loop_share_encrypted_connections(
    opening: Opening, encrypted: TlsProxy, certificates: Certificates
) -> None:
    trusted = certificates.authority_file
    store = opening(f"rediss://localhost:{encrypted.port}", tls_ca=str(trusted))

    async def from_the_loop() -> None:
        plans = (submitting(store, f"loop-{number}") for number in range(50))
        await asyncio.gather(*(store.arun(plan) for plan in plans))

    def from_a_thread(number: int) -> None:
        for each in range(10):
            store.run(submitting(store, f"thread-{number}-{each}"))

    in_threads(
        lambda: asyncio.run(from_the_loop()), *(lambda n=n: from_a_thread(n) for n in range(5))
    )

    assert len(names_in(store)) == 100


def test_wakeups_come_through(
    opening: Opening, encrypted: TlsProxy, certificates: Certificates
) -> None:
    trusted = certificates.authority_file
    store = opening(f"rediss://localhost:{encrypted.port}", tls_ca=str(trusted))

    async def heard() -> frozenset[str]:
        listener = store.wakeups.listen(frozenset({"queue:mail"}))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await store.arun(store.jobs.submit([new_job(queue="mail")]))
                topics = await listener.wait(0.2)
                if "queue:mail" in topics:
                    listener.close()
                    return topics

    assert "queue:mail" in asyncio.run(heard())


def test_a_certificate_of_strangers_is_refused_and_what_to_do_is_told(
    opening: Opening, encrypted: TlsProxy, tmp_path: Path, run: Run
) -> None:
    strangers = Certificates(tmp_path / "strangers")
    store = opening(f"rediss://localhost:{encrypted.port}", tls_ca=str(strangers.authority_file))

    with pytest.raises(StoreError, match=r"(?i)certificate") as refused:
        run(store, submitting(store, "job"))

    assert not getattr(refused.value, "maybe_stored", False)
    assert encrypted.handshakes == 0


def test_a_certificate_for_another_name_is_refused_unless_names_do_not_matter(
    opening: Opening, encrypted: TlsProxy, certificates: Certificates
) -> None:
    where, trusted = f"rediss://127.0.0.1:{encrypted.port}", str(certificates.authority_file)
    store = opening(where, tls_ca=trusted)

    with pytest.raises(StoreError, match=r"(?i)certificate"):
        store.run(submitting(store, "job"))

    trusting = opening(where, tls_verify="false")
    trusting.run(submitting(trusting, "job"))
    assert names_in(trusting) == ["job"]


def test_a_server_that_asks_who_we_are_is_shown_a_certificate(
    opening: Opening, server: RedisServer, certificates: Certificates
) -> None:
    proxy = TlsProxy(*server.address, certificates.serving("localhost", ask_clients=True))
    where, trusted = f"rediss://localhost:{proxy.port}", str(certificates.authority_file)
    try:
        stranger = opening(where, tls_ca=trusted)
        with pytest.raises(StoreError):
            stranger.run(submitting(stranger, "job"))

        cert, key = certificates.client_files("packhorse")
        known = opening(where, tls_ca=trusted, tls_cert=str(cert), tls_key=str(key))
        known.run(submitting(known, "job"))
        assert names_in(known) == ["job"]
    finally:
        proxy.close()


def test_a_server_that_does_not_speak_tls_is_told_in_time(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(f"rediss://localhost:{server.address[1]}", connect_timeout=1)

    with pytest.raises(StoreError):
        store.run(submitting(store, "job"))
