# SPDX-License-Identifier: MIT
"""A client that stands still in the middle of a transaction does not hold up everybody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

import pytest

from faults.proxy import Proxy
from packhorse import StoreUnavailable
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import QUEUE
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import names_in, postgres_store, submitting, until

_numbers: Final = count(1)
#: Longer than a store waits for an answer that does not come.
_GIVEN_UP_S: Final = 50.0
#: Less than half of what a rescue has beyond a lease: two may stand still, one after the other.
_HELD_UP_S: Final = 2.5


@pytest.fixture
def direct(own_server: PostgresServer) -> Iterator[str]:
    schema = f"still_{next(_numbers)}"
    yield f"{own_server.url()}?schema={schema}"
    drop_schema(own_server.url(), schema)


@pytest.mark.slow  # waits for time-outs of the server
@pytest.mark.timeout(180)
@pytest.mark.req("S3-28")
@pytest.mark.parametrize("patience", ["by the connection", "by each transaction"])
def test_others_go_on_when_a_client_stands_still_with_a_lock(
    direct: str, proxy: Proxy, own_server: PostgresServer, patience: str
) -> None:
    remote = postgres_store(direct.replace(str(own_server.port), str(proxy.port)))
    others = postgres_store(direct)
    # Submits to a queue with limits wait for each other.
    others.migrate()
    others.run(others.queues.declare([QueueSettings(QUEUE, concurrency=1)]))
    if patience == "by each transaction":
        remote._options.hold = False  # as behind a pooler
    remote.run(submitting(remote, "before"))

    with ThreadPoolExecutor(1) as threads:
        proxy.lose_answer_to(lambda _: _hold(proxy))
        still = threads.submit(_submitted, remote, "still")
        until(lambda: not proxy._flows.is_set())
        began = time.monotonic()
        others.run(submitting(others, "other"))
        took_s = time.monotonic() - began
        proxy.let_go()
        stored = still.result(_GIVEN_UP_S)

    assert took_s < _HELD_UP_S
    assert names_in(direct) == ["before", "other", *(["still"] if stored else [])]
    remote.close()
    others.close()


def _hold(proxy: Proxy) -> bool:
    """The question still goes to the server, which begins the transaction and locks."""
    proxy.hold()
    return False


def _submitted(store: PostgresStore, name: str) -> bool:
    try:
        store.run(submitting(store, name))
    except StoreUnavailable:
        return False
    return True
