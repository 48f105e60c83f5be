# SPDX-License-Identifier: MIT
"""The dashboard inside other applications, as its page mounts it, and behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2wsgi import WSGIMiddleware
from django.http import HttpResponse
from django.urls import path

from tests.docs.pages import DOCS, blocks
from tests.transactions.support import configured_django
from tests.web.support import Web, declare
from tests.web.test_pages import Tags, form

#: The site of Django that the page mounts it in: this module is its table of URLs.
urlpatterns = [path("", lambda _request: HttpResponse("the shop"))]

STAFF: dict[str, Any] = {"x_staff": "yes", "token": None}
SAME = {"sec_fetch_site": "same-origin"}
PROXY = "10.0.0.7"
SENT = {"x_forwarded_host": "ops.example", "x_forwarded_proto": "https"}


@pytest.fixture(params=["in_starlette", "in_fastapi", "in_django", "in_django_wsgi"])
def mounted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Web]:
    """The application of that name, from the examples of the page."""
    configured_django()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks((DOCS / "how-to" / "dashboard.md").read_text(encoding="utf-8")):
        if block.language == "python":
            exec(block.code, names)
    declare(names["app"])
    web = Web(names["app"])
    web.served = names[request.param]
    if request.param.endswith("wsgi"):
        web.served = WSGIMiddleware(web.served)
    yield web
    names["app"].close()


async def test_it_works_where_the_page_mounts_it(mounted: Web) -> None:
    job = await mounted.app.tasks["add"].aenqueue(1, 2)
    here = {"referer": "http://jobs.example/jobs/queues", **SAME, **STAFF}

    shown = await mounted.ask("GET", "/jobs/jobs", **STAFF)
    stranger = await mounted.ask("GET", "/jobs/jobs", token=None)
    done = await form(mounted, "/jobs/do/queues/default/pause", **here)
    other = {**here, "sec_fetch_site": "cross-site"}
    cross = await form(mounted, "/jobs/do/queues/default/resume", **other)

    links = Tags(shown).of("a", "href")
    assert f"/jobs/jobs/{job.id}" in links
    assert all(link.startswith(("/jobs/", "?", "#")) for link in links)
    loaded = Tags(shown).of("link", "href")
    assert len(loaded) == 2  # the icon and the style
    assert [(await mounted.ask("GET", path, token=None)).status for path in loaded] == [200, 200]
    assert (stranger.status, stranger.headers["location"]) == (303, "/jobs/login")
    assert done.headers["location"].startswith("/jobs/queues?done=")
    assert cross.status == 403
    assert (await mounted.ask("GET", f"/jobs/api/v1/jobs/{job.id}", **STAFF)).json["id"] == job.id


async def test_the_application_around_it_still_answers(mounted: Web) -> None:
    got = await mounted.ask("GET", "/", token=None)

    is_django = got.headers["content-type"].startswith("text/html")
    assert (got.status, b"the shop" in got.body) == ((200, True) if is_django else (404, False))


async def test_a_trusted_proxy_is_believed_about_host_scheme_and_prefix(web: Web) -> None:
    behind = Web(web.app, {"proxies": [PROXY]}, web.token, PROXY)
    sent: dict[str, Any] = {**SENT, "x_forwarded_prefix": "/ops"}
    await web.app.tasks["add"].aenqueue(1, 2)

    entered = await form(
        behind, "/login", f"token={web.token}", token=None, origin="https://ops.example", **sent
    )
    cookie: dict[str, Any] = {"cookie": entered.headers["set-cookie"].split(";")[0], "token": None}
    shown = await behind.ask("GET", "/jobs", **cookie, **sent)
    here = {"origin": "https://ops.example", "referer": "https://ops.example/ops/queues"}
    done = await form(behind, "/do/queues/default/pause", **cookie, **here, **sent)
    evil = {"origin": "https://evil.example"}
    cross = await form(behind, "/do/queues/default/resume", **cookie, **evil, **sent)

    assert entered.headers["location"] == "/ops/"
    assert {"Secure", "Path=/ops/"} <= set(entered.headers["set-cookie"].split("; "))
    links = Tags(shown).of("a", "href")
    assert "/ops/queues" in links
    assert all(link.startswith(("/ops/", "?", "#")) for link in links)
    assert done.headers["location"].startswith("/ops/queues?done=")
    assert cross.status == 403


async def test_no_other_is_believed(web: Web) -> None:
    stranger = Web(web.app, {"proxies": [PROXY]}, web.token)
    sent: dict[str, Any] = {**SENT, "x_forwarded_prefix": "/ops"}

    entered = await form(stranger, "/login", f"token={web.token}", token=None, **SAME, **sent)
    cookie: dict[str, Any] = {"cookie": entered.headers["set-cookie"].split(";")[0], "token": None}
    shown = await stranger.ask("GET", "/jobs", **cookie, **sent)
    forged = await form(
        stranger, "/do/queues/default/pause", **cookie, origin="https://ops.example", **sent
    )

    assert entered.headers["location"] == "/"
    assert "Secure" not in entered.headers["set-cookie"]
    assert "/queues" in Tags(shown).of("a", "href")
    assert forged.status == 403


@pytest.mark.parametrize("prefix", ["//evil.example", "ops", "/a b", '/"><script>', "/../x?y", ""])
async def test_what_is_no_prefix_is_left_out(web: Web, prefix: str) -> None:
    behind = Web(web.app, {"proxies": [PROXY]}, web.token, PROXY)

    got = await behind.ask("GET", "/jobs", x_forwarded_prefix=prefix)

    assert got.status == 200
    assert "/queues" in Tags(got).of("a", "href")


async def test_a_prefix_that_is_the_root_path_is_not_added_and_another_is(web: Web) -> None:
    behind = Web(web.app, {"proxies": [PROXY]}, web.token, PROXY, root_path="/ops")

    same = await behind.ask("GET", "/jobs", x_forwarded_prefix="/ops/")
    more = await behind.ask("GET", "/jobs", x_forwarded_prefix="/all, /more")

    assert "/ops/queues" in Tags(same).of("a", "href")
    assert "/more/ops/queues" in Tags(more).of("a", "href")
