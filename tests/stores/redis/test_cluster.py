# SPDX-License-Identifier: MIT
"""A namespace in a Redis Cluster: found, followed when it moves, and said to be gone when it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from packhorse.errors import ConfigError, StoreUnavailable
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.conformance.samples import QUEUE
from tests.servers.redis import RedisServer, free_port, redis_cluster, wait_until
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import PATIENCE_S, claim, names_in, submitting

Nodes = list[RedisServer]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def owner_of(nodes: Nodes, namespace: str) -> int:
    """Which of the nodes holds it."""
    slot = key_slot(f"{{{namespace}}}".encode())
    for first, last, (_, port, *_), *_ in nodes[0].ask("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return next(at for at, node in enumerate(nodes) if node.address[1] == port)
    raise AssertionError("no node holds it")


def move(nodes: Nodes, namespace: str) -> None:
    """Move the namespace to the next node, as an operator would."""
    slot = key_slot(f"{{{namespace}}}".encode())
    at = owner_of(nodes, namespace)
    source, target = nodes[at], nodes[(at + 1) % len(nodes)]
    names = [node.ask("CLUSTER", "MYID").decode() for node in (source, target)]
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10_000)
    source.ask("MIGRATE", *target.address, "", 0, 10_000, "KEYS", *keys)
    for node in (target, source, *nodes):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[1])


def nodes_url(*nodes: RedisServer) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.address[1]}" for node in nodes)


def test_a_namespace_is_found_from_any_node(opening: Opening, nodes: Nodes) -> None:
    stores = [opening(nodes_url(node), cluster="true", namespace="found") for node in nodes]
    for number, store in enumerate(stores):
        store.run(submitting(store, f"sync {number}"))
        asyncio.run(store.arun(submitting(store, f"async {number}")))

    assert [len(names_in(store)) for store in stores] == [6, 6, 6]


def test_namespaces_lie_on_several_nodes(opening: Opening, nodes: Nodes) -> None:
    names = [f"shard-{number}" for number in range(8)]
    stores = [opening(nodes_url(*nodes), cluster="true", namespace=name) for name in names]

    for store in stores:
        store.run(submitting(store, "job"))

    assert len({owner_of(nodes, name) for name in names}) > 1
    assert all(names_in(store) == ["job"] for store in stores)


def test_a_namespace_that_moved_is_followed(opening: Opening, nodes: Nodes) -> None:
    store = opening(nodes_url(*nodes), cluster="true", namespace="moving")
    store.run(submitting(store, "before"))

    async def scenario() -> None:
        await store.arun(submitting(store, "before, async"))
        move(nodes, "moving")
        await asyncio.gather(*(store.arun(submitting(store, str(number))) for number in range(5)))

    asyncio.run(scenario())
    store.run(submitting(store, "after"))

    assert names_in(store) == ["before", "before, async", *"01234", "after"]
    assert len(claim(store)) == 8


def test_listeners_hear_wherever_the_namespace_is(opening: Opening, nodes: Nodes) -> None:
    store = opening(nodes_url(nodes[0]), cluster="true", namespace="heard")

    async def scenario() -> frozenset[str]:
        listener = store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
        move(nodes, "heard")
        await store.arun(submitting(store, "job"))
        heard = await listener.wait(PATIENCE_S)
        listener.close()
        return heard

    store.run(submitting(store, "first"))
    assert asyncio.run(scenario()) == {f"queue:{QUEUE}"}


def test_a_dead_node_among_those_named_is_passed_over(opening: Opening, nodes: Nodes) -> None:
    url = f"redis://127.0.0.1:{free_port()},127.0.0.1:{nodes[1].address[1]}"
    store = opening(url, cluster="true", namespace="passed")

    store.run(submitting(store, "job"))

    assert names_in(store) == ["job"]


@pytest.mark.parametrize("namespace", ["alpha", "beta", "gamma", "delta"])
def test_a_cluster_that_was_not_called_one_is_told_how(
    opening: Opening, nodes: Nodes, namespace: str
) -> None:
    stranger = nodes[(owner_of(nodes, namespace) + 1) % len(nodes)]
    store = opening(stranger.url, namespace=namespace)

    with pytest.raises(ConfigError, match="cluster=true"):
        store.run(submitting(store, "job"))


def test_a_server_that_is_no_cluster_is_told_as_that(opening: Opening, server: RedisServer) -> None:
    store = opening(server.url, cluster="true")

    with pytest.raises(ConfigError, match="leave cluster=true out"):
        store.run(submitting(store, "job"))


def test_the_doctor_says_that_it_is_a_cluster(opening: Opening, nodes: Nodes) -> None:
    facts = opening(nodes_url(*nodes), cluster="true").facts()

    assert facts["mode"] == "cluster"


def test_a_node_that_is_gone_is_unavailable_until_it_is_back(
    opening: Opening, tmp_path: Path
) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_cluster(tmp_path / "own", *options) as nodes:
        store = opening(nodes_url(*nodes), cluster="true", namespace="gone")
        store.run(submitting(store, "before"))
        owner = nodes[owner_of(nodes, "gone")]

        owner.kill()
        with pytest.raises(StoreUnavailable):
            store.run(submitting(store, "meanwhile"))

        owner.start()
        _submit_when_back(store, "after")
        assert names_in(store) == ["before", "after"]


def _submit_when_back(store: RedisStore, name: str) -> None:
    """A node that is back is not trusted by the others at once."""

    def submitted() -> bool:
        try:
            store.run(submitting(store, name))
        except StoreUnavailable:
            return False
        return True

    wait_until(submitted, "the node does not come back")
