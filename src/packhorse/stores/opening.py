# SPDX-License-Identifier: MIT
"""From a URL to a store: the one place that picks a backend."""

from __future__ import annotations

from packhorse.clock import Clock
from packhorse.errors import ConfigError
from packhorse.stores.protocol import Store

__all__ = ["open_store"]


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store a URL names; nothing is opened before it is used.

    A clock given in judges instead of the store's own; that is for tests and the simulator.
    """
    scheme = url.partition(":")[0]
    # Imported here, so that an application pays for the one store it uses.
    if scheme == "sqlite":
        from packhorse.stores.sqlite.connection import SqliteSettings  # noqa: PLC0415
        from packhorse.stores.sqlite.store import SqliteStore  # noqa: PLC0415

        return SqliteStore(SqliteSettings.from_url(url), clock=clock)
    if scheme == "memory":
        from packhorse.stores.memory.store import MemoryStore  # noqa: PLC0415

        return MemoryStore(clock=clock)
    raise ConfigError(
        f"no store is known for a URL that begins with {scheme!r}; "
        "write sqlite:///jobs.db or memory://"
    )
