# SPDX-License-Identifier: MIT
"""The content security policy: on every answer, without holes, and no page that it would break."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from packhorse.web.page_table import PAGES
from packhorse.web.routes import API_ROUTES, PREFIX
from tests.web.support import Got, Web, token
from tests.web.test_pages import form, page, path_of, seeded
from tests.web.test_routes import body, url

#: Attributes whose value a browser goes to or loads.
_PLACES = frozenset({"href", "src", "action", "formaction", "data", "poster", "xlink:href"})
_LOADED = frozenset({"script", "link", "img", "iframe", "object", "embed", "source", "use"})


class Offences(HTMLParser):
    """What of a page the policy forbids: code or style in it, and what comes from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self._within = tag if tag in ("script", "style") else ""
        if tag in ("style", "base", "iframe", "object", "embed", "foreignobject"):
            self.found.append(f"<{tag}>")
        if tag == "script" and not names.get("src"):
            self.found.append("<script> without src")
        for name, value in attrs:
            place = "".join((value or "").split()).lower()
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.found.append(f"{name}= of <{tag}>")
            elif name in _PLACES and place.startswith(("javascript:", "data:", "vbscript:")):
                self.found.append(f"{name}={place[:20]} of <{tag}>")
            elif name in _PLACES and tag in _LOADED and "//" in place:
                self.found.append(f"<{tag}> from elsewhere: {place}")

    def handle_data(self, data: str) -> None:
        if self._within and data.strip():
            self.found.append(f"text in <{self._within}>")

    def handle_endtag(self, _tag: str) -> None:
        self._within = ""


def policy_of(got: Got) -> dict[str, list[str]]:
    parts = [part.split() for part in got.headers["content-security-policy"].split(";")]
    return {name: values for name, *values in parts}


def holes(policy: dict[str, list[str]]) -> list[str]:
    """What a policy allows that it should not."""
    allowed = {"'self'", "'none'"}
    found = [
        f"{name} {value}"
        for name, values in policy.items()
        for value in values
        if value not in allowed and (name, value) != ("img-src", "data:")
    ]
    needed = {"default-src": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'"}
    wanted = {**needed, "script-src": "'self'", "style-src": "'self'", "form-action": "'self'"}
    return found + [name for name, value in wanted.items() if policy.get(name) != [value]]


async def test_no_page_holds_what_the_policy_forbids(web: Web) -> None:
    ids = await seeded(web)
    shown = [await page(web, path_of(one.path, ids)) for one in PAGES]
    shown.append(await page(web, "/login", token=None))
    shown.append(await form(web, "/login", "token=wrong", token=None, sec_fetch_site="same-origin"))
    shown.append(await page(web, "/jobs/none"))
    shown.append(await page(web, "/queues", token=token(web.app, "viewer", tenant="mine")))

    assert [got.status for got in shown[-3:]] == [401, 404, 403]
    for got in shown:
        assert got.headers["content-type"].startswith("text/html")
        assert Offences(got.body.decode()).found == []
        assert holes(policy_of(got)) == []


async def test_every_answer_has_the_policy_also_one_that_is_refused(web: Web) -> None:
    places = [("GET", f"{PREFIX}/openapi.json"), ("GET", "/static/app.js"), ("GET", "/nothing")]
    got = [await web.ask(method, path) for method, path in places]
    got += [await web.ask(one.method, url(one), body(one), token=None) for one in API_ROUTES]
    got += [await page(web, one.path, token=None) for one in PAGES]

    for each in got:
        assert holes(policy_of(each)) == []
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["x-frame-options"] == "DENY"
        # With "no-referrer" browsers send no page to lead back to, and `Origin: null` with forms.
        assert each.headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '<script src="/a.js">alert(1)</script>',
        '<script src="https://elsewhere.example/a.js"></script>',
        "<style>p { color: red }</style>",
        '<svg><rect style="fill: red"/></svg>',
        "<p onclick='go()'>x</p>",
        '<a href=" java\nscript:go()">x</a>',
        '<base href="/x">',
        '<link rel="stylesheet" href="//elsewhere.example/a.css">',
        '<iframe srcdoc="<p>"></iframe>',
    ],
)
def test_an_offence_is_found(text: str) -> None:
    assert Offences(f"<!doctype html><body>{text}</body>").found


@pytest.mark.parametrize(
    "text",
    [
        "default-src 'none'; script-src 'self' 'unsafe-inline'",
        "default-src *; script-src 'self'",
        "script-src 'self'; style-src 'self'",
    ],
)
def test_a_hole_is_found(text: str) -> None:
    assert holes(policy_of(Got(200, {"content-security-policy": text}, b"")))
