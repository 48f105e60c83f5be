# SPDX-License-Identifier: MIT
"""`app.outbox(engine)`: jobs of a store elsewhere commit with the rows of a user's database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from packhorse import JobStatus, Packhorse, UsageError
from packhorse.client.encryption import Encryption, new_key
from packhorse.client.outbox.outbox import deliver
from packhorse.errors import ConfigError, JobNotFound
from packhorse.stores.requests import JobFilter
from tests.transactions.outbox_support import ENGINES, Outboxed
from tests.transactions.support import ASYNC, SYNC, Orders, Transaction

Sync = Callable[[Orders], AbstractContextManager[Transaction]]
Async = Callable[[Orders], AbstractAsyncContextManager[Transaction]]
every_library = pytest.mark.parametrize("open_tx", SYNC, ids=lambda each: each.__name__)
every_async_library = pytest.mark.parametrize("open_tx", ASYNC, ids=lambda each: each.__name__)


class Undone(Exception):
    """The user's own."""


@pytest.fixture
def orders(outboxed: Outboxed) -> Outboxed:
    return outboxed


@every_library
def test_a_job_commits_with_the_rows_of_another_database(orders: Outboxed, open_tx: Sync) -> None:
    with open_tx(orders) as open_one:
        open_one.execute(orders.insert("a"))
        job = orders.send.using(tx=open_one.tx).enqueue("a")
        assert job.deduplicated is None
    with contextlib.suppress(Undone), open_tx(orders) as open_one:
        open_one.execute(orders.insert("b"))
        gone = orders.send.using(tx=open_one.tx).enqueue("b")
        raise Undone

    assert orders.waiting() == 1
    assert orders.run() == ["a"]
    assert orders.names() == ["a"]
    assert job.result(timeout=10) == "A"
    assert job.deduplicated is False
    assert orders.waiting() == 0
    with pytest.raises(JobNotFound):
        gone.status()


@every_async_library
async def test_a_job_commits_with_an_async_transaction_elsewhere(
    orders: Outboxed, open_tx: Async
) -> None:
    if orders.is_sqlite and "sqlalchemy" not in getattr(open_tx, "__name__", ""):
        open_tx = Orders.sqlalchemy_session_async
    async with open_tx(orders) as open_one:
        await open_one.execute(orders.insert("a"))
        job = await orders.send.using(tx=open_one.tx).aenqueue("a")
        await orders.send.aenqueue_many([{"order": "b"}, {"order": "c"}], tx=open_one.tx)
        unwanted = await orders.send.using(tx=open_one.tx).aenqueue("d")
        await unwanted.acancel(tx=open_one.tx)

    assert await job.astatus() is JobStatus.QUEUED
    await orders.app.arun(burst=True, concurrency=1)
    assert orders.ran == ["a", "b", "c"]
    assert await unwanted.astatus() is JobStatus.CANCELLED


@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.__name__)
def test_an_outbox_is_given_as_a_url_or_an_engine(
    database: str, store_url: str, engine: Callable[[Any], Any]
) -> None:
    with Outboxed(database, store_url, engine) as orders:
        assert orders.outbox.state() == (0, None)
        with orders.driver() as open_one:
            orders.send.using(tx=open_one.tx).enqueue("a")

        waiting, oldest_s = orders.outbox.state()
        assert waiting == 1
        assert oldest_s is not None
        assert 0 <= oldest_s < 60
        assert orders.run() == ["a"]
        assert orders.outbox.state() == (0, None)


def test_a_connection_of_sqlite3_is_looked_at_once_and_again_when_the_table_is_gone(
    tmp_path: Path,
) -> None:
    app, asked = Packhorse("memory://"), list[str]()
    outbox = app.outbox(f"sqlite:///{tmp_path / 'own.db'}")
    outbox.create()
    with contextlib.closing(sqlite3.connect(tmp_path / "own.db", isolation_level=None)) as own:
        submit = app.task(name="send")(lambda order: None).using(tx=own)
        own.execute("begin")
        submit.enqueue(order="a")
        own.set_trace_callback(asked.append)
        submit.enqueue(order="b")
        own.set_trace_callback(None)
        own.execute("drop table packhorse_outbox")
        with pytest.raises(UsageError, match="no table packhorse_outbox"):
            submit.enqueue(order="c")
        own.execute("rollback")
        own.execute("begin")
        submit.enqueue(order="d")
        own.execute("commit")

    assert [text.split()[0] for text in asked] == ["pragma", "insert"]
    assert outbox.state().waiting == 1
    app.close()


def test_a_verb_that_names_the_job_looks_into_the_outbox(orders: Outboxed) -> None:
    with orders.driver() as open_one:
        jobs = orders.send.enqueue_many([{"order": name} for name in "abcde"], tx=open_one.tx)
        with pytest.raises(JobNotFound):
            jobs[0].status()

    first, second, third, fourth, fifth = [orders.app.job(job.id) for job in jobs]
    assert first.status() is JobStatus.QUEUED
    assert second.cancel()
    assert third.explain().status is JobStatus.QUEUED
    fourth.signal("go")
    assert fifth.info().task == "send"


