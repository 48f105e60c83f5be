# SPDX-License-Identifier: MIT
"""What a PostgreSQL URL may say, and what is said of a wrong one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg
import pytest

from packhorse import ConfigError, QueueClosed
from packhorse.stores import open_store
from packhorse.stores.postgres import connection as connecting
from packhorse.stores.postgres.connection import StartupOptions, connection_arguments
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.testing.conformance.samples import QUEUE
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    postgres_store,
    submitting,
    until,
    waiting_for_locks,
)

_STRICT: Final = "strict"


def test_a_url_alone_is_enough() -> None:
    settings = PostgresSettings.from_url("postgresql://anna@db.example/shop")

    assert (settings.schema, settings.prefix) == ("packhorse", "")
    assert "host=db.example" in settings.conninfo
    assert "dbname=shop" in settings.conninfo
    assert settings.listen_conninfo is None
    assert settings.prepare


def test_options_of_the_store_and_of_libpq_stand_beside_each_other() -> None:
    settings = PostgresSettings.from_url(
        "postgres://db/shop?schema=jobs&prefix=ph_&pool=3&hot_pool=2&statement_timeout=5s"
        "&connect_timeout=2s&prepare=off&sslmode=require&application_name=web"
        "&listen_url=postgresql%3A%2F%2Fdirect%2Fshop"
    )

    assert (settings.schema, settings.prefix) == ("jobs", "ph_")
    assert (settings.pool, settings.hot_pool) == (3, 2)
    assert (settings.statement_timeout_s, settings.connect_timeout_s) == (5.0, 2.0)
    assert not settings.prepare
    assert "sslmode=require" in settings.conninfo
    assert "application_name=web" in settings.conninfo
    assert settings.listen_conninfo is not None
    assert "host=direct" in settings.listen_conninfo


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("postgresql://db/shop?colour=blue", "colour"),
        ("postgresql://db:port/shop", "port"),
        ("postgresql://db/shop?schema=Jobs", "schema is 'Jobs'"),
        ("postgresql://db/shop?schema=" + "a" * 41, "at most 40"),
        ("postgresql://db/shop?prefix=9a", "prefix is '9a'"),
        ("postgresql://db/shop?pool=0", "pool is '0'"),
        ("postgresql://db/shop?hot_pool=many", "hot_pool is 'many'"),
        ("postgresql://db/shop?statement_timeout=soon", "statement_timeout"),
        ("postgresql://db/shop?connect_timeout=0", "connect_timeout"),
        ("postgresql://db/shop?prepare=maybe", "prepare is 'maybe'"),
        ("postgresql://db/shop?listen_url=mysql%3A%2F%2Fdb", "its listen_url"),
        ("postgresql:/db/shop", "does not begin with postgresql://"),
        ("postgresql://[::1/shop", "PostgreSQL URL"),
    ],
)
def test_a_wrong_url_is_refused_when_it_is_read_and_the_mistake_named(
    wrong: str, named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(wrong)

    assert named in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:s3cret@db/shop",
        "postgresql://anna:s3cret#@db/shop",
        "postgresql://anna:#s3cret@db/shop?pool=3",
        "postgresql://anna:?s3cret@db/shop",
        "postgresql://anna:pool=1&s3cret?@db/shop?pool=3",
        "postgresql://anna:s3cret@db:1,db2:2/shop",
        "postgresql://anna:s3cret@[::1]:5432/db",
        "postgresql://anna:s3cret@/db?host=/run/s",
        "postgresql://anna:s3cret@%2Frun%2Fs/db",
        "postgresql://db/shop?p%61ssword=s3cret",
        "postgresql://db/shop?sslkey=s3cret",
        "postgresql://db/shop?user=anna&password=s3cret",
        "postgresql://db/shop?sslpassword=s3cret",
        "postgresql://db/shop?listen_url=postgresql%3A%2F%2Fanna%3As3cret%40direct%2Fshop",
    ],
)
def test_secrets_are_masked_wherever_they_stand(url: str) -> None:
    label = open_store(url).label

    assert "s3cr" not in label
    assert "***" in label
    assert "db" in label


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("postgres://anna:x@db:6432/shop", "postgresql://anna:***@db:6432/shop"),
        ("postgresql://a,b:2/s?schema=jobs", "postgresql://a,b:2/s?schema=jobs"),
        ("postgresql://a:1,b:1/s", "postgresql://a:1,b:1/s"),
        ("postgresql://[::1]:5/s", "postgresql://[::1]:5/s"),
        ("postgresql:///s?host=/run/pg&port=5", "postgresql:///s?host=/run/pg&port=5"),
        ("postgresql://db/s?sslmode=require", "postgresql://db/s?sslmode=require"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_a_label_names_what_tells_stores_apart(url: str, label: str) -> None:
    assert open_store(url).label == label


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:s3cret@db/shop?colour=blue",
        "postgresql://anna:s3cr@et@db/shop",
        "postgresql://anna:s3cr/et@db/shop",
        "postgresql://anna:12/s3cret@db/shop",
        "postgresql://anna:12/s3cret?x@db/shop",
        "postgresql://anna:12/s3cret?x=1@db/shop",
        "postgresql://anna:s3cret%zz@db/shop",
        "postgresql://anna:%zz%s3cret@db/shop",
        "postgresql://anna:s3cret",
        "postgresql://db/shop?p%61ssword=%zzs3cret",
        "postgresql://db/shop?s3cret",
        "postgresql://db/shop?s3cret=%",
        "postgresql://db/shop?listen_url=postgresql://anna:s3cr/et@db/shop",
        "postgresql:/anna:s3cret@db/shop",
        "postgresql:anna:s3cret@db/shop",
        "s3cret@db/shop",
        "s3cret",
    ],
)
def test_a_wrong_url_is_told_without_any_part_of_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)

    shown = "".join(traceback.format_exception(refused.value, chain=True)[-1:])
    assert refused.value.__context__ is None
    for part in ("s3cr", "et@", "zz"):
        assert part not in shown


def test_settings_do_not_show_what_libpq_is_given() -> None:
    settings = PostgresSettings.from_url(
        "postgresql://anna:s3cret@db/shop?listen_url=postgresql%3A%2F%2Fanna:s3cret%40db"
    )

    assert "s3cret" not in repr(settings)


@pytest.fixture
def strict(own_server: PostgresServer) -> Iterator[str]:
    """A database whose transactions see all the time what was there when they began."""
    ask(own_server.url(), f"create database {_STRICT}")
    isolation = "default_transaction_isolation = 'repeatable read'"
    ask(own_server.url(), f"alter database {_STRICT} set {isolation}")
    yield own_server.url(_STRICT)
    ask(own_server.url(), f"drop database {_STRICT} with (force)")


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "by a pooler without options"])
def test_a_database_with_another_isolation_acts_on_nothing_that_was_before_a_lock(
    strict: str, monkeypatch: pytest.MonkeyPatch, *, pooled: bool
) -> None:
    def forgetful(settings: PostgresSettings, options: StartupOptions) -> dict[str, Any]:
        return {**connection_arguments(settings, options), "options": ""}

    if pooled:
        monkeypatch.setattr(connecting, "connection_arguments", forgetful)
    store = postgres_store(strict)
    store.run(store.queues.close_queue("other", closed=True))
    with psycopg.connect(strict) as closing, ThreadPoolExecutor(1) as threads:
        closing.execute("set transaction isolation level read committed")
        closing.execute("select pg_advisory_xact_lock(packhorse.lock_key('all'))")
        submit = threads.submit(store.run, submitting(store, "job"))
        until(lambda: waiting_for_locks(strict, "packhorse"))
        closing.execute("insert into packhorse.queues (name, closed) values (%s, true)", (QUEUE,))
        closing.execute("update packhorse.special set queues = queues || %s::text", (QUEUE,))
        closing.commit()

        with pytest.raises(QueueClosed):
            submit.result(PATIENCE_S)

    store.close()
