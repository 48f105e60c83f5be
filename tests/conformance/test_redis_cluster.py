# SPDX-License-Identifier: MIT
"""The Redis store keeps its promises on a cluster of three nodes too.

All keys of a namespace lie on one node, so most of what can be tried there is tried on a single
server already: ordinary runs take a sample, `--conformance all` takes every topic.
Each test has a namespace of its own, on whichever node that falls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.core.clock import new_id
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing import conformance
from packhorse.testing.places import clear_namespace
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.redis import redis_nodes


class ClusterHarness:
    """A namespace on a shared cluster; every opening of it is a store as in another process."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self._namespace = f"test-{new_id()}"
        self._clock = clock
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self.reopen()
        store.migrate()
        return store

    def reopen(self) -> Store:
        url = f"{redis_nodes()[0].url}?cluster=true&namespace={self._namespace}"
        store = open_store(url, clock=self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        for node in redis_nodes():
            clear_namespace(node.url, self._namespace)


# The state machines take their time on a busy machine.
pytestmark = pytest.mark.timeout(600)

TestRedisCluster = conformance.suite(ClusterHarness)
