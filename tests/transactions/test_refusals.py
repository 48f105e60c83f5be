# SPDX-License-Identifier: MIT
"""A connection that cannot serve is refused before anything is sent, with what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from packhorse import JobStatus, Packhorse
from packhorse.errors import StoreCopied, StoreUnavailable, UsageError
from packhorse.stores.transfer import Copied
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas
from tests.transactions.support import Orders, dsn, use_django


@pytest.mark.parametrize("given", [object(), 1, b"x"])
def test_anything_else_is_a_type_error_that_lists_what_is_taken(
    orders: Orders, given: object
) -> None:
    with pytest.raises(TypeError) as caught:
        orders.send.using(tx=given)

    for taken in ("sqlite3", "psycopg", "asyncpg", "SQLAlchemy Session", "Django"):
        assert taken in str(caught.value)


def test_an_unknown_alias_of_django_is_told(orders: Orders) -> None:
    use_django(orders)
    with pytest.raises(UsageError, match="it has: default, orders"):
        orders.send.using(tx="elsewhere")


def test_stores_that_are_no_sql_database_name_the_outbox() -> None:
    for url in ("memory://", f"{redis_url()}?namespace=tx"):
        app = Packhorse(url)
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("begin")
            with pytest.raises(UsageError, match="outbox"):
                app.task(name="send")(_send).using(tx=connection).enqueue("a")
        app.close()


def _send(order: str) -> str:
    return order


def test_a_connection_without_a_transaction_is_refused(orders: Orders) -> None:
    with orders.plain() as connection, pytest.raises(UsageError, match="begin one first"):
        orders.send.using(tx=connection).enqueue("a")
    with orders._engine() as engine:
        with engine.connect() as given, pytest.raises(UsageError, match=r"connection\.begin\(\)"):
            orders.send.using(tx=given).enqueue("a")
        with Session(engine) as session, pytest.raises(UsageError, match=r"session\.begin\(\)"):
            orders.send.using(tx=session).enqueue("a")
    use_django(orders)
    with pytest.raises(UsageError, match=r"transaction\.atomic"):
        orders.send.using(tx="orders").enqueue("a")

    assert orders.run() == []


def test_a_connection_that_is_closed_is_refused(orders: Orders) -> None:
    with orders.plain() as connection:
        connection.close()
        with pytest.raises(UsageError, match="it is closed: give one that is open"):
            orders.send.using(tx=connection).enqueue("a")

    assert orders.run() == []


def test_a_connection_that_commits_each_statement_is_refused(orders: Orders) -> None:
    driver = "pysqlite" if orders.is_sqlite else "psycopg"
    engine = sa.create_engine(orders.sqlalchemy_url(driver), isolation_level="AUTOCOMMIT")
    with engine.begin() as connection, pytest.raises(UsageError, match="commits each statement"):
        orders.send.using(tx=connection).enqueue("a")
    engine.dispose()

    assert orders.run() == []


def test_calls_of_different_transactions_are_not_submitted_together(orders: Orders) -> None:
    with orders.driver() as open_one, orders.plain() as other:
        calls = [orders.send.using(tx=tx).call("a") for tx in (open_one.tx, other)]
        with pytest.raises(UsageError, match="different transactions"):
            orders.app.enqueue_many(calls)
        with pytest.raises(UsageError, match="some name none"):
            orders.app.enqueue_many([calls[0], orders.send.call("b")])

    assert orders.run() == []


@pytest.mark.parametrize("known", [False, True])
def test_a_store_that_was_copied_takes_nothing(orders: Orders, *, known: bool) -> None:
    """Also on a connection that was used before."""
    store = orders.app.store
    with orders.plain() as connection:
        if known:
            connection.execute(orders.insert("before"))
            orders.send.using(tx=connection).enqueue("before")
            connection.commit()
        store.run(store.transfer.mark(Copied("elsewhere", 1)))
        connection.execute(orders.insert("a"))
        with pytest.raises(StoreCopied, match="elsewhere"):
            orders.send.using(tx=connection).enqueue("a")
        connection.commit()

    assert "a" in orders.names()  # the transaction was not harmed


# ------------------------------------------------------------------------------------------- SQLite


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    with Orders(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


def test_the_file_must_be_the_main_database(sqlite: Orders, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "mine.db")) as connection:
        connection.execute("attach ? as jobs", (sqlite.path,))
        connection.execute("begin")
        with pytest.raises(UsageError, match="attached databases do not count"):
            sqlite.send.using(tx=connection).enqueue("a")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("begin")
        with pytest.raises(UsageError, match="in memory"):
            sqlite.send.using(tx=connection).enqueue("a")


def test_the_main_database_may_have_another_name(sqlite: Orders, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(sqlite.path)
    with contextlib.closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        connection.execute("begin")
        job = sqlite.send.using(tx=connection).enqueue("a")
        connection.commit()

    assert job.status() is JobStatus.QUEUED


def test_a_file_without_tables_is_refused(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/new.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        connection.execute("begin immediate")
        with pytest.raises(UsageError, match="packhorse migrate"):
            app.task(name="send")(_send).using(tx=connection).enqueue("a")
    app.close()


def test_a_locked_file_is_told_in_our_words(sqlite: Orders) -> None:
    with (
        sqlite.plain() as writer,
        contextlib.closing(sqlite3.connect(sqlite.path, timeout=0)) as connection,
    ):
        writer.execute("begin immediate")
        connection.execute("begin")
        with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
            sqlite.send.using(tx=connection).enqueue("a")


# --------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def postgres() -> Any:
    schema = schemas().take()
    with Orders(schemas().url_of(schema)) as made:
        yield made
    schemas().give(schema)


def test_a_transaction_that_failed_is_refused(postgres: Orders) -> None:
    with postgres.plain() as connection:
        with contextlib.suppress(psycopg.Error):
            connection.execute("select 1 / 0")
        with pytest.raises(UsageError, match="roll it back"):
            postgres.send.using(tx=connection).enqueue("a")


async def test_an_async_connection_wants_the_async_verb(postgres: Orders) -> None:
    async with postgres.driver_async() as open_one:
        with pytest.raises(UsageError, match="aenqueue"):
            postgres.send.using(tx=open_one.tx).enqueue("a")
        with pytest.raises(UsageError, match="acancel"):
            postgres.app.job("a").cancel(tx=open_one.tx)


def test_another_database_is_refused_and_its_transaction_goes_on(postgres: Orders) -> None:
    with postgres.plain() as own, own.transaction(force_rollback=True):
        postgres.send.using(tx=own).enqueue("a")  # which is remembered of this one alone
    with psycopg.connect(dsn(postgres.url), autocommit=True) as admin:
        admin.execute("drop database if exists tx_elsewhere")
        admin.execute("create database tx_elsewhere")
        try:
            where = dsn(postgres.url).rpartition("/")[0] + "/tx_elsewhere"
            with psycopg.connect(where) as connection:
                connection.execute("create table mine ()")
                with pytest.raises(UsageError, match="has no table"):
                    postgres.send.using(tx=connection).enqueue("a")
                connection.execute("select * from mine")
            schema = postgres.url.partition("schema=")[2]
            with contextlib.closing(Packhorse(f"{where}?schema={schema}")) as other:
                other.store.migrate()
            with psycopg.connect(where) as connection:
                connection.execute("select 1")
                with pytest.raises(UsageError, match="another database or server"):
                    postgres.send.using(tx=connection).enqueue("a")
        finally:
            admin.execute("drop database tx_elsewhere with (force)")


def test_a_role_that_may_not_write_is_told_so(postgres: Orders) -> None:
    schema = postgres.url.partition("schema=")[2]
    with postgres.plain() as connection:
        connection.execute("create role tx_stranger")
        connection.execute(f'grant usage on schema "{schema}" to tx_stranger')
        connection.execute("set local role tx_stranger")
        with pytest.raises(UsageError, match="grant it insert"):
            postgres.send.using(tx=connection).enqueue("a")
        connection.rollback()
