# SPDX-License-Identifier: MIT
"""From a URL to the settings of a Redis store."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from packhorse.core.durations import positive_microseconds
from packhorse.errors import ConfigError

_PORT: Final = 6379
#: A namespace is a hash tag and a part of every key: no braces, nothing that could end it early.
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_DATABASE: Final = re.compile(r"/?|/(?P<number>[0-9]{1,9})")
_TRUTH: Final = MappingProxyType({"true": True, "1": True, "false": False, "0": False})
_OPTIONS: Final = (
    "namespace",
    "cluster",
    "timeout",
    "connect_timeout",
    "connections",
    "db",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_verify",
)
_HOW: Final = (
    "write redis://host:6379/0, rediss://user:password@host/0, unix:///run/redis.sock, or "
    "redis://host1:7000,host2:7001?cluster=true"
)
_ESCAPES: Final = "with @ as %40, / as %2F, ? as %3F, # as %23 in names and passwords"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a server listens: a host and a port, or the path of a socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to verify a `rediss://` server, and the certificate that we show it."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where the server is, and how it is used."""

    addresses: tuple[Address, ...]
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    namespace: str = "packhorse"
    cluster: bool = False
    #: The longest wait for an answer.
    timeout_s: float = 5.0
    #: The longest wait for a connection.
    connect_timeout_s: float = 2.0
    #: Connections that the threads of one process may have open at once.
    connections: int = 64

    @property
    def tag(self) -> str:
        """What every key begins with: a hash tag, which keeps them in one slot of a cluster."""
        return f"{{{self.namespace}}}"

    @property
    def label(self) -> str:
        """The URL without its secrets."""
        where = ",".join(map(str, self.addresses))
        user = "" if self.username is None else quote(self.username, safe="")
        secret = "" if self.password is None else ":***"
        at = "@" if user or secret else ""
        wishes = [f"namespace={self.namespace}"] if self.namespace != "packhorse" else []
        wishes += ["cluster=true"] if self.cluster else []
        if not self.addresses[0].port:
            wishes += [f"db={self.database}"] if self.database else []
            head = f"unix://{user}{secret}{at}{where}"
        else:
            scheme = "redis" if self.tls is None else "rediss"
            head = f"{scheme}://{user}{secret}{at}{where}/{self.database}"
        return "?".join([head, "&".join(wishes)]) if wishes else head

    @classmethod
    def from_url(cls, url: str) -> RedisSettings:
        """Read a `redis://`, `rediss://` or `unix://` URL, and refuse unknown options."""
        parts = _split(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            shown = repr(unknown[0]) if unknown[0].isidentifier() else "what stands after the ?"
            raise ConfigError(
                f"{shown} is not an option of a Redis URL; there are {', '.join(_OPTIONS)}"
            )
        user, at, where = parts.netloc.rpartition("@")
        username, colon, password = user.partition(":")
        unix = parts.scheme == "unix"
        settings = cls(
            addresses=(_socket_of(parts, where),) if unix else _addresses(where),
            database=_database(parts, options),
            username=unquote(username) or None,
            password=unquote(password) if at and colon else None,
            tls=_tls(parts, options),
            namespace=_namespace(options),
            cluster=_flag(options, "cluster", default=False),
            timeout_s=_seconds(options, "timeout", "5s"),
            connect_timeout_s=_seconds(options, "connect_timeout", "2s"),
            connections=_connections(options),
        )
        settings.refuse_contradictions()
        return settings

    def refuse_contradictions(self) -> None:
        """Refuse options that exclude each other."""
        if self.cluster and self.database:
            raise ConfigError("a Redis Cluster has database 0 only; use namespace= to keep apart")
        if self.cluster and not self.addresses[0].port:
            raise ConfigError("cluster=true needs hosts and ports; a socket is one server")
        if len(self.addresses) > 1 and not self.cluster:
            raise ConfigError("several hosts are nodes of one cluster; add cluster=true")


def _split(url: str) -> SplitResult:
    """Split a URL; error messages never quote parts that may hold a password."""
    parts = None
    with contextlib.suppress(ValueError):  # whose message quotes the URL
        parts = urlsplit(url)
    if parts is None or parts.scheme not in ("redis", "rediss", "unix") or "#" in url:
        raise ConfigError(f"the URL names no Redis server; {_HOW}, {_ESCAPES}")
    if "@" in parts.path or "@" in parts.query:
        raise ConfigError(
            f"the Redis URL has an @ that does not stand before the host; {_HOW}, {_ESCAPES}"
        )
    return parts


def _socket_of(parts: SplitResult, where: str) -> Address:
    path = unquote(parts.path)
    if where or path in ("", "/") or "\0" in path:
        raise ConfigError(f"the Redis URL names no socket; {_HOW}")
    return Address(path, 0)


def _addresses(where: str) -> tuple[Address, ...]:
    return tuple(_address(part) for part in where.split(","))


def _address(text: str) -> Address:
    host, closing, port = text.partition("]") if text.startswith("[") else text.partition(":")
    if closing == "]":
        host, port = host[1:], port.removeprefix(":")
    if not host or not (port.isdecimal() or not port) or not 0 < int(port or _PORT) < 2**16:
        raise ConfigError(f"the Redis URL names no host and port; {_HOW}, {_ESCAPES}")
    return Address(host, int(port or _PORT))


def _database(parts: SplitResult, options: dict[str, str]) -> int:
    path = "/" + options["db"] if "db" in options else parts.path
    if parts.scheme == "unix" and "db" not in options:
        return 0
    match = _DATABASE.fullmatch(path)
    if match is None:
        raise ConfigError(f"{path[1:]!r} is not the number of a Redis database; {_HOW}")
    return int(match["number"] or 0)


def _tls(parts: SplitResult, options: dict[str, str]) -> Tls | None:
    if parts.scheme != "rediss":
        wrong = [name for name in options if name.startswith("tls_")]
        if wrong:
            raise ConfigError(f"{wrong[0]} is for rediss:// URLs only")
        return None
    verify = _flag(options, "tls_verify", default=True)
    return Tls(options.get("tls_ca"), options.get("tls_cert"), options.get("tls_key"), verify)


def _namespace(options: dict[str, str]) -> str:
    namespace = options.get("namespace", "packhorse")
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"{namespace!r} cannot be a namespace; use at most 64 letters, digits, _ . : and -"
        )
    return namespace


def _flag(options: dict[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in _TRUTH:
        raise ConfigError(f"{name}={text} is neither true nor false")
    return _TRUTH[text]


def _seconds(options: dict[str, str], name: str, default: str) -> float:
    return positive_microseconds(options.get(name, default), setting=name) / 1_000_000


def _connections(options: dict[str, str]) -> int:
    text = options.get("connections", "64")
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:  # noqa: PLR2004 - said in the message
        raise ConfigError(f"connections={text} is not a number from 1 to 10000")
    return int(text)
