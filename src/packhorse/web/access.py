# SPDX-License-Identifier: MIT
"""Authenticate requests, and refuse those that another site made a browser send.

By default nothing authenticates a request. A principal is found by, in this order: a bearer token,
the `authorize` hook of the host application, a header of a trusted proxy, the sign-in cookie, and,
only if that is switched on, a connection from this machine.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import Scope

from packhorse.client.tokens import TokenInfo, Tokens
from packhorse.core.access import ROLES, Permission, Principal, permissions_of
from packhorse.errors import ConfigError
from packhorse.web.problems import WebRefusal

#: A host application's hook: returns a principal, a role, or None for a request.
Authorize = Callable[[Request], Principal | str | Awaitable[Principal | str | None] | None]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOG: Final = logging.getLogger("packhorse.web")
_COOKIE: Final = "packhorse_token"
#: Characters of the digest in a cookie's name.
_COOKIE_DIGEST: Final = 8
_BEARER: Final = "bearer "
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: A request with one of these headers was forwarded, and may come from anywhere.
_FORWARDING: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_.~-]+)+/?")
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """How requests are authenticated."""

    authorize: Authorize | None = None
    proxies: tuple[Network, ...] = ()  #: trusted to name the user
    proxy_header: str = "x-forwarded-user"
    proxy_roles: Mapping[str, str] = field(default_factory=dict)  #: by user
    proxy_role: str | None = None  #: of other users; None refuses them
    loopback: bool = False  #: requests from this machine are an admin's

    def __post_init__(self) -> None:
        for role in (*self.proxy_roles.values(), self.proxy_role):
            if role is not None and role not in ROLES:
                raise ConfigError(f"there is no role {role!r}; give one of {', '.join(ROLES)}")


def proxy_networks(proxies: Iterable[str]) -> tuple[Network, ...]:
    """Parse the addresses of proxies."""
    try:
        return tuple(ipaddress.ip_network(each) for each in proxies)
    except ValueError as error:
        raise ConfigError(f"proxies: {error}; give addresses such as 10.0.0.0/8") from None


async def principal_of(request: Request, rules: AccessRules, tokens: Tokens) -> Principal | None:
    """Authenticate a request; return None if nothing does. Refuse too many wrong tokens."""
    given = request.headers.get("authorization", "")
    if given[: len(_BEARER)].lower() == _BEARER:
        return await token_principal(request, rules, tokens, given[len(_BEARER) :].strip(), "token")
    if rules.authorize is not None:
        answer: Any = rules.authorize(request)
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer is not None:
            return _hooked(answer, rules.authorize)
    user = request.headers.get(rules.proxy_header)
    if user and _is_proxy(_peer(request), rules):
        role = rules.proxy_roles.get(user, rules.proxy_role)
        if role is not None:
            return Principal(name=user, permissions=ROLES[role], by="proxy")
    cookie = request.cookies.get(cookie_of(request))
    if cookie:
        return await token_principal(request, rules, tokens, cookie, "cookie")
    if rules.loopback and _is_local(request):
        return Principal(name="local", permissions=frozenset(Permission), by="loopback")
    return None


async def token_principal(
    request: Request, rules: AccessRules, tokens: Tokens, text: str, by: str
) -> Principal | None:
    """Return the holder of a token; count it and return None if it is not valid."""
    source = source_of(request, rules)
    if await tokens.ablocked(source):
        raise WebRefusal(
            *(429, "TOO_MANY_ATTEMPTS"),
            "too many wrong tokens came from this address; wait five minutes",
            headers={"Retry-After": "300"},
        )
    found = await tokens.afind(text)
    if found is None:
        await tokens.anote_wrong(source)
        return None
    return _holder(found, by)


def _holder(token: TokenInfo, by: str) -> Principal:
    permissions = permissions_of(token.scopes, f"token {token.name!r}")
    name = f"{token.name} ({token.id})"
    return Principal(name=name, permissions=permissions, tenant=token.tenant, by=by)


def cookie_of(request: Request) -> str:
    """Return the name of the sign-in cookie, which depends on port and path.

    Browsers send a cookie to every port of a host: with one name a dashboard would receive, reject
    and delete the cookie of another one.
    """
    where = f"{request.headers.get('host', '').lower()}{request.scope.get('root_path', '')}"
    digest = hashlib.sha256(where.rstrip("/").encode()).hexdigest()
    return f"{_COOKIE}_{digest[:_COOKIE_DIGEST]}"


def _hooked(answer: object, hook: Authorize) -> Principal:
    """Return the principal that a hook answered; log and refuse an invalid answer."""
    if isinstance(answer, str) and answer in ROLES:
        return Principal(name=answer, permissions=ROLES[answer])
    if isinstance(answer, Principal) and _is_whole(answer):
        return answer
    _LOG.error(
        "the hook %s.%s, given to web_app(authorize=), answered %s; it must answer with a "
        "packhorse.web.Principal (name: str, permissions: a set of Permission, tenant: str or "
        "None), with one of the roles %s, or with None; the request was refused",
        getattr(hook, "__module__", type(hook).__module__),
        getattr(hook, "__qualname__", type(hook).__qualname__),
        _in_words(answer),
        ", ".join(repr(role) for role in ROLES),
    )
    raise WebRefusal(500, "UNEXPECTED", "something went wrong here; it was logged")


def _is_whole(answer: Any) -> bool:
    """Check the types of a principal's fields: `in` would find parts of a text of permissions."""
    return (
        isinstance(answer.name, str)
        and isinstance(answer.permissions, AbstractSet)
        and frozenset(Permission).issuperset(answer.permissions)
        and isinstance(answer.tenant, str | None)
    )


