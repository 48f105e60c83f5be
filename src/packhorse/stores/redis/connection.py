# SPDX-License-Identifier: MIT
"""Connections to Redis: made and greeted by redis-py, read by hiredis, used by us.

redis-py knows how to connect: addresses, TLS, names and passwords, protocol versions. But its
clients repeat requests that had no answer, which is wrong for a claim, have timeouts besides ours,
and cost three times as much as the exchange itself. So we configure its connection (no retries, our
timeouts, RESP3), and take over the socket after the greeting.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import hiredis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from packhorse.errors import ConfigError
from packhorse.stores.redis.faults import Lost, ReplyError
from packhorse.stores.redis.scripts import Argument
from packhorse.stores.redis.settings import Address, RedisSettings

#: A command as bytes.
pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command
#: Bytes read in one go.
READ_BYTES: Final = 65_536
#: What the reader says when a reply is not complete.
NOTHING: Final = object()
#: `COPY`, `LMOVE`, `GETDEL` and the rest of what the scripts use.
_VERSION_MIN: Final = (6, 2)

_Kinds = exceptions
#: redis-py removes the first word of some errors, which is their code.
_FIRST_WORDS: Final = (
    (_Kinds.BusyLoadingError, "LOADING"),
    (_Kinds.ReadOnlyError, "READONLY"),
    (_Kinds.NoPermissionError, "NOPERM"),
    (_Kinds.AuthenticationError, "WRONGPASS"),
    (_Kinds.MasterDownError, "MASTERDOWN"),
    (_Kinds.OutOfMemoryError, "OOM"),
)

#: Nodes of a cluster that are asked, or remembered, at most.
_NODES_MAX: Final = 64


def pack_large(parts: Sequence[Argument]) -> bytes:
    """A command of a megabyte or more as bytes, in less than a tenth of the time of hiredis."""
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        text = part if isinstance(part, bytes) else str(part).encode()
        packed += (b"$%d\r\n" % len(text), text, b"\r\n")
    return b"".join(packed)


_INTRODUCTION: Final = pack(("CLIENT", "SETNAME", "packhorse"))


class RedisConnection:
    """A greeted connection: one request at a time for a thread, or taken over by an event loop."""

    __slots__ = ("_poll", "address", "generation", "reader", "server", "sock", "tls")

    def __init__(self, sock: socket.socket, address: Address, server: str) -> None:
        self.sock = sock
        self.address = address
        self.generation = 0  #: see `Route`
        self.server = server  #: its kind and version, as it introduced itself
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.reader = hiredis.Reader(
            protocolError=ReplyError, replyError=ReplyError, notEnoughData=NOTHING
        )
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def wait_at_most(self, timeout_s: float) -> None:
        """Set timeouts in the kernel: those of Python cost a second system call each time."""
        if self.tls:
            self.sock.settimeout(timeout_s)
            return
        seconds, rest = divmod(timeout_s, 1)
        span = struct.pack("ll", int(seconds), int(rest * 1_000_000))
        self.sock.settimeout(None)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def ask(self, request: bytes) -> Any:
        """Send a request and wait for its reply; an error reply is returned, not raised."""
        try:
            self.sock.sendall(request)
            while (reply := self.reader.gets()) is NOTHING:
                received = self.sock.recv(READ_BYTES)
                if not received:
                    raise Lost("the server closed the connection", sent=True)
                self.reader.feed(received)
        except (TimeoutError, BlockingIOError) as error:
            raise Lost("the server does not answer", sent=True, silent=True) from error
        except OSError as error:
            reply = self._last_words()
            if reply is NOTHING:
                raise Lost(f"the connection broke ({error})", sent=True) from error
        return reply

    def _last_words(self) -> Any:
        """The reply of a server that closed the connection before it had read a whole request."""
        with contextlib.suppress(OSError):
            self.reader.feed(self.sock.recv(READ_BYTES))
        return self.reader.gets()

    def is_stale(self) -> bool:
        """Whether something arrived unasked: most likely the server closed the connection."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        self.sock.close()  # no ResourceWarning if a process ends without closing its store


def dial(settings: RedisSettings, address: Address, patience_s: float | None) -> RedisConnection:
    """A new connection, greeted, with its database chosen; with `patience_s`, made faster."""
    made = _connection(settings, address, patience_s)
    try:
        made.connect()
    except (exceptions.AuthorizationError, exceptions.ResponseError) as error:
        raise ReplyError(_with_first_word(error)) from error
    except exceptions.RedisError as error:
        made.disconnect()
        if _first_word(error):
            raise ReplyError(_with_first_word(error)) from error
        silent = isinstance(error, exceptions.TimeoutError)
        raise Lost(f"no connection ({error})", sent=False, silent=silent) from error
    except OSError as error:
        raise Lost(f"no connection ({error})", sent=False) from error
    server = _server(made)
    sock = made._sock  # noqa: SLF001 - it has no other way to hand over its socket
    made._sock = None  # noqa: SLF001 - as above
    connection = RedisConnection(sock, address, server)
    connection.wait_at_most(settings.timeout_s)
    connection.ask(_INTRODUCTION)  # for lists of clients; some users may not, and need not
    return connection


