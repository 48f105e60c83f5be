# SPDX-License-Identifier: MIT
"""Redis: an empty numbered database for every measurement, on a server that keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import redis

from benchmarks import machine
from benchmarks.measures import durability
from benchmarks.peers.catalogue import invited
from benchmarks.stage import Stage
from benchmarks.stores.lines import Lines
from benchmarks.stores.server_bounds import redis_bounds
from benchmarks.stores.staging import Databases, staged
from benchmarks.workloads import bare_redis
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from tests.servers.named import named_server
from tests.servers.redis import VARIABLE

#: Numbered databases of a server by default; number 0 is most likely in use.
_NUMBERS: Final = range(1, 16)
#: Keys removed in one go.
_BATCH: Final = 1000
#: Seconds that the server may take for one answer.
_PATIENCE_S: Final = 120
_METHOD: Final = """
- Every measurement has an empty database on one server, which keeps nothing on disk, for everybody
  alike; what `appendfsync` costs is shown apart.
- The bare loop is one short script for each verb, through redis-py with hiredis, on the same event
  loop, claiming 500 at a time, as a Packhorse worker does at most, while it completes the last.
- The work of a claim is the commands that the server runs, those inside scripts included.
- No peer in Python has a bulk submit on Redis, so ours is held against theirs one by one.
- Submits are made in turns of a fraction of a second, so that the contestants share every mood of
  the machine; a round's rate is the median turn.
""".strip()


@dataclass(frozen=True, slots=True)
class _Databases:
    """Those of a run on one server, each given to a folder for a while."""

    url: str
    own: bool
    free: list[int]
    taken: dict[str, int] = field(default_factory=dict)

    def of(self, folder: Path) -> str:
        """Where a folder's database is."""
        return self._url(self.taken[folder.name])

    @contextmanager
    def place(self, folder: Path) -> Iterator[None]:
        """An empty database, emptied again afterwards."""
        number = self._take()
        self.taken[folder.name] = number
        try:
            yield
        finally:
            with self.client(number) as client:
                self._empty(client)
            self.free.append(self.taken.pop(folder.name))

    def _take(self) -> int:
        """The next database that is still empty: on a server that is named, others come and go."""
        while self.free:
            number = self.free.pop(0)
            with self.client(number) as client:
                if not client.dbsize():
                    return number
        raise RuntimeError(f"no empty database is left on the server named by {VARIABLE}")

    def counted(self, folder: Path, action: Callable[[Store], None]) -> float:
        """The commands that all clients of the server run."""
        before = self._commands()
        store = open_store(self.of(folder))
        try:
            action(store)
        finally:
            store.close()
        return self._commands() - before

    def client(self, number: int) -> redis.Redis:
        """A client to look from aside, and to wait while very many keys are removed."""
        return redis.Redis.from_url(self._url(number), socket_timeout=_PATIENCE_S)

    def facts(self) -> dict[str, str]:
        """What the server says about itself."""
        with self.client(self.free[0]) as client:
            told: Any = client.info()
        kept = "nothing is kept on disk" if not told["aof_enabled"] else "an append-only file"
        return {"Redis": f"{told['redis_version']}; {kept}"}

    def _commands(self) -> float:
        with self.client(self.free[0]) as client:
            told: Any = client.info("commandstats")
        return float(sum(one["calls"] for one in told.values()))

    def _empty(self, client: redis.Redis) -> None:
        """All at once where the server is our own; else key by key what was put there since."""
        if self.own:
            client.flushdb()
            return
        keys: Any = client.scan_iter(count=_BATCH)
        for key in keys:
            client.unlink(key)

    def _url(self, number: int) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{number}"))


def _empty_numbers(url: str) -> list[int]:
    """The databases that are empty."""
    found = []
    for number in _NUMBERS:
        address = urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
        with redis.Redis.from_url(address) as client:
            if not client.dbsize():
                found.append(number)
    return found


@contextmanager
def _databases(directory: Path) -> Iterator[_Databases]:
    """Those of the server that is named, as far as they are empty; or of a private one."""
    named = named_server(VARIABLE)
    if named is not None:
        yield _Databases(named, own=False, free=_empty_numbers(named))
        return
    with durability.private_server(directory) as url:
        yield _Databases(url, own=True, free=list(_NUMBERS))


@contextmanager
def redis_stage(
    directory: Path, names: Sequence[str] | None, say: Callable[[str], None]
) -> Iterator[Stage]:
    """Start a server, unless one is named, and invite the peers."""
    with _databases(directory) as databases:
        peers = invited("redis", names, databases.of, say)
        lines = Lines(
            url=databases.of,
            server=databases.of,
            bare_module="benchmarks.workloads.bare_redis",
            bare_finished=bare_redis.finished,
            peers=peers,
        )
        yield staged(
            "redis",
            "Packhorse on Redis, measured",
            lines,
            Databases(databases.of, databases.place, databases.counted, "commands"),
            once={"durability": durability.measure},
            bounds=redis_bounds,
            method=_METHOD,
            facts={
                **databases.facts(),
                "server": "the run's own" if databases.own else f"named by {VARIABLE}",
                "driver": machine.versions_of("redis", "hiredis"),
            },
        )
