# SPDX-License-Identifier: MIT
"""Transactions of users take no lock of ours: they hold up nothing, and each other not either."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from packhorse import JobStatus, Packhorse
from packhorse.errors import ConfigError, JobNotFound
from packhorse.runtime.services import upkeep
from tests.servers.schemas import schemas
from tests.transactions.support import Orders

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S = 30.0


@pytest.fixture
def postgres() -> Iterator[Orders]:
    schema = schemas().take()
    with Orders(schemas().url_of(schema)) as made:
        yield made
    schemas().give(schema)


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_a_key_in_an_open_transaction_blocks_no_other(postgres: Orders, level: str) -> None:
    with postgres.driver() as first:
        first.execute(f"set transaction isolation level {level}")
        slow = postgres.send.using(tx=first.tx, idempotency_key="k").enqueue("a")
        with postgres.driver() as second:
            second.execute(f"set transaction isolation level {level}")
            second.execute("set local lock_timeout = 100")
            fast = postgres.send.using(tx=second.tx, idempotency_key="k").enqueue("a")
        assert postgres.run() == ["a"]
        assert fast.status() is JobStatus.COMPLETED

    assert slow.info().id == fast.id
    assert slow.deduplicated is True


def test_two_hundred_transactions_with_keys_in_opposite_orders_do_not_deadlock(
    postgres: Orders,
) -> None:
    keys = [f"key-{number}" for number in range(20)]
    failed: list[BaseException] = []
    seeds = iter(range(200))
    turn = threading.Lock()

    def transact(connection: psycopg.Connection[Any], seed: int) -> None:
        chosen = random.Random(seed).sample(keys, len(keys))
        with connection.transaction():
            connection.execute("set local lock_timeout = 5000")
            for key in chosen[: 6 + seed % 5]:
                postgres.send.using(tx=connection, idempotency_key=key).enqueue(key)

    def work() -> None:
        try:
            with psycopg.connect(postgres.conninfo) as connection:
                while True:
                    with turn:
                        seed = next(seeds, None)
                    if seed is None:
                        return
                    transact(connection, seed)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failed == []
    postgres.run()

    assert sorted(postgres.ran) == sorted(keys)


def test_an_open_transaction_holds_up_nothing_and_its_job_is_neither_lost_nor_early(
    postgres: Orders,
) -> None:
    store = postgres.app.store
    with postgres.driver() as open_one:
        job = postgres.send.using(tx=open_one.tx).enqueue("late")
        for name in ("a", "b"):
            postgres.send.enqueue(name)
        assert postgres.run() == ["a", "b"]
        store.run(store.upkeep.promote(limit=10))
        store.run(store.upkeep.expire(limit=10))
        store.run(store.upkeep.park(after_us=1, limit=10))
        store.run(store.upkeep.prune(limit=10))
        store.run(store.leases.orphans((), limit=10))
        with postgres.driver() as other:
            postgres.send.using(tx=other.tx).enqueue("c")
        assert postgres.run() == ["a", "b", "c"]
        with pytest.raises(JobNotFound):
            job.status()

    assert postgres.run() == ["a", "b", "c", "late"]


def test_a_commit_after_later_ones_is_not_passed_over(postgres: Orders) -> None:
    with postgres.driver() as early:
        postgres.send.using(tx=early.tx).enqueue("early")
        for name in "abc":
            with postgres.driver() as late:
                postgres.send.using(tx=late.tx).enqueue(name)
            assert name in postgres.run()

    assert postgres.run() == ["a", "b", "c", "early"]


@contextlib.asynccontextmanager
async def working(app: Packhorse) -> Any:
    worker = asyncio.create_task(app.arun(concurrency=1))
    try:
        yield
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


@pytest.mark.parametrize("polls", [True, False])
async def test_a_worker_admits_what_was_committed(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, *, polls: bool
) -> None:
    """By its poll, or without it because the commit is told of."""
    if not polls:
        monkeypatch.setattr(upkeep.Admitter, "interval_s", PATIENCE_S * 10)
        monkeypatch.setattr(upkeep, "_BUSY_S", PATIENCE_S * 10)
    async with working(orders.app):
        await (await orders.send.aenqueue("before")).aresult(timeout=PATIENCE_S)
        open_tx: Callable[[Orders], Any] = Orders.driver if polls else Orders.sqlalchemy_session
        for order in ("a", "on a known connection"):
            with open_tx(orders) as open_one:
                orders.send.using(tx=open_one.tx).enqueue(order)
            while order not in orders.ran:
                await asyncio.sleep(0.01)

    assert orders.ran == ["before", "a", "on a known connection"]


async def test_a_commit_can_carry_the_wake_up(
    postgres: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep.Admitter, "interval_s", PATIENCE_S * 10)
    async with working(postgres.app):
        await (await postgres.send.aenqueue("before")).aresult(timeout=PATIENCE_S)
        with postgres.driver() as open_one:
            postgres.send.using(tx=open_one.tx).enqueue("not told")  # the connection is known now
            postgres.send.using(tx=open_one.tx, notify=True).enqueue("a")
        while "a" not in postgres.ran:
            await asyncio.sleep(0.01)


def test_a_submit_on_a_known_connection_is_one_statement(postgres: Orders, tmp_path: Path) -> None:
    with postgres.driver() as open_one, (tmp_path / "sent").open("w+b") as sent:
        for _ in range(10):  # by then psycopg has prepared it
            postgres.send.using(tx=open_one.tx).enqueue("a")
        open_one.tx.pgconn.trace(sent.fileno())
        postgres.send.using(tx=open_one.tx).enqueue("a")
        open_one.tx.pgconn.untrace()
        sent.seek(0)
        messages = [line.split(b"\t") for line in sent.read().splitlines()]

    ours = [message[3] for message in messages if message[1] == b"F"]
    assert ours == [b"Bind", b"Describe", b"Execute", b"Sync"]


@pytest.mark.parametrize("bad", ["no JSON", '{"job": 1}', None])
def test_what_cannot_be_admitted_stops_no_other(postgres: Orders, bad: str | None) -> None:
    schema = postgres.url.partition("schema=")[2]
    long = secrets.token_hex(4000)  # more than an index takes
    unfit = f'{{"job":{{"id":"{long}","task":"send","payload":"e30="}}}}'
    with postgres.driver() as open_one:
        postgres.send.using(tx=open_one.tx).enqueue("a")
        open_one.tx.execute(
            f'insert into "{schema}".requests (at_us, request) values (1, %s)', (bad or unfit,)
        )
        postgres.send.using(tx=open_one.tx).enqueue("b")

    assert postgres.run() == ["a", "b"]


def test_a_name_that_no_index_takes_is_refused_at_once(orders: Orders) -> None:
    with orders.driver() as open_one, pytest.raises(ConfigError, match="shorter"):
        orders.send.using(tx=open_one.tx, job_id="x" * 1_001).enqueue("a")


def test_two_admitters_leave_it_to_one(postgres: Orders) -> None:
    with postgres.driver() as open_one:
        for number in range(50):
            postgres.send.using(tx=open_one.tx).enqueue(str(number))
    apps = [Packhorse(postgres.url) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda app=app: app.store.run(app.store.intake.admit()))
        for app in apps
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for app in apps:
        app.close()

    assert postgres.run() == [str(number) for number in range(50)]