def _in_words(answer: object) -> str:
    """Describe an answer without its value, which may be a secret."""
    if isinstance(answer, str):
        return "a str that is no role"
    if isinstance(answer, Principal):
        return "a Principal with fields of other types"
    return f"an object of type {type(answer).__qualname__}"


def source_of(request: Request, rules: AccessRules) -> str:
    """Return the address that a request comes from; trusted proxies may name it."""
    peer = _peer(request)
    hops = [hop.strip() for hop in request.headers.get("x-forwarded-for", "").split(",")]
    while hops and _is_proxy(peer, rules):
        hop = hops.pop()
        if _address(hop) is None:
            break
        peer = hop
    return peer


def forwarded(scope: Scope, rules: AccessRules) -> Scope:
    """Restore host, scheme and prefix of a request that a trusted proxy forwarded.

    The proxy has removed the prefix from the path; one that is the `root_path` is not added again.
    """
    request = Request(scope)
    if not _is_proxy(_peer(request), rules):
        return scope
    host, scheme, prefix = (
        request.headers.get(f"x-forwarded-{name}", "").rpartition(",")[2].strip()
        for name in ("host", "proto", "prefix")
    )
    changed = dict(scope)
    if host:
        others = [pair for pair in scope["headers"] if pair[0] != b"host"]
        changed["headers"] = [*others, (b"host", host.encode("latin-1"))]
    if scheme in ("http", "https"):
        changed["scheme"] = scheme
    root = prefix.rstrip("/")
    if _PREFIX.fullmatch(prefix) and root != scope.get("root_path", ""):
        changed["root_path"] = f"{root}{scope.get('root_path', '')}"
        changed["path"] = f"{root}{scope['path']}"
    return changed


def _peer(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _is_proxy(address: str, rules: AccessRules) -> bool:
    found = _address(address)
    return found is not None and any(found in network for network in rules.proxies)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_local(request: Request) -> bool:
    """Whether a request comes from this machine and names it: a rebound DNS name does not."""
    peer = _address(_peer(request))
    if peer is None or not peer.is_loopback:
        return False
    if any(name in request.headers for name in _FORWARDING):
        return False
    return _host_name(request.headers.get("host", "")) in _LOCAL_NAMES


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def check_origin(request: Request, principal: Principal) -> None:
    """Refuse a request that a page of another site made a browser send.

    Browsers never add a bearer token by themselves, so such a request is not checked.
    """
    if request.method in _READING or principal.by == "token":
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        allowed = site == "same-origin"
    elif origin is not None:
        allowed = urlsplit(origin).netloc == request.headers.get("host")
    else:  # no browser sends neither of them with a change
        allowed = principal.by == "loopback"
    if not allowed:
        raise WebRefusal(
            *(403, "CROSS_SITE"),
            "this request comes from a page of another site; nothing was done",
        )
