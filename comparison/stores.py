# SPDX-License-Identifier: MIT
"""A store of its own for one contestant: a file, or a server that waits for the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer, free_port


@contextmanager
def opened(store: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The URL of an empty one, and what it is."""
    match store:
        case "sqlite":
            file = quote(str(folder / "jobs.db"))
            yield f"sqlite:///{file}", f"SQLite {sqlite3.sqlite_version}, synchronous=FULL"
        case "postgres":
            server = PostgresServer(folder / "postgres", careful=True)
            try:
                with server.connect() as connection:
                    found = connection.execute("show server_version").fetchone()
                version = found[0] if found else "?"
                yield server.url(), f"PostgreSQL {version}, fsync and synchronous_commit on"
            finally:
                server.stop()
        case "redis":
            options = ("--appendonly", "yes", "--appendfsync", "always")
            redis = RedisServer(folder / "redis", *options, port=free_port())
            try:
                version = redis.ask("INFO", "server")["redis_version"]
                yield f"{redis.url}/0", f"Redis {version}, appendfsync always"
            finally:
                redis.stop()
        case _:
            raise ValueError(f"there is no store {store}")
