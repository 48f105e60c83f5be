# SPDX-License-Identifier: MIT
"""What a PostgreSQL URL may say, and what is said of a wrong one."""

from __future__ import annotations

import pytest

from packhorse import ConfigError
from packhorse.stores import open_store
from packhorse.stores.postgres.settings import PostgresSettings


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
        ("postgresql://db/shop?listen_url=mysql%3A%2F%2Fdb", "mysql"),
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
        "postgresql://anna:s3cr@et@db/shop",
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


def test_a_wrong_url_is_told_without_its_secrets() -> None:
    with pytest.raises(ConfigError) as refused:
        open_store("postgresql://anna:s3cret@db/shop?colour=blue")

    assert "s3cret" not in str(refused.value)
