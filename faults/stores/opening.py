# SPDX-License-Identifier: MIT
"""A store by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from faults.stores.ground import Ground

STORES: Final = ("sqlite", "postgres", "redis", "redis-everysec")


def opened(store: str, folder: Path) -> Ground:
    """Start it; only what it needs is imported."""
    match store:
        case "sqlite":
            from faults.stores.sqlite import SqliteGround

            return SqliteGround(folder)
        case "postgres":
            from faults.stores.postgres import PostgresGround

            return PostgresGround(folder)
        case "redis" | "redis-everysec":
            from faults.stores.redis import RedisGround

            return RedisGround(folder, "everysec" if store.endswith("everysec") else "always")
        case _:
            raise ValueError(f"no such store: {store}; there are {', '.join(STORES)}")
