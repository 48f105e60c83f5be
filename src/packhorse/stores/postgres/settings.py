# SPDX-License-Identifier: MIT
"""A PostgreSQL URL as a value: where the server is, and how the store uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NoReturn
from urllib.parse import quote, unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from packhorse.core.durations import positive_microseconds
from packhorse.errors import ConfigError

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
#: Where libpq finds a name and a password: before an @, if no / comes first.
_CREDENTIALS: Final = re.compile(r"[^@/]*@")
_OPTION: Final = re.compile(r"[a-z_]{1,40}")
#: Options of libpq whose values are shown; those of all others may be secrets.
_SHOWN: Final = frozenset({"sslmode", "target_session_attrs", "application_name"})
_PLACED: Final = frozenset({"user", "password", "host", "port", "dbname"})
#: How long a transaction of ours may stand still between two of its statements, in seconds. One
#: that stops there (a stopped process, a cut wire) holds its locks, and all others wait for them:
#: rescues too, which have 5 s beyond a lease, and several may stop one after the other.
_STANDS_STILL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Where the server is, and how it is used."""

    conninfo: str = field(repr=False)  #: what libpq is given
    label: str  #: the URL, made from what libpq reads in it, without its secrets
    schema: str = "packhorse"
    prefix: str = ""  #: before every name in the schema
    pool: int = 10  #: connections at most, of all threads or of one event loop
    hot_pool: int = 4  #: as many more, for claims, settlements and leases alone
    statement_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    listen_conninfo: str | None = field(
        default=None, repr=False
    )  #: where wake-ups are heard, if not at the same address
    prepare: bool = True  #: keep statements prepared; False behind an old PgBouncer

    @property
    def server_settings(self) -> dict[str, str]:
        """What the server is set to for our statements: what it ends by itself, and how it plans.

        A plan is kept as long as its connection. One made for an empty table must be good for a
        full one, so tables are read as a whole only where there is no index to go by, and the
        first rows of an order by its index, not by sorting all that a bitmap has found; to the
        planner of older servers that costs so much that it would compile such a plan.
        """
        return {
            "statement_timeout": f"{self.statement_timeout_s * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{_STANDS_STILL_S * 1000:.0f}",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "jit": "off",
        }

    @classmethod
    def from_url(cls, url: str) -> PostgresSettings:
        """Read `postgresql://user:password@host/database?schema=jobs`, also libpq's options."""
        known, own = _read(url, "the PostgreSQL URL")
        label = _label(known, own)
        listen_url = own.pop("listen_url", None)
        listen = None if listen_url is None else _read(listen_url, "its listen_url")[0]
        return cls(
            conninfo=_conninfo(known),
            label=label,
            schema=_name(own, "schema", _NAME, "packhorse"),
            prefix=_name(own, "prefix", _PREFIX, ""),
            pool=_count(own, "pool", 10),
            hot_pool=_count(own, "hot_pool", 4),
            statement_timeout_s=_span(own, "statement_timeout", 30.0),
            connect_timeout_s=_span(own, "connect_timeout", 10.0),
            listen_conninfo=None if listen is None else _conninfo(listen),
            prepare=_switch(own, "prepare"),
        )


def _read(url: str, what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What libpq reads in a URL, and our own options; no message shows a part of the URL."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in ("postgresql", "postgres"):
        _refuse(what, "it does not begin with postgresql://")
    found = _CREDENTIALS.match(rest)
    credentials = "" if found is None else found.group()
    place, _, query = rest[len(credentials) :].partition("?")
    own, others = _options(query)
    if "@" in place or any("@" in part for part in others):
        _refuse(what, "it has an @ that does not stand before the host")
    known = _known("&".join(others), f"{scheme}://{credentials}{place}")
    if known is None:
        unknown = _unknown_option(others)
        why = "libpq cannot read it" if unknown is None else f"{unknown!r} is not an option of it"
        _refuse(what, why)
    if not all(port.isdigit() for port in str(known.get("port") or "").split(",") if port):
        _refuse(what, "its port is not a number")  # which a password may have become
    return known, own


def _refuse(what: str, why: str) -> NoReturn:
    raise ConfigError(
        f"{what} cannot be used: {why}; write postgresql://user:password@host:5432/database, "
        "with @ as %40, / as %2F, ? as %3F and % as %25 in names and passwords, and libpq's "
        f"options or {', '.join(_OWN)} after a ?"
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


def _known(query: str, url: str) -> dict[str, Any] | None:
    """What libpq reads; None for what it cannot, since its message would quote the URL."""
    try:
        return conninfo_to_dict(f"{url}?{query}" if query else url)
    except (ProgrammingError, ValueError):
        return None


def _unknown_option(others: list[str]) -> str | None:
    """An option that libpq does not have, if it has the form of one."""
    keywords = {default.keyword.decode() for default in Conninfo.get_defaults()}
    names = (part.partition("=")[0] for part in others)
    return next((name for name in names if _OPTION.fullmatch(name) and name not in keywords), None)


def _conninfo(known: Mapping[str, Any]) -> str:
    return make_conninfo("", **{**_KEEPALIVE, **known})


def _label(known: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """The URL as it may be shown: places in full, of all else only values known to be harmless."""
    user = quote(str(known.get("user", "")), safe="")
    secret = f":{_MASK}" if "password" in known else ""
    hosts = str(known.get("host", "")).split(",")
    options = {
        **{name: known[name] if name in _SHOWN else _MASK for name in known if name not in _PLACED},
        **{name: _MASK if name == "listen_url" else value for name, value in own.items()},
    }
    if any(host.startswith(("/", "@")) for host in hosts):  # sockets
        where = ""
        options = {**{name: known[name] for name in ("host", "port") if name in known}, **options}
    else:
        where = _addresses(hosts, str(known.get("port", "")).split(","))
    at = "@" if user or secret else ""
    query = "&".join(f"{name}={quote(str(value), safe='/,*')}" for name, value in options.items())
    database = quote(str(known.get("dbname", "")), safe="")
    return f"postgresql://{user}{secret}{at}{where}/{database}{'?' if query else ''}{query}"


def _addresses(hosts: list[str], ports: list[str]) -> str:
    """Hosts and ports as a URL has them; one port is that of all hosts."""
    every = ports * len(hosts) if len(ports) == 1 else ports
    named = [f"[{host}]" if ":" in host else quote(host, safe="") for host in hosts]
    pairs = zip(named, every, strict=False)
    return ",".join(f"{host}:{port}" if port else host for host, port in pairs)


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