def test_jobs_and_cancels_arrive_in_the_order_they_were_written(orders: Outboxed) -> None:
    early = orders.send.enqueue("early")
    with orders.driver() as open_one, contextlib.suppress(Undone):
        kept = orders.send.using(tx=open_one.tx).enqueue("a")
        early.cancel(tx=open_one.tx)
        with open_one.savepoint():
            orders.send.using(tx=open_one.tx).enqueue("undone")
            raise Undone
    with orders.driver() as open_one:
        orders.send.enqueue_many([{"order": name} for name in "bcd"], tx=open_one.tx)

    assert orders.run() == ["a", "b", "c", "d"]
    assert early.status() is JobStatus.CANCELLED
    assert kept.result() == "A"


def test_a_key_that_is_taken_leads_to_the_job_that_has_it(orders: Outboxed) -> None:
    with orders.driver() as open_one:
        first = orders.send.using(tx=open_one.tx, idempotency_key="k").enqueue("a")
        second = orders.send.using(tx=open_one.tx, idempotency_key="k").enqueue("a")

    assert second.info().id == first.id
    assert second.deduplicated is True
    assert orders.run() == ["a"]
    assert second.result() == "A"


def test_what_would_be_refused_is_a_dead_letter(orders: Outboxed) -> None:
    with orders.driver() as open_one:
        orders.send.using(tx=open_one.tx, idempotency_key="k").enqueue("a")
        other = orders.send.using(tx=open_one.tx, idempotency_key="k").enqueue("b")

    info = other.info()
    assert (info.status, info.dead_reason) == (JobStatus.DEAD, "rejected")
    assert "idempotency" in str(info.error)
    assert orders.run() == ["a"]


@pytest.mark.req("S2-6")
def test_a_batch_that_was_delivered_and_not_removed_is_not_delivered_again(
    orders: Outboxed,
) -> None:
    """As after a crash in between, even once the jobs have ended and are forgotten."""
    with orders.driver() as open_one:
        orders.send.enqueue_many([{"order": "a"}, {"order": "b"}], tx=open_one.tx)
    store, outbox = orders.app.store, orders.outbox
    batch = outbox._take()
    assert batch is not None
    deliver(store, batch)
    assert orders.waiting() == 2
    with orders.elsewhere() as app:
        app.run(burst=True, concurrency=1)
    assert store.run(store.jobs.delete(JobFilter(), limit=10)).removed == 2

    outbox._held = batch.id  # else another process waits a while before it takes over
    assert outbox.drain(store) == 2
    assert orders.waiting() == 0
    assert orders.run() == ["a", "b"]


def test_jobs_are_encrypted_in_the_outbox_too(orders: Outboxed) -> None:
    orders.app.close()
    orders.use(Packhorse(orders.store_url, encryption=Encryption({"k1": new_key()})))
    with orders.driver() as open_one:
        job = orders.send.using(tx=open_one.tx).enqueue("secret-text")

    with orders.plain() as connection:
        rows = connection.execute(f"select request from {orders.outbox_table}").fetchall()
    assert "secret-text" not in str(rows)
    assert orders.run() == ["secret-text"]
    assert job.result() == "SECRET-TEXT"


def test_a_delay_begins_when_the_job_is_written(orders: Outboxed) -> None:
    with orders.driver() as open_one:
        job = orders.send.using(tx=open_one.tx, delay="1h").enqueue("a")

    info = job.info()
    assert info.status is JobStatus.PENDING


def test_a_connection_of_yet_another_database_is_refused(orders: Outboxed, tmp_path: Path) -> None:
    with (
        Outboxed(f"sqlite:///{tmp_path}/other.db", orders.store_url) as strange,
        strange.driver() as open_one,
        pytest.raises(UsageError, match="nothing was"),
    ):
        orders.send.using(tx=open_one.tx).enqueue("a")


def test_without_its_table_an_outbox_is_refused_with_what_to_do(
    database: str, store_url: str
) -> None:
    orders = Outboxed(database, store_url)
    Orders.__enter__(orders)
    with orders.driver() as open_one:
        with pytest.raises(UsageError, match=r"create\(\)"):
            orders.send.using(tx=open_one.tx).enqueue("a")
        open_one.execute(orders.insert("a"))
    assert orders.names() == ["a"]
    orders.outbox.create()
    orders.__exit__()


@pytest.mark.parametrize("engine", [3, "mysql://host/shop", "sqlite://", "shop.db"])
def test_what_is_no_engine_is_refused(engine: object) -> None:
    with pytest.raises(ConfigError, match="SQLAlchemy"):
        Packhorse("memory://").outbox(engine)


@pytest.mark.parametrize("table", ["Outbox", "a b", "x;drop", "a.b.c", "a.b"])
def test_a_name_that_is_no_table_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="table"):
        Packhorse("memory://").outbox("sqlite:///shop.db", table=table)
