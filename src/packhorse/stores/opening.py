# SPDX-License-Identifier: MIT
"""Open the store of a URL: the one place that picks a backend."""

from __future__ import annotations

import re
from typing import Final

from packhorse.core.clock import Clock
from packhorse.errors import ConfigError
from packhorse.stores.protocol import Store

_SCHEME: Final = re.compile(r"[a-z]{1,12}")  # what is longer may be a secret
#: As SQLAlchemy writes it.
_DRIVER: Final = re.compile(r"(sqlite|postgresql|postgres|redis)\+[a-z0-9_]{1,20}")
_FILE: Final = re.compile(r"[\w./-]{1,200}\.(?:db|sqlite3?)")


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Return the store that a URL names; it connects when it is first used.

    A `clock` replaces the store's own, for tests and the simulator.
    """
    scheme = url.partition(":")[0]
    # Imported here, so that an application pays for the one store it uses.
    if scheme == "sqlite":
        from packhorse.stores.sqlite.connection import SqliteSettings  # noqa: PLC0415
        from packhorse.stores.sqlite.store import SqliteStore  # noqa: PLC0415

        return SqliteStore(SqliteSettings.from_url(url), clock=clock)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, clock)
    if scheme in ("redis", "rediss", "unix"):
        return _redis(url, clock)
    if scheme == "memory":
        from packhorse.stores.memory.store import MemoryStore  # noqa: PLC0415

        return MemoryStore(clock=clock)
    raise ConfigError(f"no store is known for a URL{_shown(url)}")


def _shown(url: str) -> str:
    """Return as much of an unknown URL as cannot be a secret, and what to write."""
    scheme, colon, _ = url.partition(":")
    if driver := _DRIVER.fullmatch(scheme):
        return f" with the name of a driver in it; leave it out: {driver[1]}://..."
    if not colon and _FILE.fullmatch(url):
        return f"; if {url!r} is a SQLite file, write sqlite:///{url}"
    shown = f" that begins with {scheme!r}" if _SCHEME.fullmatch(scheme) else ""
    return (
        f"{shown}; write sqlite:///jobs.db, postgresql://user@host/database, redis://host or "
        "memory://"
    )


def _postgres(url: str, clock: Clock | None) -> Store:
    try:
        from packhorse.stores.postgres.settings import PostgresSettings  # noqa: PLC0415
        from packhorse.stores.postgres.store import PostgresStore  # noqa: PLC0415
    except ImportError as error:
        # psycopg itself says "no pq wrapper available" where its own library is missing.
        if (error.name or "psycopg").partition(".")[0] != "psycopg":
            raise
        raise ConfigError(
            "a PostgreSQL store needs the package psycopg, which is not installed, or lacks its "
            f"library ({error}): pip install 'packhorse[postgres]'"
        ) from error
    return PostgresStore(PostgresSettings.from_url(url), clock=clock)


def _redis(url: str, clock: Clock | None) -> Store:
    from packhorse.stores.redis.settings import RedisSettings  # noqa: PLC0415

    settings = RedisSettings.from_url(url)  # a wrong URL is reported even without the driver
    try:
        from packhorse.stores.redis.store import RedisStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        raise ConfigError(
            f"a Redis store needs the package {error.name}, which is not installed: "
            "pip install 'packhorse[redis]'"
        ) from error
    return RedisStore(settings, clock=clock)
