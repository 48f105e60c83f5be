# SPDX-License-Identifier: MIT
"""A PostgreSQL URL as a value: where the server is, and how the store uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from packhorse.durations import positive_microseconds
from packhorse.errors import ConfigError

__all__ = ["PostgresSettings"]

#: Names that need no quoting anywhere, and are short enough for the names made from them.
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_PREFIX: Final = re.compile(r"([a-z_][a-z0-9_]{0,19})?")
_POOL_MAX: Final = 1000
_OWN: Final[tuple[str, ...]] = (
    "schema",
    "prefix",
    "pool",
    "hot_pool",
    "statement_timeout",
    "connect_timeout",
    "listen_url",
    "prepare",
)
#: A dead peer is noticed by the system in about this time, unless the URL says otherwise.
_KEEPALIVE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "application_name": "packhorse",
    }
)
_MASK: Final = "***"
#: How long a transaction of ours may stand still between two of its statements, in seconds. Whoever
#: stops there (a stopped process, a cut wire) holds its locks, and everybody waits for them.
_STANDS_STILL_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Where the server is, and how it is used."""

    conninfo: str  #: what libpq is given
    label: str  #: the URL with its secrets masked
    schema: str = "packhorse"
    prefix: str = ""  #: before every name in the schema
    pool: int = 10  #: connections at most, of all threads or of one event loop
    hot_pool: int = 4  #: as many more, for claims, settlements and leases alone
    statement_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    listen_conninfo: str | None = None  #: where wake-ups are heard, if not at the same address
    prepare: bool = True  #: keep statements prepared; False behind an old PgBouncer

    @property
    def server_timeouts(self) -> dict[str, int]:
        """What the server is to end by itself, by the names of its settings, in milliseconds."""
        return {
            "statement_timeout": round(self.statement_timeout_s * 1000),
            "idle_in_transaction_session_timeout": round(_STANDS_STILL_S * 1000),
        }

    @classmethod
    def from_url(cls, url: str) -> PostgresSettings:
        """Read `postgresql://user:password@host/database?schema=jobs`, also libpq's options."""
        try:
            parts = urlsplit(url)
            own, others = _options(parts.query)
            conninfo = _conninfo(urlunsplit(parts._replace(query="&".join(others))))
            listen_url = own.pop("listen_url", None)
            listen = None if listen_url is None else _conninfo(listen_url)
        except (ProgrammingError, ValueError) as error:
            raise ConfigError(_unreadable(url, str(error).strip())) from None
        return cls(
            conninfo=conninfo,
            label=_masked(url),
            schema=_name(own, "schema", _NAME, "packhorse"),
            prefix=_name(own, "prefix", _PREFIX, ""),
            pool=_count(own, "pool", 10),
            hot_pool=_count(own, "hot_pool", 4),
            statement_timeout_s=_span(own, "statement_timeout", 30.0),
            connect_timeout_s=_span(own, "connect_timeout", 10.0),
            listen_conninfo=listen,
            prepare=_switch(own, "prepare"),
        )


def _options(query: str) -> tuple[dict[str, str], list[str]]:
    """Our own options, and those of libpq as they were written: to it a + is a plus sign."""
    own: dict[str, str] = {}
    others: list[str] = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name in _OWN:
            own[name] = unquote(value)
        else:
            others.append(part)
    return own, others


def _conninfo(url: str) -> str:
    """What libpq is given; it reads the URL itself, but believes any port."""
    known = conninfo_to_dict(url)
    ports = str(known.get("port") or "")
    if not all(port.isdigit() for port in ports.split(",") if port):
        raise ValueError(f"{ports!r} is not a port")
    return make_conninfo("", **{**_KEEPALIVE, **known})


def _unreadable(url: str, why: str) -> str:
    return (
        f"{_masked(url)!r} is not a PostgreSQL URL that can be used: {why}; write "
        "postgresql://user:password@host:5432/database, with libpq's options or "
        f"{', '.join(_OWN)} after a ?"
    )


def _masked(url: str) -> str:
    """The URL without its secrets, wherever they stand in it."""
    hidden = re.sub(r"(?<=://)([^/?#@:]*):[^/?#]*@", rf"\1:{_MASK}@", url)
    hidden = re.sub(r"(?i)((?:ssl)?password=)[^&#]*", rf"\1{_MASK}", hidden)
    return re.sub(r"(?i)(listen_url=)[^&#]*", rf"\1{_MASK}", hidden)


def _name(own: dict[str, str], option: str, pattern: re.Pattern[str], default: str) -> str:
    value = own.get(option, default)
    if pattern.fullmatch(value) is None:
        raise ConfigError(
            f"{option} is {value!r}; give lower-case letters, digits and _, not beginning with a "
            "digit, at most 40 for a schema and 20 for a prefix"
        )
    return value


def _count(own: dict[str, str], option: str, default: int) -> int:
    value = own.get(option, str(default))
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= _POOL_MAX):
        raise ConfigError(f"{option} is {value!r}; give a number of connections, 1 to {_POOL_MAX}")
    return int(value)


def _span(own: dict[str, str], option: str, default: float) -> float:
    if option not in own:
        return default
    return positive_microseconds(own[option], setting=option) / 1_000_000


def _switch(own: dict[str, str], option: str) -> bool:
    value = own.get(option, "on")
    if value not in ("on", "off"):
        raise ConfigError(f"{option} is {value!r}; give on or off")
    return value == "on"
