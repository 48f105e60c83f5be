# SPDX-License-Identifier: MIT
"""The ASGI application: routes, the headers of every answer, and errors without a route."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packhorse.app import Packhorse
from packhorse.client.audit import KEPT_DAYS
from packhorse.errors import ConfigError
from packhorse.web.access import AccessRules, Authorize, forwarded, proxy_networks
from packhorse.web.count_cache import FleetLooks
from packhorse.web.openapi import openapi_document
from packhorse.web.page_server import PageServer
from packhorse.web.problems import problem
from packhorse.web.routes import API_ROUTES, PREFIX
from packhorse.web.serving import ApiServer
from packhorse.web.streams import FleetFeed

_TRACE_URL: Final = re.compile(r"https?://[^\s{}]*{trace_id}[^\s{}]*")
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
)


def web_app(
    app: Packhorse,
    *,
    authorize: Authorize | None = None,
    proxies: Iterable[str] = (),
    proxy_header: str = "X-Forwarded-User",
    proxy_roles: Mapping[str, str] | None = None,
    proxy_role: str | None = None,
    loopback: bool = False,
    audit_days: int = KEPT_DAYS,
    trace_url: str | None = None,
) -> Starlette:
    """Make an ASGI application, to serve or to mount: pages, and the API under `/api/v1`.

    Tokens (`packhorse tokens create`) are always accepted. `authorize` is called for every request
    without one, and returns a `Principal`, a role, or None. `proxies` are addresses of proxies that
    are trusted: their `proxy_header` names the user, and they name host, scheme and prefix;
    `proxy_roles` gives roles by user, `proxy_role` that of other users. With `loopback`, requests
    from this machine that no proxy forwarded are an admin's. `trace_url` is where traces of jobs
    are shown: `https://traces.example/{trace_id}`.
    """
    if audit_days < 1:
        raise ConfigError(f"audit_days is {audit_days!r}; give at least 1")
    if trace_url is not None and not _TRACE_URL.fullmatch(trace_url):
        raise ConfigError(
            f"trace_url is {trace_url!r}; give an address with {{trace_id}} in it, such as "
            "https://traces.example/{trace_id}"
        )
    rules = AccessRules(
        authorize=authorize,
        proxies=proxy_networks(proxies),
        proxy_header=proxy_header.lower(),
        proxy_roles=dict(proxy_roles or {}),
        proxy_role=proxy_role,
        loopback=loopback,
    )
    server = ApiServer(app, rules, audit_days)
    made = Starlette(routes=list(_routes(server)), exception_handlers={HTTPException: _no_route})
    made.add_middleware(_SafeHeaders, rules=rules)
    made.state.trace_url = trace_url
    made.state.looks = FleetLooks(app)
    made.state.feed = FleetFeed(app, made.state.looks)
    return made


def _routes(server: ApiServer) -> Iterable[BaseRoute]:
    yield Route(f"{PREFIX}/openapi.json", _openapi, methods=["GET"])
    for route in API_ROUTES:
        path, methods = f"{PREFIX}{route.path}", [route.method]
        yield Route(path, server.endpoint(route), methods=methods)
    yield from PageServer(server).routes()


async def _openapi(_request: Request) -> Response:
    return Response(_openapi_text(), media_type="application/json")


@cache
def _openapi_text() -> bytes:
    return msgspec.json.encode(openapi_document())


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == _NOT_FOUND:
        return problem(status, "NO_SUCH_ROUTE", "there is no such route here")
    headers = {"Allow": ", ".join(_methods(request))}
    return problem(status, "METHOD_NOT_ALLOWED", "there is no such route here", headers=headers)


def _methods(request: Request) -> list[str]:
    """List the methods of the path that was asked for; each may have its own route."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    fits = [each.path for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    same = [each for each in routes if each.path == fits[0]]
    return sorted({method for each in same for method in each.methods or ()})


_NOT_FOUND: Final = 404


class _SafeHeaders:
    """Adds security headers to every answer, and applies the headers of trusted proxies."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(name, value) for name, value in _HEADERS if name not in given]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(forwarded(scope, self._rules), receive, send_safely)
