# SPDX-License-Identifier: MIT
"""PostgreSQL: a server that waits for the disk, behind a proxy for each who goes there.

Its clock is stepped by a function in front of the built-in one on the search path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from faults.clocks import ClockFile
from faults.proxy import Proxy
from faults.stores.ground import Door, door_folder
from tests.servers.postgres import PostgresServer

_CLOCK: Final = """
create schema faults;
create table faults.clock (ahead interval not null);
insert into faults.clock values ('0');
create function faults.clock_timestamp() returns timestamptz language sql volatile
    return pg_catalog.clock_timestamp() + (select ahead from faults.clock);
alter database postgres set search_path = faults, pg_catalog, public;
"""


class PostgresGround:
    """A private server."""

    name = "postgres"
    clock = None
    can_restart = True
    can_step = True

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer(careful=True)
        self.url = self._server.url()
        self._clocks = door_folder(folder)
        self._proxies: list[Proxy] = []
        with self._server.connect() as connection:
            connection.execute(_CLOCK)

    def door(self, name: str) -> Door:
        proxy = Proxy("127.0.0.1", self._server.port)
        self._proxies.append(proxy)
        url = self.url.replace(f":{self._server.port}/", f":{proxy.port}/")
        return Door(url, ClockFile(self._clocks / name), proxy)

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def pause(self) -> bool:
        self._server.pause()
        return True

    def resume(self) -> None:
        self._server.resume()

    def step(self, offset_us: int) -> None:
        with self._server.connect() as connection:
            connection.execute(
                "update faults.clock set ahead = make_interval(secs => %s)", (offset_us / 1e6,)
            )

    def facts(self) -> dict[str, str]:
        with self._server.connect() as connection:
            version = connection.info.server_version
        return {
            "store": f"PostgreSQL {version // 10_000}.{version % 10_000}, fsync=on, "
            "synchronous_commit=on; a restart is an immediate stop, as after a crash"
        }

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._server.remove()
