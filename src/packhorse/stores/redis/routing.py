# SPDX-License-Identifier: MIT
"""Which server holds the namespace: the one of the URL, or in a cluster the owner of its slot.

All keys of a namespace lie in one slot, so one node serves all of it, and one address is all there
is to know. Whoever finds it wrong (`MOVED`, a node that is gone) says so, and the next connection
asks the nodes that are known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from redis.crc import key_slot

from packhorse.stores.redis.connection import Wire, dial
from packhorse.stores.redis.faults import Lost, ReplyError
from packhorse.stores.redis.packing import pack
from packhorse.stores.redis.settings import Address, RedisSettings

__all__ = ["Route"]

#: Nodes that are asked, or remembered, at most.
_NODES_MAX: Final = 64


class Route:
    """The way to the namespace, for all threads and event loops of a store.

    Connections made before the way was found wrong are of an older generation, and are not used
    again.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self.generation = 0
        self._settings = settings
        self._lock = threading.Lock()
        self._owner = None if settings.cluster else settings.addresses[0]
        self._known = settings.addresses

    def open(self, *, patience_s: float | None = None) -> Wire:
        """A connection to the server that holds the namespace."""
        generation, owner = self.generation, self._owner
        wire = None if owner is None else self._dialled(owner, patience_s)
        if wire is None:
            wire = self._search(patience_s)
        wire.generation = generation
        return wire

    def moved(self, error: ReplyError) -> bool:
        """Follow `MOVED <slot> <host>:<port>`; False where there is no cluster to follow it in."""
        if not self._settings.cluster:
            return False
        host, _, port = str(error).split(" ")[2].rpartition(":")
        with self._lock:
            asked = self._owner or self._known[0]
            owner = Address(host or asked.host, int(port))
            if owner != self._owner:
                self._owner = owner
                self.generation += 1
        return True

    def mistrust(self) -> None:
        """The server is not the one it was: look for the right one with the next connection."""
        with self._lock:
            self.generation += 1
            if self._settings.cluster:
                self._owner = None

    def forget_locks(self) -> None:
        """After a fork, in the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def _dialled(self, owner: Address, patience_s: float | None) -> Wire | None:
        """A connection to the owner; None when there are other nodes to ask first."""
        try:
            return dial(self._settings, owner, patience_s=patience_s)
        except Lost:
            if not self._settings.cluster:
                raise
            with self._lock:
                self._owner = None
            return None

    def _search(self, patience_s: float | None) -> Wire:
        """Ask one node after the other who owns the slot."""
        trouble: Exception | None = None
        for address in self._known[:_NODES_MAX]:
            try:
                wire = dial(self._settings, address, patience_s=patience_s)
                owner = self._asked(wire)
                if owner == address:
                    return wire
                wire.close()
                return dial(self._settings, owner, patience_s=patience_s)
            except Lost as error:
                trouble = error
        raise trouble or Lost("no node of the cluster is known", sent=False)

    def _asked(self, wire: Wire) -> Address:
        """The owner of our slot as this node sees it; other nodes it knows are remembered."""
        reply = wire.ask(pack(("CLUSTER", "SLOTS")))
        if isinstance(reply, Exception):
            wire.close()
            raise reply
        slot = key_slot(self._settings.tag.encode())
        owner = None
        for first, last, primary, *_ in reply:
            if first <= slot <= last:
                owner = _address(primary, wire.address)
        if owner is None:
            wire.close()
            raise ReplyError("CLUSTERDOWN nobody serves the slot of this namespace")
        nodes = dict.fromkeys(_nodes(reply, wire.address))
        with self._lock:
            self._owner = owner
            self._known = (*self._settings.addresses, *nodes)[:_NODES_MAX]
        return owner


def _nodes(slots: list[list[Any]], asked: Address) -> Iterator[Address]:
    for _, _, *nodes in slots:
        for node in nodes:
            yield _address(node, asked)


def _address(node: list[Any], asked: Address) -> Address:
    """A node that does not know its own name is reached as the one that was asked."""
    host = b"" if node[0] is None else node[0]
    return Address(host.decode() or asked.host, node[1])