def _connection(settings: RedisSettings, address: Address, patience_s: float | None) -> Any:
    """The kind of connection the address asks for; redis-py does not say what it takes."""
    longest_s = settings.timeout_s if patience_s is None else patience_s
    common: dict[str, Any] = {
        "db": settings.database,
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": min(settings.timeout_s, longest_s),
        "socket_connect_timeout": min(settings.connect_timeout_s, longest_s),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 3,
        "legacy_responses": False,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if not address.port:
        kind: Any = UnixDomainSocketConnection
        return kind(path=address.host, **common)
    common |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    if settings.tls is None:
        kind = Connection
        return kind(**common)
    kind = SSLConnection
    return kind(
        ssl_cert_reqs="required" if settings.tls.verify else "none",
        ssl_check_hostname=settings.tls.verify,
        ssl_ca_certs=settings.tls.ca,
        ssl_certfile=settings.tls.cert,
        ssl_keyfile=settings.tls.key,
        **common,
    )


def _server(made: Any) -> str:
    """The name and version of the server; refuse one that is too old."""
    greeting: dict[Any, Any] = dict(made.handshake_metadata or {})
    name = greeting.get(b"server", b"redis").decode()
    version = greeting.get(b"version", b"0").decode()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name == "redis" and numbers < _VERSION_MIN:
        made.disconnect()
        raise ConfigError(f"Redis {version} is too old; Packhorse needs 6.2 or newer, or Valkey")
    return f"{name} {version}"


def _first_word(error: Exception) -> str:
    for kind, word in _FIRST_WORDS:
        if isinstance(error, kind):
            return word
    return ""


def _with_first_word(error: Exception) -> str:
    word, text = _first_word(error), str(error)
    return f"{word} {text}" if word and not text.startswith(word) else text


class Route:
    """The server that holds the namespace: that of the URL, or in a cluster the owner of its slot.

    All keys of a namespace lie in one slot, so one node serves all of it. When a reply shows that
    the owner is another one, the generation goes up: connections of an older one are not used
    again, and the next connection asks the known nodes for the owner.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self.generation = 0
        self._settings = settings
        self._lock = threading.Lock()
        self._owner = None if settings.cluster else settings.addresses[0]
        self._known = settings.addresses

    def open(self, patience_s: float | None = None) -> RedisConnection:
        """A connection to the server that holds the namespace."""
        generation, owner = self.generation, self._owner
        connection = None if owner is None else self._dialled(owner, patience_s)
        if connection is None:
            connection = self._search(patience_s)
        connection.generation = generation
        return connection

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
        """Search for the server with the next connection: this one is not the primary."""
        with self._lock:
            self.generation += 1
            if self._settings.cluster:
                self._owner = None

    def forget_locks(self) -> None:
        """After a fork, in the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def _dialled(self, owner: Address, patience_s: float | None) -> RedisConnection | None:
        """A connection to the owner; None when there are other nodes to ask first."""
        try:
            return dial(self._settings, owner, patience_s)
        except Lost:
            if not self._settings.cluster:
                raise
            with self._lock:
                self._owner = None
            return None

    def _search(self, patience_s: float | None) -> RedisConnection:
        """Ask one node after the other who owns the slot."""
        trouble: Exception | None = None
        for address in self._known[:_NODES_MAX]:
            try:
                connection = dial(self._settings, address, patience_s)
                owner = self._asked(connection)
                if owner == address:
                    return connection
                connection.close()
                return dial(self._settings, owner, patience_s)
            except Lost as error:
                trouble = error
        raise trouble or Lost("no node of the cluster is known", sent=False)

    def _asked(self, connection: RedisConnection) -> Address:
        """The owner of our slot as this node sees it; other nodes it knows are remembered."""
        reply = connection.ask(pack(("CLUSTER", "SLOTS")))
        if isinstance(reply, Exception):
            connection.close()
            raise reply
        slot = key_slot(self._settings.tag.encode())
        owner = None
        for first, last, primary, *_ in reply:
            if first <= slot <= last:
                owner = _address(primary, connection.address)
        if owner is None:
            connection.close()
            raise ReplyError("CLUSTERDOWN no node serves the slot of this namespace")
        nodes = dict.fromkeys(_nodes(reply, connection.address))
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
