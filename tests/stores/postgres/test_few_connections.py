# SPDX-License-Identifier: MIT
"""A worker lives on the connections it is granted, down to a single one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import psycopg
import pytest

from packhorse import Packhorse, StoreUnavailable
from packhorse.stores.postgres.connection import ThreadConnection
from packhorse.stores.postgres.pool import ConnectionOpener, SyncPool
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import PATIENCE_S, ask, postgres_store, submitting, until

_ROLE: Final = "frugal"
_SCHEMA: Final = "few"
_JOBS: Final = 10
_PATIENCE: Final = timedelta(seconds=60)


@pytest.fixture(params=[1, 2, 5])
def granted(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def frugal(own_server: PostgresServer, granted: int) -> Iterator[str]:
    """The URL of a store whose role may have so many connections."""
    ask(own_server.url(), f"create role {_ROLE} login connection limit {granted}")
    ask(own_server.url(), f"grant create on database postgres to {_ROLE}")
    yield f"{own_server.url(user=_ROLE)}?schema={_SCHEMA}"
    drop_schema(own_server.url(), _SCHEMA)
    ask(own_server.url(), f"drop owned by {_ROLE}")
    until(lambda: not _connected(own_server))
    ask(own_server.url(), f"drop role {_ROLE}")


def _connected(server: PostgresServer) -> int:
    counted = "select count(*) from pg_stat_activity where usename = %s"
    count: int = ask(server.url(), counted, _ROLE)[0][0]
    return count


def _app(url: str) -> Packhorse:
    app = Packhorse(url)

    @app.task
    async def echo(number: int) -> int:
        return number

    return app


@pytest.mark.timeout(150)
def test_a_worker_runs_its_jobs_on_few_connections(
    frugal: str, own_server: PostgresServer, granted: int
) -> None:
    async def story() -> list[int]:
        serving = _app(frugal)
        asking = _app(f"{own_server.url()}?schema={_SCHEMA}")
        worker = asyncio.create_task(serving.arun(handle_signals=False))
        await asyncio.to_thread(until, lambda: _is_served(own_server))
        jobs = [await asking.tasks["echo"].aenqueue(number) for number in range(_JOBS)]
        results = [await job.aresult(timeout=_PATIENCE) for job in jobs]
        assert _connected(own_server) <= granted
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await serving.aclose()
        await asking.aclose()
        return results

    assert asyncio.run(story()) == list(range(_JOBS))


def test_who_is_patient_for_a_moment_waits_no_longer_for_a_connection_in_use() -> None:
    pool = SyncPool(_unused, ConnectionOpener(PATIENCE_S), size=1, patience_s=PATIENCE_S)
    pool._slots.acquire()  # the only one is in use
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match=r"busy for 0\.01 s"):
        pool.take(0.01)

    assert time.monotonic() - began < PATIENCE_S / 2


def _unused() -> ThreadConnection:
    raise AssertionError("there is no room for another connection")


def _is_served(server: PostgresServer) -> bool:
    there = ask(server.url(), "select to_regclass(%s) is not null", f"{_SCHEMA}.workers")[0][0]
    return bool(there) and bool(ask(server.url(), f"select 1 from {_SCHEMA}.workers"))


@pytest.mark.parametrize("granted", [1])
def test_who_is_let_in_nowhere_is_told_what_to_do(frugal: str, own_server: PostgresServer) -> None:
    store = postgres_store(f"{frugal}&connect_timeout=1s")

    with (
        psycopg.connect(own_server.url(user=_ROLE)),
        pytest.raises(StoreUnavailable, match="CONNECTION LIMIT"),
    ):
        store.run(submitting(store, "job"))

    store.close()
