# SPDX-License-Identifier: MIT
"""Servers that cannot be used: each told by name, with what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from faults.proxy import Proxy
from packhorse import ConfigError, Packhorse, StoreUnavailable
from packhorse.errors import PackhorseError
from packhorse.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import ask, postgres_store, submitting, until

_SESSIONS: Final = "select 1 from pg_stat_activity where usename = 'crowded'"
_WITHOUT_PSYCOPG: Final = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from packhorse import ConfigError, Packhorse
try:
    Packhorse("postgresql://127.0.0.1/shop").store.migrate()
except ConfigError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def guarded(own_server: PostgresServer) -> Iterator[str]:
    """The URL, without a password, of a user who needs one."""
    rules = own_server.data / "pg_hba.conf"
    before = rules.read_text("utf-8")
    rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}", "utf-8")
    with own_server.connect() as connection:
        connection.execute("create role guarded login password 'right'")
        connection.execute("select pg_reload_conf()")
    yield own_server.url(user="guarded")
    rules.write_text(before, "utf-8")
    with own_server.connect() as connection:
        connection.execute("drop role guarded")
        connection.execute("select pg_reload_conf()")


def refusals(url: str) -> Iterator[PackhorseError]:
    """What both runners say of a server."""
    store = postgres_store(url)
    with pytest.raises(PackhorseError) as refused:
        store.run(submitting(store, "job"))
    yield refused.value
    with pytest.raises(PackhorseError) as refused:
        asyncio.run(store.arun(submitting(store, "job")))
    yield refused.value
    with pytest.raises(PackhorseError) as refused:
        store.facts()
    yield refused.value
    store.close()


def test_a_wrong_password_is_told_without_repeating_it(guarded: str) -> None:
    for error in refusals(guarded.replace("guarded@", "guarded:wr0ng@")):
        assert isinstance(error, ConfigError)
        assert "password authentication failed" in str(error)
        assert "check the user and the password" in str(error)
        assert "wr0ng" not in "".join(traceback.format_exception(error))


def test_a_missing_password_is_told(guarded: str) -> None:
    for error in refusals(guarded):
        assert isinstance(error, ConfigError)
        assert "no password supplied" in str(error)
        assert "PGPASSWORD" in str(error)


def test_a_missing_database_is_told(own_server: PostgresServer) -> None:
    for error in refusals(own_server.url("nowhere")):
        assert isinstance(error, ConfigError)
        assert 'database "nowhere" does not exist' in str(error)
        assert "CREATE DATABASE" in str(error)


def test_a_missing_user_is_told(own_server: PostgresServer) -> None:
    for error in refusals(own_server.url(user="no_such_role")):
        assert isinstance(error, ConfigError)
        assert 'role "no_such_role" does not exist' in str(error)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    for error in refusals("postgresql://127.0.0.1:1/shop"):
        assert isinstance(error, StoreUnavailable)
        assert not error.maybe_stored
        assert "check that the server runs" in str(error)


def test_a_server_that_does_not_answer_is_given_up_in_time(own_server: PostgresServer) -> None:
    proxy = Proxy("127.0.0.1", own_server.port)
    proxy.hold()
    try:
        for error in refusals(f"postgresql://postgres@127.0.0.1:{proxy.port}/x?connect_timeout=2s"):
            assert isinstance(error, StoreUnavailable)
            assert not error.maybe_stored
    finally:
        proxy.close()


def test_a_missing_extra_is_named_with_how_to_install_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PSYCOPG],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert "packhorse[postgres]" in done.stdout
    assert "psycopg" in done.stdout


def test_importing_packhorse_imports_no_driver() -> None:
    program = "import packhorse, sys; sys.exit('psycopg' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_a_server_that_takes_no_writes_is_told(own_server: PostgresServer) -> None:
    with own_server.connect() as connection:
        connection.execute("create database replica")
    url = own_server.url("replica")
    store = postgres_store(url)
    store.run(submitting(store, "before"))
    ask(url, "alter database replica set default_transaction_read_only = on")
    store.close()  # as after a failover: connections are new

    with pytest.raises(StoreUnavailable, match="this server takes no writes") as refused:
        store.run(submitting(store, "job"))

    assert not refused.value.maybe_stored
    assert "target_session_attrs=read-write" in str(refused.value)
    found = store.run(store.inspection.job("before"))  # reading goes on
    assert found is not None
    assert store.facts()["writable"] == "no"
    store.close()
    with own_server.connect() as connection:
        connection.execute("drop database replica")


def test_a_server_that_takes_no_writes_cannot_be_set_up(own_server: PostgresServer) -> None:
    options = "options=-c%20default_transaction_read_only%3Don"
    store = postgres_store(f"{own_server.url()}?schema=never&{options}")

    with pytest.raises(StoreUnavailable, match="this server takes no writes"):
        store.migrate()
    store.close()


def test_a_user_without_rights_is_told_who_can_help(own_server: PostgresServer) -> None:
    with own_server.connect() as connection:
        connection.execute("create role guest login")
    store = postgres_store(f"{own_server.url(user='guest')}?schema=forbidden")

    with pytest.raises(ConfigError, match="permission denied") as refused:
        store.run(submitting(store, "job"))
    store.close()

    assert "packhorse migrate --sql" in str(refused.value)
    with own_server.connect() as connection:
        connection.execute("drop role guest")


def test_all_connections_taken_is_unavailable_and_passes(own_server: PostgresServer) -> None:
    with own_server.connect() as connection:
        connection.execute("create role crowded login connection limit 2")
        connection.execute("create schema crowded authorization crowded")
    url = f"{own_server.url(user='crowded')}?schema=crowded&connect_timeout=2s"
    taken = [psycopg.connect(own_server.url(user="crowded")) for _ in range(2)]
    store = postgres_store(url)

    with pytest.raises(StoreUnavailable, match="too many connections"):
        store.run(submitting(store, "job"))
    for connection in taken:
        connection.close()
    until(lambda: not ask(own_server.url(), _SESSIONS))

    store.run(submitting(store, "job"))
    store.close()
    with own_server.connect() as connection:
        connection.execute("drop schema crowded cascade")
        connection.execute("drop role crowded")


def test_text_with_a_nul_character_is_refused_and_nothing_stored(store: PostgresStore) -> None:
    with pytest.raises(PackhorseError, match="NUL"):
        store.run(submitting(store, "one", "tw\0o"))

    assert store.run(store.inspection.counts()) == ()


def test_the_app_tells_what_the_store_does(tmp_path: Path) -> None:
    app = Packhorse("postgresql://127.0.0.1:1/shop")

    @app.task
    def send() -> None: ...

    with pytest.raises(StoreUnavailable) as refused:
        send.enqueue()
    app.close()

    assert refused.value.job_id is not None
    assert not refused.value.maybe_stored
