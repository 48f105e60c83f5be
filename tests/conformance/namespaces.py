# SPDX-License-Identifier: MIT
"""Stores for the conformance suite on servers that speak Redis's protocol."""

from __future__ import annotations

from packhorse.core.clock import new_id
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.testing.places import clear_namespace
from packhorse.testing.virtual_clock import VirtualClock


class NamespaceHarness:
    """A namespace on shared servers; every opening of it is a store as in another process.

    It is opened by the first server; with several, they are the nodes of a cluster.
    """

    def __init__(self, clock: VirtualClock, *servers: str) -> None:
        self._clock = clock
        self._servers = servers
        self._namespace = f"test-{new_id()}"
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self.reopen()
        store.migrate()
        return store

    def reopen(self) -> Store:
        cluster = "cluster=true&" if len(self._servers) > 1 else ""
        url = f"{self._servers[0]}?{cluster}namespace={self._namespace}"
        store = open_store(url, clock=self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        for server in self._servers:
            clear_namespace(server, self._namespace)
