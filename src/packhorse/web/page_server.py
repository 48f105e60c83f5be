# SPDX-License-Identifier: MIT
"""Serve the pages of the dashboard, and the forms on them.

A form is posted to `/do` and the path of an API route. It has the permission, handler and audit of
that route; then the browser is redirected to the page it came from.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from packhorse.client.tokens import Tokens
from packhorse.core.access import Permission, Principal
from packhorse.core.clock import SystemClock, from_datetime
from packhorse.core.durations import span_text
from packhorse.core.job import DeadReason, JobStatus
from packhorse.errors import PackhorseError
from packhorse.web.access import check_origin, cookie_of, token_principal
from packhorse.web.calls import ApiCall, ApiRoute
from packhorse.web.page_table import PAGES, PageRoute
from packhorse.web.problems import WebRefusal, problem_of
from packhorse.web.routes import API_ROUTES, PREFIX
from packhorse.web.serving import ApiServer, allowed, read_body, read_query

_LOG: Final = logging.getLogger("packhorse.web")
_FOLDER: Final = Path(__file__).parent
_STATIC: Final = ("style.css", "app.js", "icon.svg")
_UNKNOWN: Final = 401
_COOKIE_S: Final = 12 * 3_600
_EXACT_MS: Final = 10_000
#: Parameters of every page that its handler does not get.
_OWN: Final = frozenset({"done"})


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        {
            "json": _json_text,
            "ago": _ago,
            "span": _span,
            "part": lambda text: quote(str(text), safe=""),
        }
    )
    return environment


def _json_text(value: Any) -> str:
    """Format a value as indented JSON; large integers keep all digits."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _ago(text: str | None) -> str:
    """Format how long ago, or how far ahead, an instant is."""
    if text is None:
        return "-"
    at_us = from_datetime(msgspec.convert(text, type=datetime))
    span_us = SystemClock().now_us() - at_us
    whole = abs(span_us) // 1_000_000 * 1_000_000
    shown = span_text(whole) if whole else "0s"
    return f"{shown} ago" if span_us >= 0 else f"in {shown}"


