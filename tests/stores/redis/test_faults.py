# SPDX-License-Identifier: MIT
"""A server that refuses, is gone, or is not what it was: told in our words, with what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from packhorse.core.job import JobStatus
from packhorse.errors import ConfigError, SchemaOutOfDate, StoreError, StoreUnavailable
from packhorse.stores.redis.faults import ReplyError, translated
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.conformance.samples import QUEUE
from tests.servers.redis import RedisServer, free_port, wait_until
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import PATIENCE_S, asking, claim, names_in, submitting


def test_no_server_is_unavailable_and_nothing_was_stored(opening: Opening) -> None:
    store = opening(f"redis://127.0.0.1:{free_port()}")

    for attempt in (store.run, lambda plan: asyncio.run(store.arun(plan))):
        with pytest.raises(StoreUnavailable, match="check that the server runs") as refused:
            attempt(submitting(store, "job"))
        assert not refused.value.maybe_stored
    with pytest.raises(StoreUnavailable):
        store.migrate()
    with pytest.raises(StoreUnavailable):
        store.facts()


def test_an_unknown_host_is_unavailable(opening: Opening) -> None:
    store = opening("redis://no-such-host.invalid")

    with pytest.raises(StoreUnavailable, match=r"no-such-host\.invalid"):
        store.run(submitting(store, "job"))


def test_a_server_that_comes_later_is_used_without_opening_the_store_again(
    opening: Opening, server: RedisServer
) -> None:
    server.stop()
    store = opening(server.url)
    with pytest.raises(StoreUnavailable):
        store.run(submitting(store, "early"))

    server.start()
    store.run(submitting(store, "late"))

    assert names_in(store) == ["late"]


def test_a_wrong_password_is_a_mistake_that_says_so(opening: Opening, server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "requirepass", "right")
    where = server.url.removeprefix("redis://")
    right = opening(f"redis://:right@{where}")

    right.run(submitting(right, "job"))

    for url in (f"redis://:hunter2@{where}", f"redis://anna:hunter2@{where}", server.url):
        store = opening(url)
        for attempt in (store.run, lambda plan, store=store: asyncio.run(store.arun(plan))):
            with pytest.raises(ConfigError, match="password") as refused:
                attempt(submitting(store, "another"))
            assert "hunter2" not in str(refused.value)


def test_a_user_who_may_not_is_told_what_to_be_granted(
    opening: Opening, server: RedisServer
) -> None:
    server.ask("ACL", "SETUSER", "anna", "on", ">secret", "~*", "+@read", "+hello")
    store = opening(f"redis://anna:secret@127.0.0.1:{server.address[1]}")

    with pytest.raises(ConfigError, match="grant"):
        store.run(submitting(store, "job"))


def test_a_user_needs_only_what_the_documentation_says(
    opening: Opening, server: RedisServer
) -> None:
    rights = ("resetchannels", "~{shop}*", "&{shop}:*", "+@all", "-@dangerous")
    server.ask("ACL", "SETUSER", "anna", "on", ">secret", *rights)
    store = opening(f"redis://anna:secret@127.0.0.1:{server.address[1]}", namespace="shop")

    async def scenario() -> frozenset[str]:
        listener = store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
        await store.arun(submitting(store, "job"))
        return await listener.wait(PATIENCE_S)

    assert asyncio.run(scenario()) == {f"queue:{QUEUE}"}
    assert [job.id for job in claim(store)] == ["job"]
    assert store.facts()["eviction"].startswith("not told by the server")


def test_a_database_that_is_not_there_is_a_mistake(opening: Opening, server: RedisServer) -> None:
    store = opening(f"{server.url}/99")

    with pytest.raises(ConfigError, match="no database of this number"):
        store.run(submitting(store, "job"))


def test_a_replica_takes_no_writes_and_says_where_to_go(
    opening: Opening, server: RedisServer, tmp_path: Path
) -> None:
    primary = opening(server.url)
    primary.run(submitting(primary, "job"))
    replica = RedisServer(
        tmp_path / "replica", "--replicaof", *map(str, server.address), port=free_port()
    )
    try:
        wait_until(lambda: replica.ask("DBSIZE") == server.ask("DBSIZE"), "no replication")
        store = opening(replica.url)

        with pytest.raises(StoreUnavailable, match=r"replica.*primary") as refused:
            store.run(submitting(store, "another"))
        assert not refused.value.maybe_stored

        replica.ask("REPLICAOF", "NO", "ONE")  # a failover: the same address writes from now on
        store.run(submitting(store, "another"))
        assert names_in(store) == ["job", "another"]
    finally:
        replica.stop()


def test_a_server_that_becomes_a_replica_is_left_for_another_connection(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    store.run(submitting(store, "before"))
    server.ask("REPLICAOF", "127.0.0.1", "1")

    with pytest.raises(StoreUnavailable, match="failover"):
        store.run(submitting(store, "meanwhile"))
    with pytest.raises(StoreUnavailable, match="failover"):
        asyncio.run(store.arun(submitting(store, "meanwhile")))

    server.ask("REPLICAOF", "NO", "ONE")
    store.run(submitting(store, "after"))
    assert names_in(store) == ["before", "after"]


def test_a_server_that_still_loads_is_unavailable_for_now(
    opening: Opening, server: RedisServer
) -> None:
    server.ask("CONFIG", "SET", "rdbcompression", "no")
    server.ask("DEBUG", "POPULATE", "8000", "key", "5000")
    server.ask("SAVE")
    server.stop()
    server.start("--key-load-delay", "500")  # it answers after every 2 MB it has read
    store = opening(server.url)

    with pytest.raises(StoreUnavailable, match="reads its data") as refused:
        store.run(submitting(store, "job"))

    assert not refused.value.maybe_stored


def test_scripts_the_server_forgot_are_sent_again(store: RedisStore) -> None:
    store.run(submitting(store, "first"))
    store.run(asking("SCRIPT", "FLUSH"))
    store.run(submitting(store, "second"))

    async def many() -> None:
        plans = [submitting(store, f"job {number}") for number in range(20)]
        flush = store.arun(asking("SCRIPT", "FLUSH"))
        await asyncio.gather(*(store.arun(plan) for plan in plans[:10]), flush)
        await asyncio.gather(*(store.arun(plan) for plan in plans[10:]))

    asyncio.run(many())

    assert len(names_in(store)) == 22


def test_a_full_memory_refuses_new_jobs_and_keeps_the_old(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    store.run(submitting(store, "before"))
    server.ask("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(StoreUnavailable, match="memory is full") as refused:
        store.run(submitting(store, "too much"))
    assert not refused.value.maybe_stored

    server.ask("CONFIG", "SET", "maxmemory", "0")
    assert names_in(store) == ["before"]
    assert [job.id for job in claim(store)] == ["before"]


def test_a_server_that_cannot_save_is_unavailable(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url)
    store.run(submitting(store, "before"))
    server.ask("CONFIG", "SET", "dir", "/")
    server.ask("CONFIG", "SET", "dbfilename", "proc")  # a folder stands there: no file can
    server.ask("CONFIG", "SET", "save", "1 1")
    server.ask("BGSAVE")
    wait_until(
        lambda: server.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err",
        "the save does not fail",
    )

    with pytest.raises(StoreUnavailable, match="cannot save"):
        store.run(submitting(store, "job"))


def test_a_newer_key_layout_is_refused_and_left_alone(store: RedisStore, namespace: str) -> None:
    store.run(submitting(store, "job"))
    store.run(asking("SET", f"{{{namespace}}}:schema", "999"))
    other = RedisStore(store._settings)
    try:
        for attempt in (other.run, lambda plan: asyncio.run(other.arun(plan))):
            with pytest.raises(SchemaOutOfDate, match="upgrade packhorse"):
                attempt(submitting(other, "another"))
        with pytest.raises(SchemaOutOfDate):
            other.migrate()
    finally:
        other.close()


def test_too_many_clients_is_unavailable(opening: Opening, server: RedisServer) -> None:
    with server.client() as taken:
        taken.config_set("maxclients", "1")
        store = opening(server.url)

        with pytest.raises(StoreUnavailable, match="connections"):
            store.run(submitting(store, "job"))


def test_more_threads_than_connections_wait_and_then_are_told(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url, connections=1, timeout="200ms")
    store.run(submitting(store, "job"))
    store._pool._room.get(timeout=1)

    with pytest.raises(StoreUnavailable, match="connections"):
        store.run(asking("PING"))

    store._pool._room.put(None)
    assert store.run(asking("PING")) == b"PONG"


def test_any_other_error_is_a_store_error_with_its_words(store: RedisStore, namespace: str) -> None:
    with pytest.raises(StoreError, match="WRONGTYPE") as refused:
        store.run(asking("LPUSH", f"{{{namespace}}}:schema", 1))
    assert not isinstance(refused.value, StoreUnavailable)


@pytest.mark.parametrize(
    ("reply", "kind", "maybe_stored"),
    [
        ("CLUSTERDOWN The cluster is down", StoreUnavailable, False),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable, False),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable, False),
        ("BUSY Redis is busy running a script.", StoreUnavailable, False),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable, False),
        (
            "ERR Script attempted to access a non local key in a cluster node",
            StoreUnavailable,
            True,
        ),
        ("NOPROTO unsupported protocol version", ConfigError, False),
        ("ERR unknown command `HELLO`", ConfigError, False),
        ("ERR something else", StoreError, False),
    ],
)
def test_each_refusal_has_its_kind(reply: str, kind: type[Exception], maybe_stored: object) -> None:
    told = translated(ReplyError(reply), "redis://h", writes=True)

    assert type(told) is kind
    assert reply in str(told)
    assert getattr(told, "maybe_stored", False) is maybe_stored


def test_a_job_stays_what_it_is_while_a_server_refuses(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    store.run(submitting(store, "job"))
    server.ask("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(StoreUnavailable):
        store.run(store.jobs.cancel("job"))

    server.ask("CONFIG", "SET", "maxmemory", "0")
    record = store.run(store.inspection.job("job"))
    assert record is not None
    assert record.status is JobStatus.QUEUED
