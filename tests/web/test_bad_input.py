# SPDX-License-Identifier: MIT
"""Input that is none, in every field and every name of every route, form and page.

Nothing of it is a server error. On PostgreSQL, which is strictest about texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from packhorse.testing import TestApp
from packhorse.web.calls import ApiRoute
from packhorse.web.page_table import PAGES
from packhorse.web.routes import API_ROUTES, PREFIX
from tests.servers.postgres import postgres_url
from tests.web.support import Got, Web, declare, token
from tests.web.test_pages import form, page
from tests.web.test_routes import CHANGES, body, url

# Some thousand requests each, which take their time on a busy machine.
pytestmark = pytest.mark.timeout(300)

#: For a database, a shell and a counter.
TEXTS = ("\x00", "\ud7ff\U0010ffff", "a'b\"--;", "9" * 400, "null")
#: Each is none of the types that a field has, or none that its rules allow.
VALUES: tuple[Any, ...] = (*TEXTS[:2], TEXTS[3], 2**70, -1.5, True, [[]], {"a": {"b": []}})


@pytest.fixture
def packhorse_url() -> str:
    """PostgreSQL; this overrides the plugin's own."""
    return postgres_url()


def sane(got: Got, what: object) -> None:
    """It was answered, or refused with a problem or a page."""
    assert got.status < 500, (what, got.body)
    if got.status >= 400:
        kind = got.headers["content-type"]
        assert kind == "application/problem+json" or kind.startswith("text/html"), what


def names_of(kind: type[msgspec.Struct] | None) -> Iterator[str]:
    if kind is not None:
        yield from (one.encode_name for one in msgspec.structs.fields(kind))


def asked_of(app: TestApp) -> Web:
    declare(app)
    return Web(app, token=token(app, "admin"))


def addressed(path: str, name: str) -> str:
    """A path with a name in it."""
    head, _, rest = path.partition("{")
    return f"{head}{quote(name, safe='')}{rest.partition('}')[2]}" if rest else path


def asked(route: ApiRoute) -> bool:
    """Streams and long waits end when they like."""
    return route.answers.media != "text/event-stream" and not route.path.endswith("/wait")


async def test_any_text_may_be_a_name_on_every_route_and_page(packhorse_app: TestApp) -> None:
    web = asked_of(packhorse_app)
    for name in TEXTS:
        for route in API_ROUTES:
            if "{" in route.path and asked(route):
                where = f"{PREFIX}{addressed(route.path, name)}"
                got = await web.ask(route.method, where, body(route))
                sane(got, (route.method, where))
        for one in PAGES:
            if "{" in one.path:
                sane(await page(web, addressed(one.path, name)), one.path)


async def test_any_text_may_be_in_a_query_on_every_route_and_page(packhorse_app: TestApp) -> None:
    web = asked_of(packhorse_app)
    places = [(url(route), route.query) for route in API_ROUTES if route.method == "GET"]
    places += [(addressed(one.path, "none"), one.query) for one in PAGES]
    for where, kind in places:
        for name in names_of(kind):
            for text in TEXTS:
                sane(await page(web, f"{where}?{urlencode({name: text})}"), (where, name, text))


async def test_any_value_may_be_in_a_body_on_every_route(packhorse_app: TestApp) -> None:
    web = asked_of(packhorse_app)
    for route in CHANGES:
        for name in names_of(route.body):
            for value in VALUES:
                order = {**body(route), name: value}
                sane(await web.ask(route.method, url(route, "default"), order), (route.path, order))


async def test_what_is_no_input_is_refused_on_every_page_and_form(packhorse_app: TestApp) -> None:
    web = asked_of(packhorse_app)
    for one in PAGES:
        got = await page(web, f"{addressed(one.path, 'none')}?nothing=1")

        assert got.status == 422, one.path
    for route in CHANGES:
        before = "/do/delete" if route.method == "DELETE" else "/do"
        where = f"{before}{addressed(route.path, 'none')}"
        unknown = await form(web, where, "nothing=1")
        other = await web.ask("POST", where, raw=b"{}", content_type="application/json")
        large = await form(web, where, "a" * 1_100_000)

        assert [unknown.status, other.status, large.status] == [422, 415, 413], where