def _span(milliseconds: int) -> str:
    """Format a duration; from ten seconds on in whole seconds."""
    if milliseconds < _EXACT_MS:
        return f"{milliseconds} ms"
    return span_text(milliseconds // 1_000 * 1_000_000)


@dataclass(frozen=True, slots=True)
class PageServer:
    """The pages of one app."""

    api: ApiServer

    def routes(self) -> Iterator[BaseRoute]:
        """Yield the routes of pages, forms, sign-in and static files."""
        for name in _STATIC:
            yield Route(f"/static/{name}", _file(name), methods=["GET"])
        yield Route("/login", self._login, methods=["GET", "POST"])
        yield Route("/logout", self._logout, methods=["POST"])
        for route in API_ROUTES:
            if route.changes:
                before = "/do/delete" if route.method == "DELETE" else "/do"
                yield Route(f"{before}{route.path}", self._form(route), methods=["POST"])
        for page in PAGES:
            yield Route(page.path, self._page(page), methods=["GET"])

    # ------------------------------------------------------------------------------------ reading

    def _page(self, page: PageRoute) -> Callable[[Request], Awaitable[Response]]:
        @_safely
        async def answer(request: Request) -> Response:
            try:
                principal = await self.api.principal(request)
                if page.path == "/" and _begins_with_jobs(principal, page):
                    return _moved(request, "/jobs")
                allowed(principal, page.permission, fleet=page.fleet)
                query = read_query(request, page.query, leave_out=_OWN)
                call = ApiCall(
                    app=self.api.app,
                    principal=principal,
                    request=request,
                    path=request.path_params,
                    query=query,
                )
                found = (await call.answered_by(page.read)).body
            except (PackhorseError, WebRefusal) as error:
                return _refused(request, error)
            return _rendered(request, page.template, principal, title=page.title, **found)

        return answer

    # -------------------------------------------------------------------------------------- doing

    def _form(self, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
        @_safely
        async def answer(request: Request) -> Response:
            try:
                done = await self.api.done(request, route, form=True)
            except (PackhorseError, WebRefusal) as error:
                return _refused(request, error)
            made = done.headers.get("location", "").partition(PREFIX)[2]
            if made:  # go to the page of the new thing
                return _moved(request, f"{made}?{urlencode([('done', route.answers.summary)])}")
            return _back(request, route.answers.summary)

        return answer

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return _rendered(request, "login.html", None, title="Sign in", wrong=False)
        try:
            # Another site must not sign a browser in with a token it chose.
            check_origin(request, Principal(name="", permissions=frozenset(), by="cookie"))
            sent = dict(parse_qsl((await read_body(request)).decode(errors="replace")))
            given = sent.get("token", "").strip()
            tokens = Tokens(self.api.app.store)
            found = await token_principal(request, self.api.rules, tokens, given, "cookie")
        except WebRefusal as error:
            return _refused(request, error)
        if found is None:
            again = _rendered(request, "login.html", None, title="Sign in", wrong=True)
            again.status_code = _UNKNOWN
            return again
        answer = _moved(request, "/")
        answer.set_cookie(
            cookie_of(request),
            given,
            max_age=_COOKIE_S,
            path=f"{_root(request)}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        try:
            check_origin(request, Principal(name="", permissions=frozenset(), by="cookie"))
        except WebRefusal as error:
            return _refused(request, error)
        answer = _moved(request, "/login")
        answer.delete_cookie(cookie_of(request), path=f"{_root(request)}/")
        return answer


def _safely(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Log unexpected errors, and answer without their details."""

    async def answer_safely(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception:  # noqa: BLE001 - a page must not take the server down
            _LOG.exception("%s %s failed", request.method, request.url.path)
            return _refused(
                request, WebRefusal(500, "UNEXPECTED", "something went wrong here; it was logged")
            )

    return answer_safely


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        headers = {"Cache-Control": "public, max-age=300"}
        return FileResponse(_FOLDER / "static" / name, headers=headers)

    return answer


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def _moved(request: Request, path: str) -> RedirectResponse:
    return RedirectResponse(f"{_root(request)}{path}", status_code=303)


def _back(request: Request, done: str) -> Response:
    """Redirect to the page of the form; never to a Referer of another site."""
    came = urlsplit(request.headers.get("referer", ""))
    path = came.path if came.netloc == request.headers.get("host") else f"{_root(request)}/"
    if not path.startswith(f"{_root(request)}/"):
        path = f"{_root(request)}/"
    kept = [pair for pair in parse_qsl(came.query) if pair[0] not in _OWN]
    query = urlencode([*kept, ("done", done)])
    return RedirectResponse(f"{path}?{query}", status_code=303)


def _refused(request: Request, error: PackhorseError | WebRefusal) -> Response:
    problem = problem_of(error)
    if problem.status_code == _UNKNOWN:
        away = _moved(request, "/login")
        # Each request with a revoked token would count as one more wrong token.
        away.delete_cookie(cookie_of(request), path=f"{_root(request)}/")
        return away
    told = msgspec.json.decode(bytes(problem.body))
    shown = _rendered(request, "problem.html", None, title=told["title"], problem=told)
    shown.status_code = problem.status_code
    if "retry-after" in problem.headers:
        shown.headers["Retry-After"] = problem.headers["retry-after"]
    return shown


def _rendered(
    request: Request, template: str, principal: Principal | None, **values: Any
) -> Response:
    text = (
        _templates()
        .get_template(template)
        .render(
            root=_root(request),
            principal=principal,
            may=_may(principal),
            pages=[page for page in PAGES if page.listed and _sees(principal, page)],
            here=request.url.path.removeprefix(_root(request)),
            asked=request.query_params,
            next_page=_next_page(request, values.get("after")),
            statuses=[status.value for status in JobStatus],
            reasons_of_death=[reason.value for reason in DeadReason],
            done=request.query_params.get("done", ""),
            **values,
        )
    )
    return Response(text, media_type="text/html")


def _may(principal: Principal | None) -> frozenset[str]:
    return frozenset() if principal is None else frozenset(map(str, principal.permissions))


def _sees(principal: Principal | None, page: PageRoute) -> bool:
    if principal is None or not principal.may(page.permission):
        return False
    return principal.tenant is None or not page.fleet


def _begins_with_jobs(principal: Principal, overview: PageRoute) -> bool:
    return principal.may(Permission.JOBS_VIEW) and not _sees(principal, overview)


def _next_page(request: Request, after: str | int | None) -> str | None:
    if after is None:
        return None
    left = [pair for pair in request.query_params.multi_items() if pair[0] not in ("after", "done")]
    return f"?{urlencode([*left, ('after', after)])}"
