# SPDX-License-Identifier: MIT
"""A store of one's own for one run, and who cuts the connections to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.leaks.feeding import Cutter


class _NoServer:
    """A file has no connections to cut."""

    cuts = 0

    def spare_present(self) -> None: ...

    def cut(self) -> None: ...


class _PostgresCutter:
    """Ends the sessions that came later."""

    def __init__(self, server: Any) -> None:
        self.cuts = 0
        self._server = server
        self._spared: list[int] = []

    def spare_present(self) -> None:
        with self._server.connect() as connection:
            rows = connection.execute("select pid from pg_stat_activity").fetchall()
        self._spared = [pid for (pid,) in rows]

    def cut(self) -> None:
        with self._server.connect() as connection:
            ended = connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> all(%s) "
                "and pid <> pg_backend_pid() and backend_type = 'client backend'",
                (self._spared,),
            ).fetchall()
        self.cuts += len(ended)


class _RedisCutter:
    """Kills the clients that came later."""

    def __init__(self, server: Any) -> None:
        self.cuts = 0
        self._server = server
        self._spared: set[str] = set()

    def spare_present(self) -> None:
        with self._server.client() as client:
            self._spared = {one["id"] for one in client.client_list()}

    def cut(self) -> None:
        with self._server.client() as client:
            own = str(client.client_id())
            for one in client.client_list():
                if one["id"] not in self._spared and one["id"] != own:
                    self.cuts += client.client_kill_filter(_id=one["id"])


@contextlib.contextmanager
def serving(store: str, folder: Path) -> Iterator[tuple[str, Cutter]]:
    """The URL of an empty store, and who cuts its connections."""
    if store == "postgres":
        from tests.servers.postgres import PostgresServer

        postgres = PostgresServer()
        try:
            yield postgres.url(), _PostgresCutter(postgres)
        finally:
            postgres.remove()
    elif store == "redis":
        from tests.servers.redis import RedisServer

        redis = RedisServer(folder / "redis")
        try:
            yield redis.url, _RedisCutter(redis)
        finally:
            redis.stop()
    else:
        yield f"sqlite:///{folder / 'jobs.db'}", _NoServer()
