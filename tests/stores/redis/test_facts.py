# SPDX-License-Identifier: MIT
"""What the doctor tells of a server, and what is warned of at the start."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from packhorse.stores.redis.facts import ServerFacts
from tests.servers.redis import RedisServer, free_port, valkey_url
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import asking, submitting
from tests.support.children import python


@pytest.mark.parametrize(
    ("fsync", "save", "kept"),
    [
        ("always", "", "every commit"),
        ("everysec", "", "the last second or two may be lost"),
        ("no", "", "what the system had not written may be lost"),
        (None, "60 1", "everything since the last snapshot may be lost"),
        (None, "", "nothing: all jobs are lost"),
    ],
)
def test_the_doctor_says_what_a_power_cut_would_cost(
    opening: Opening, server: RedisServer, fsync: str | None, save: str, kept: str
) -> None:
    server.stop()
    server.start("--appendonly", "yes" if fsync else "no", "--appendfsync", fsync or "everysec")
    server.ask("CONFIG", "SET", "save", save)

    facts = opening(server.url).facts()

    assert kept in facts["survives a power cut"]
    assert ("append-only file" in facts["persistence"]) is (fsync is not None)
    assert ("snapshots" in facts["persistence"]) is bool(save)


def test_the_doctor_names_server_namespace_and_layout(
    opening: Opening, server: RedisServer
) -> None:
    facts = opening(server.url, namespace="shop").facts()

    assert facts["store"] == "redis"
    assert facts["server"].startswith(("Redis ", "Valkey "))
    assert facts["namespace"] == "shop"
    assert facts["schema"] == "1"
    assert facts["mode"] == "standalone"
    assert facts["writable"] == "yes"
    assert facts["eviction"].startswith("noeviction")


def test_the_doctor_tells_of_replicas_and_what_a_failover_may_lose(
    opening: Opening, server: RedisServer, tmp_path: Path
) -> None:
    address = map(str, server.address)
    replica = RedisServer(tmp_path / "replica", "--replicaof", *address, port=free_port())
    try:
        for _ in range(1000):
            if server.ask("INFO", "replication")["connected_slaves"] == 1:
                break
        facts = opening(server.url).facts()
        assert facts["replicas"] == "1, asynchronous: a failover may lose the last commits"
    finally:
        replica.stop()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "allkeys-random"])
def test_a_server_that_may_evict_jobs_is_warned_of_once(
    opening: Opening, server: RedisServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    server.ask("CONFIG", "SET", "maxmemory", "100mb")
    store = opening(server.url)

    with caplog.at_level(logging.WARNING, logger="packhorse"):
        store.run(submitting(store, "job"))
        asyncio.run(store.arun(asking("PING")))

    [warning] = [record.getMessage() for record in caplog.records]
    assert policy in warning
    assert "noeviction" in warning
    assert "JOBS MAY BE DROPPED" in store.facts()["eviction"]


def test_a_server_that_evicts_nothing_is_not_warned_of(
    opening: Opening, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = opening(server.url)

    with caplog.at_level(logging.WARNING, logger="packhorse"):
        store.run(submitting(store, "job"))

    assert not caplog.records


def test_a_server_that_does_not_tell_its_settings_is_told_as_that(
    opening: Opening, server: RedisServer
) -> None:
    """As managed servers do: `CONFIG` is forbidden there."""
    server.ask("ACL", "SETUSER", "anna", "on", ">secret", "~*", "&*", "+@all", "-config")
    store = opening(f"redis://anna:secret@127.0.0.1:{server.address[1]}")

    facts = store.facts()

    assert "not told by the server" in facts["persistence"]
    assert facts["eviction"].startswith("noeviction")


def test_a_valkey_server_is_called_by_its_name() -> None:
    info = {"redis_version": "7.2.4", "valkey_version": "8.1.0", "server_mode": "standalone"}

    assert ServerFacts(info, {}).name == "Valkey 8.1.0"


def test_tests_on_valkey_run_on_valkey(opening: Opening) -> None:
    assert opening(valkey_url()).facts()["server"].startswith("Valkey ")


def test_the_doctor_command_finds_eviction(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    program = "from packhorse.cli.main import main; main()"

    answer = python(program, "doctor", "--url", server.url, "--json")

    told = json.loads(answer.stdout)
    assert told["facts"]["store"] == "redis"
    assert any("noeviction" in finding["message"] for finding in told["findings"])
