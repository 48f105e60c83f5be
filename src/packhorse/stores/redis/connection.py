# SPDX-License-Identifier: MIT
"""A connection to Redis: made and greeted by redis-py, read by hiredis, used by us.

redis-py knows how to connect: addresses, TLS, names and passwords, protocol versions. Its clients
would also send again by themselves what had no answer, which is wrong for a claim, give up after
times of their own, and cost three times as much as the exchange itself. So its connection is told
plainly what to do (no retries, our timeouts, RESP3), and hands over its socket once greeted.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from typing import Any, Final

import hiredis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import (
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from packhorse.errors import ConfigError
from packhorse.stores.redis.faults import Lost, ReplyError
from packhorse.stores.redis.packing import pack
from packhorse.stores.redis.settings import Address, RedisSettings

__all__ = ["NOTHING", "READ_BYTES", "Wire", "dial"]

#: Bytes read in one go.
READ_BYTES: Final = 65_536
#: What the reader says when a reply is not complete.
NOTHING: Final = object()
#: `COPY`, `LMOVE`, `GETDEL` and the rest of what the scripts use.
_VERSION_MIN: Final = (6, 2)

_Kinds = exceptions
#: redis-py takes the first word off some errors; it is what tells them apart.
_FIRST_WORDS: Final = (
    (_Kinds.BusyLoadingError, "LOADING"),
    (_Kinds.ReadOnlyError, "READONLY"),
    (_Kinds.NoPermissionError, "NOPERM"),
    (_Kinds.AuthenticationError, "WRONGPASS"),
    (_Kinds.MasterDownError, "MASTERDOWN"),
    (_Kinds.OutOfMemoryError, "OOM"),
)

_INTRODUCTION: Final = pack(("CLIENT", "SETNAME", "packhorse"))


class Wire:
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
        """Let the kernel end a wait: Python's own way takes two calls for each of ours."""
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
            raise Lost(f"the connection broke ({error})", sent=True) from error
        return reply

    def is_stale(self) -> bool:
        """Whether something arrived that nobody asked for: most likely the server's farewell."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        self.sock.close()  # a process may end without closing its store, and is not scolded for it


def dial(settings: RedisSettings, address: Address, *, patience_s: float | None = None) -> Wire:
    """A new connection, greeted, with its database chosen; with `patience_s`, made faster."""
    connection = _connection(settings, address, patience_s)
    try:
        connection.connect()
    except (exceptions.AuthorizationError, exceptions.ResponseError) as error:
        raise ReplyError(_with_first_word(error)) from error
    except exceptions.RedisError as error:
        connection.disconnect()
        if _first_word(error):
            raise ReplyError(_with_first_word(error)) from error
        silent = isinstance(error, exceptions.TimeoutError)
        raise Lost(f"no connection ({error})", sent=False, silent=silent) from error
    except OSError as error:
        raise Lost(f"no connection ({error})", sent=False) from error
    server = _server(connection)
    sock = connection._sock  # noqa: SLF001 - it has no other way to hand over its socket
    connection._sock = None  # noqa: SLF001 - as above
    wire = Wire(sock, address, server)
    wire.wait_at_most(settings.timeout_s)
    wire.ask(_INTRODUCTION)  # for lists of clients; some users may not, and need not
    return wire


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


def _server(connection: Any) -> str:
    """What the server said it is; too old a one is refused."""
    greeting: dict[Any, Any] = dict(connection.handshake_metadata or {})
    name = greeting.get(b"server", b"redis").decode()
    version = greeting.get(b"version", b"0").decode()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name == "redis" and numbers < _VERSION_MIN:
        connection.disconnect()
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
