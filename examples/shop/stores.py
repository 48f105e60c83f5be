# SPDX-License-Identifier: MIT
"""Where the shop's jobs are kept: a file, a server that runs as long as the demo, or yours."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Final

#: Stores the demo knows by name; anything with `://` is a URL of your own.
NAMES: Final = ("sqlite", "postgres", "redis")


def demo_url(store: str, folder: Path) -> str:
    """The URL of a store; a private server is started for it where one is needed."""
    if "://" in store:
        return store
    if store == "sqlite":
        return f"sqlite:///{folder / 'shop.db'}"
    if store == "postgres":
        return _postgres()
    if store == "redis":
        return _redis(folder)
    sys.exit(f"there is no store {store!r} here; choose {', '.join(NAMES)}, or give a URL")


def outlives(store: str) -> bool:
    """Whether the store is still there when the demo has ended."""
    return store == "sqlite" or "://" in store


def _postgres() -> str:
    from tests.servers.postgres import PostgresServer  # noqa: PLC0415 - only here

    server = PostgresServer()
    atexit.register(server.remove)
    return server.url()


def _redis(folder: Path) -> str:
    from tests.servers.redis import RedisServer  # noqa: PLC0415 - only here

    server = RedisServer(folder / "redis")
    atexit.register(server.stop)
    return server.url
