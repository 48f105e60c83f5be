# SPDX-License-Identifier: MIT
"""The table of routes, walked: no caller gets further than its permissions, on no route."""

from __future__ import annotations

import re
from typing import Any

from packhorse.core.access import ROLES, Permission
from packhorse.web.calls import ApiRoute, EmptyOrder
from packhorse.web.routes import API_ROUTES, PREFIX
from tests.web.support import Web, cookie_name, groups, token

_NAMED = re.compile(r"{\w+(?::path)?}")
CHANGES = [route for route in API_ROUTES if route.changes]
_FAILURE = {"task": "fail", "error": "ValueError", "place": "-"}
JSON = {"content_type": "application/json"}


def url(route: ApiRoute, name: str = "none") -> str:
    return f"{PREFIX}{_NAMED.sub(name, route.path)}"


def body(route: ApiRoute) -> Any:
    """Something that the route takes."""
    needed: dict[str, Any] = {
        "SubmitOrder": {"task": "add", "args": [1, 2]},
        "SignalOrder": {"name": "go"},
        "EventOrder": {"payload": {}},
        "SilenceOrder": {"span": "1h"},
        **dict.fromkeys(("FailureOrder", "FailureSilenceOrder"), _FAILURE),
        "OperationOrder": {"action": "cancel", "queue": "none"},
    }
    kind = route.body
    return None if kind is None else needed.get(kind.__name__, {})


async def test_no_caller_is_told_anything_without_a_token_on_any_route(web: Web) -> None:
    for route in API_ROUTES:
        got = await web.ask(route.method, url(route), body(route), token=None)

        assert (got.status, got.code) == (401, "UNAUTHENTICATED"), route
        assert got.headers["www-authenticate"] == "Bearer"
        assert got.headers["content-type"] == "application/problem+json"


async def test_every_route_needs_its_permission_and_no_other_will_do(web: Web) -> None:
    without = {
        permission: token(web.app, *(each for each in Permission if each is not permission))
        for permission in Permission
    }
    for route in API_ROUTES:
        assert route.permission is not None
        given = without[route.permission]

        got = await web.ask(route.method, url(route), body(route), token=given)

        assert (got.status, got.code) == (403, "FORBIDDEN"), route
        assert str(route.permission) in got.json["detail"]


async def test_a_tenant_finds_nothing_of_others_on_any_route(web: Web) -> None:
    theirs = (await web.app.tasks["add"].using(tenant="theirs").aenqueue(1, 2)).id
    batch, workflow = await groups(web.app, "theirs")
    ids = {"jobs": theirs, "batches": batch, "workflows": workflow}
    mine = token(web.app, "admin", tenant="mine")
    for route in API_ROUTES:
        kind = route.path.split("/")[1]
        named = ids[kind] if "{id" in route.path and kind in ids else "none"

        got = await web.ask(route.method, url(route, named), body(route), token=mine)

        if route.fleet:
            assert (got.status, got.code) == (403, "OTHER_TENANT"), route
        elif "{id" in route.path:
            words = {"batches": "BATCH", "workflows": "WORKFLOW", "operations": "OPERATION"}
            word = words.get(kind, "JOB")
            assert (got.status, got.code) == (404, f"{word}_NOT_FOUND"), route
        elif route.path == "/audit":  # which names what was asked for
            assert {note["tenant"] for note in got.json["notes"]} == {"mine"}
        else:
            assert not any(each.encode() in got.body for each in ids.values()), route
        assert await web.app.job(theirs).astatus() == "queued"
    view = web.app.tenant("theirs")
    assert (await (await view.batches.aget(batch)).aprogress()).status == "pending"
    assert await (await view.workflows.aget(workflow)).astatus() == "running"


async def test_what_is_no_input_is_refused_on_every_route(web: Web) -> None:
    for route in CHANGES:
        where = url(route)
        broken = await web.ask(route.method, where, raw=b"{", **JSON)
        unknown = await web.ask(route.method, where, {"no such thing": 1})
        other = await web.ask(route.method, where, raw=b"a=1", content_type="text/plain")
        large = await web.ask(route.method, where, raw=b" " * 1_100_000, **JSON)

        statuses = [broken.status, unknown.status, other.status, large.status]
        assert statuses == [400, 422, 415, 413], route
    for route in API_ROUTES:
        got = await web.ask(route.method, f"{url(route)}?nothing=1", body(route))

        assert (got.status, got.code) == (422, "INVALID"), route


async def test_no_page_of_another_site_can_make_a_browser_do_it(web: Web) -> None:
    cookie: dict[str, Any] = {"cookie": f"{cookie_name()}={web.token}"}
    tricks: tuple[dict[str, Any], ...] = (
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://jobs.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {},
    )
    for route in CHANGES:
        for headers in tricks:
            got = await web.ask(
                route.method, url(route), body(route), token=None, **cookie, **headers
            )

            assert (got.status, got.code) == (403, "CROSS_SITE"), route


def test_no_route_changes_anything_by_get_and_each_has_a_permission() -> None:
    assert all(route.permission is not None for route in API_ROUTES)
    for route in API_ROUTES:
        verb = str(route.permission).rpartition(".")[2]
        assert route.changes == (verb not in ("view", "values"))
        assert route.changes or route.body is None
        assert route.body is None or issubclass(route.body, EmptyOrder) or route.body.__doc__


def test_viewers_may_change_nothing_and_each_role_has_more_than_the_one_before() -> None:
    changing = {route.permission for route in API_ROUTES if route.changes}

    assert not ROLES["viewer"] & changing
    assert ROLES["viewer"] < ROLES["operator"] < ROLES["admin"] == set(Permission)
    assert Permission.JOBS_VALUES not in ROLES["operator"]


async def test_a_method_that_a_path_has_not_is_answered_with_those_that_it_has(web: Web) -> None:
    allowed = {
        place: set((await web.ask("PUT", f"{PREFIX}{place}")).headers["allow"].split(", "))
        for place in ("/jobs", "/queues/mail/limits", "/schedules/nightly", "/jobs/none/cancel")
    }

    assert allowed == {
        "/jobs": {"GET", "HEAD", "POST"},
        "/queues/mail/limits": {"PATCH", "DELETE"},
        "/schedules/nightly": {"GET", "HEAD", "PATCH"},
        "/jobs/none/cancel": {"POST"},
    }


async def test_a_query_has_no_null_and_no_instant_that_is_a_number(web: Web) -> None:
    for asked in ("reason=null", "createdBefore=null", "createdBefore=0.5"):
        got = await web.get(f"/dead-letters?{asked}")

        assert (got.status, got.code) == (422, "INVALID"), asked
    assert (await web.get("/dead-letters?queue=null")).status == 200  # a name like others


async def test_an_instant_without_a_time_zone_is_no_instant(web: Web) -> None:
    when = "2030-01-01T00:00:00"
    asked = await web.get(f"/jobs?createdBefore={when}")
    order = {"task": "add", "args": [1, 2], "scheduledAt": when}
    sent = await web.post("/jobs", order)
    changed = await web.ask("PATCH", f"{PREFIX}/schedules/nightly", {"at": when})

    assert [got.code for got in (asked, sent, changed)] == ["INVALID"] * 3
    assert (await web.post("/jobs", {**order, "scheduledAt": f"{when}Z"})).status == 201


async def test_what_is_no_route_is_a_problem_too(web: Web) -> None:
    assert (await web.get("/nothing")).code == "NO_SUCH_ROUTE"
    assert (await web.ask("PUT", "/api/v1/stats")).code == "METHOD_NOT_ALLOWED"
