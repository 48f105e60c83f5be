# SPDX-License-Identifier: MIT
"""The schema: created once by many, upgraded, refused, and printed for those who do it by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Final

import psycopg
import pytest
from click.testing import CliRunner

from packhorse import SchemaOutOfDate, StoreError
from packhorse.cli.main import root
from packhorse.stores import open_store
from packhorse.stores.postgres import migrate as migrating
from packhorse.stores.postgres.migrate import known_version
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.places import drop_schema
from tests.servers.postgres import postgres_url
from tests.servers.schemas import schemas
from tests.stores.postgres.support import ask, names_in, postgres_store, submitting
from tests.support.children import fork, reap

# Python 3.12 and later warn of every fork beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

_numbers: Final = count(1)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a schema that does not exist yet."""
    name = f"fresh_{abs(hash(request.node.nodeid))}_{next(_numbers)}"
    yield name
    drop_schema(postgres_url(), name)


def test_ten_processes_may_start_at_once_on_an_empty_database(fresh: str) -> None:
    url = schemas().url_of(fresh)
    waiting, go = os.pipe()

    def start(name: str) -> None:
        store = open_store(url)
        os.read(waiting, 1)
        store.run(store.jobs.submit([new_job(name)]))
        assert store.migrate() == known_version()

    children = [fork(partial(start, str(number))) for number in range(10)]
    os.write(go, b"!" * 10)

    assert [reap(child) for child in children] == [0] * 10
    os.close(waiting)
    os.close(go)
    assert sorted(names_in(url)) == sorted(map(str, range(10)))
    assert ask(url, f'select count(*) from "{fresh}".schema_version') == [(1,)]


def test_two_prefixes_share_a_schema_without_seeing_each_other(fresh: str) -> None:
    one = postgres_store(schemas().url_of(fresh, prefix="one_"))
    two = postgres_store(schemas().url_of(fresh, prefix="two_"))

    one.run(submitting(one, "job"))

    assert two.run(two.inspection.job("job")) is None
    assert one.run(one.inspection.job("job")) is not None
    one.close()
    two.close()


def test_a_newer_schema_is_refused_and_left_as_it_is(url: str) -> None:
    store = postgres_store(url)
    schema = store._settings.schema
    ask(url, f'update "{schema}".schema_version set version = %s', known_version() + 1)
    try:
        for attempt in (lambda: store.run(submitting(store, "job")), store.migrate):
            with pytest.raises(SchemaOutOfDate, match="upgrade Packhorse here"):
                attempt()
        assert ask(url, f'select version from "{schema}".schema_version') == [
            (known_version() + 1,)
        ]
    finally:
        ask(url, f'update "{schema}".schema_version set version = %s', known_version())
        store.close()


def test_an_older_schema_is_upgraded_with_what_is_in_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = postgres_store(url)
    old.run(submitting(old, "before"))
    old.close()
    schema = old._settings.schema
    step = "create table {marvel} (seen boolean not null default true);"
    monkeypatch.setattr(migrating, "_migrations", lambda: (*_migrations_before, step))
    store = postgres_store(url)
    try:
        store.run(submitting(store, "after"))

        assert ask(url, f'select version from "{schema}".schema_version') == [
            (len(_migrations_before) + 1,)
        ]
        assert ask(url, f'select count(*) from "{schema}".marvel') == [(0,)]
        assert names_in(url) == ["before", "after"]
    finally:
        store.close()
        ask(url, f'drop table if exists "{schema}".marvel')
        ask(url, f'update "{schema}".schema_version set version = %s', len(_migrations_before))


_migrations_before: Final = migrating._migrations()


def test_a_schema_of_version_2_keeps_its_jobs_and_workers(
    fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = schemas().url_of(fresh)
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "_migrations", lambda: _migrations_before[:2])
        old = postgres_store(url)
        old.run(submitting(old, "before"))
        old.close()
    ask(
        url,
        f'insert into "{fresh}".workers '
        "(worker, lease_us, expires_us, started_us, renewed_us, host, pid, version, concurrency, "
        "running, queues, tasks) values ('w', 1, 2, 3, 4, 'h', 5, 'v', 6, 7, '{}', '{}')",
    )

    store = postgres_store(url)
    (worker,) = store.run(store.leases.workers())
    store.close()

    assert (worker.worker, worker.concurrency, worker.running, worker.quiet) == ("w", 6, 0, False)
    assert names_in(url) == ["before"]


def test_an_upgrade_that_fails_leaves_the_old_schema(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = postgres_store(url)._settings.schema
    steps = (*_migrations_before, "create table {marvel} (seen boolean); select 1 / 0;")
    monkeypatch.setattr(migrating, "_migrations", lambda: steps)
    store = postgres_store(url)

    with pytest.raises(StoreError, match="division by zero"):
        store.migrate()
    store.close()

    assert ask(url, "select to_regclass(%s)", f"{schema}.marvel") == [(None,)]
    assert ask(url, f'select version from "{schema}".schema_version') == [
        (len(_migrations_before),)
    ]


def test_the_statements_that_are_printed_make_a_store(fresh: str) -> None:
    url = schemas().url_of(fresh, prefix="by_hand_")
    printed = CliRunner().invoke(root, ["migrate", "--sql", "--url", url])
    assert printed.exit_code == 0, printed.output
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        assert connection.execute("select to_regnamespace(%s)", (fresh,)).fetchone() == (None,)
        connection.execute(printed.stdout.encode())

    store = postgres_store(url)
    assert store.is_there()
    assert store.migrate() == known_version()
    store.run(submitting(store, "job"))
    assert store.run(store.inspection.job("job")) is not None
    store.close()


def test_a_store_without_sql_says_so() -> None:
    result = CliRunner().invoke(root, ["migrate", "--sql", "--url", "sqlite:///jobs.db"])

    assert result.exit_code != 0
    assert "without --sql" in result.output


def test_looking_creates_nothing(fresh: str) -> None:
    url = schemas().url_of(fresh)

    result = CliRunner().invoke(root, ["stats", "--url", url])

    assert result.exit_code == 5
    assert "there is no store at" in result.output
    assert not postgres_store(url).is_there()


def test_both_schemes_name_the_same_store(url: str) -> None:
    other = open_store(url.replace("postgresql://", "postgres://", 1))
    store = postgres_store(url)
    store.run(submitting(store, "job"))

    assert other.run(other.inspection.job("job")) is not None
    store.close()
    other.close()
