# SPDX-License-Identifier: MIT
"""The pages: what they show, to which reader, and that forms do only what may be done."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from packhorse import NeedsHuman
from packhorse.client.operations import OperationAction, Operations
from packhorse.core.access import Permission
from packhorse.stores.requests import JobFilter, Renewal
from packhorse.testing import TestApp
from packhorse.web.failures import failure_groups
from packhorse.web.page_table import PAGES, health_sentence
from packhorse.web.routes import API_ROUTES
from tests.web.support import SECRET, Got, Web, cookie_name, groups, token

SAME = {"sec_fetch_site": "same-origin"}


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, got: Got) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(got.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str, name: str) -> list[str]:
        return [given[name] or "" for found, given in self.found if found == tag and name in given]


async def seeded(web: Web) -> dict[str, str]:
    """A job that completed, one that died of a secret, a batch, a workflow, and a schedule."""
    assert isinstance(web.app, TestApp)
    done = await web.app.tasks["add"].using(tenant="mine").aenqueue(2**60 + 1, 0)
    dead = await web.app.tasks["fail"].aenqueue()
    batch, workflow = await groups(web.app)
    await web.app.arun_for("1h")
    none = JobFilter(queue="none")
    begun = await Operations(web.app.store).abegin(OperationAction.CANCEL, none, by="test")
    await web.app.store.arun(web.app.store.leases.renew(Renewal("w1", 10**9)))
    ids = {"batches": batch, "workflows": workflow, "operations": begun.id, "workers": "w1"}
    return {"done": done.id, "jobs": dead.id, **ids}


def path_of(path: str, ids: dict[str, str]) -> str:
    return path.replace(":path}", "}").replace("{id}", ids.get(path.split("/")[1], ""))


async def page(web: Web, path: str, **more: Any) -> Got:
    return await web.ask("GET", path, **more)


async def form(web: Web, path: str, text: str = "", **more: Any) -> Got:
    kind = {"content_type": "application/x-www-form-urlencoded"}
    return await web.ask("POST", path, raw=text.encode(), **kind, **more)


async def test_what_waits_for_a_person_is_told_as_that(web: Web) -> None:
    assert isinstance(web.app, TestApp)

    @web.app.task(queue="letters")
    def ask() -> None:
        raise NeedsHuman("may it go?")

    job = await ask.aenqueue()
    await web.app.arun_for("1s")

    for path in ("/", "/queues"):
        shown = (await page(web, path)).body.decode()
        assert "and 1 waiting for a person, a signal or the end of a sleep" in shown, path
    shown = (await page(web, f"/jobs/{job.id}")).body.decode()
    assert "it waits for a person to decide" in shown
    assert "may it go?" in shown


async def test_every_page_is_shown_without_secrets(web: Web) -> None:
    ids = await seeded(web)
    for one in PAGES:
        got = await page(web, path_of(one.path, ids))

        assert got.status == 200, one.path
        assert got.headers["content-type"].startswith("text/html")
        assert SECRET.encode() not in got.body, one.path
        tags = Tags(got)
        assert tags.of("script", "src") == ["/static/app.js"]
        assert "/static/icon.svg" in tags.of("link", "href")  # browsers ask for one
        assert [given for tag, given in tags.found if tag == "html"] == [{"lang": "en"}]


async def test_every_page_needs_its_permission_and_sends_strangers_to_the_way_in(web: Web) -> None:
    ids = await seeded(web)
    for one in PAGES:
        path = path_of(one.path, ids)
        others = [each for each in Permission if each is not one.permission]
        stranger = await page(web, path, token=None)
        refused = await page(web, path, token=token(web.app, *others))
        tenant = await page(web, path, token=token(web.app, "admin", tenant="mine"))

        assert (stranger.status, stranger.headers["location"]) == (303, "/login"), one.path
        assert refused.status == (303 if one.path == "/" else 403), one.path  # to the jobs
        shown = 303 if one.path == "/" else 403 if one.fleet else 404 if "{id" in one.path else 200
        assert tenant.status == shown, one.path
        assert "{id" in one.path or ids["jobs"].encode() not in tenant.body, one.path


async def test_a_tenant_sees_its_own_jobs(web: Web) -> None:
    ids = await seeded(web)
    mine = token(web.app, "viewer", tenant="mine")

    listed = await page(web, "/jobs", token=mine)
    shown = await page(web, f"/jobs/{ids['done']}", token=mine)

    assert ids["done"].encode() in listed.body
    assert str(2**60 + 1).encode() in shown.body  # no browser rounds it


async def test_filters_live_in_the_url_and_empty_fields_do_not_narrow(web: Web) -> None:
    ids = await seeded(web)

    got = await page(web, "/jobs?status=dead&queue=&task=fail&tag=&done=Cancelled")
    wrong = await page(web, "/jobs?status=odd")

    assert ids["jobs"].encode() in got.body
    assert ids["done"].encode() not in got.body
    assert (b'value="fail"' in got.body, wrong.status) == (True, 422)


async def test_names_are_escaped(web: Web) -> None:
    name = '<b>"&/x'
    await web.app.tasks["add"].using(queue=name).aenqueue(1, 2)

    got = await page(web, "/queues")

    assert b"<b>" not in got.body
    assert "/do/queues/%3Cb%3E%22%26%2Fx/pause" in Tags(got).of("form", "action")
    assert (await form(web, "/do/queues/%3Cb%3E%22%26%2Fx/pause")).status == 303


async def test_a_form_does_what_the_route_does_and_leads_back(web: Web) -> None:
    ids = await seeded(web)
    here = {"referer": "http://jobs.example/dead?task=fail&done=x"}

    done = await form(web, f"/do/jobs/{ids['jobs']}/retry", **here)
    away = await form(web, "/do/queues/default/pause", referer="http://evil.example/x")
    limited = await form(web, "/do/queues/default/limits", "concurrency=3")
    back = await form(web, "/do/delete/queues/default/limits")
    wrong = await form(web, "/do/queues/default/limits", "concurrency=many")

    where = "/dead?task=fail&done=Run+a+finished+job+again%2C+or+a+waiting+one+now"
    assert (done.status, done.headers["location"]) == (303, where)
    assert away.headers["location"].startswith("/?done=")
    assert [limited.status, back.status, wrong.status] == [303, 303, 422]
    assert await web.app.job(ids["jobs"]).astatus() == "queued"
    assert len((await web.get("/audit")).json["notes"]) == 5


async def test_the_queues_page_tells_how_tenants_share_a_queue(web: Web) -> None:
    weights = {f"tenant-{number}": 1 + number / 2 for number in range(12)}
    web.app.queue("shared", weights=weights, tenant_rate_limit=(5, "1s"))
    web.app.queue("plain", fair=False)
    for queue in ("shared", "plain"):
        await web.app.tasks["add"].using(queue=queue).aenqueue(1, 2)

    text = " ".join(re.sub(r"<[^>]*>", " ", (await page(web, "/queues")).body.decode()).split())

    assert "5 in 1000 ms for each tenant" in text
    assert "shares of tenants: tenant-0 1, tenant-1 1.5, tenant-2 2," in text
    assert "tenant-9 5.5, 2 more, others 1" in text
    assert "tenants do not share it" in text


async def test_every_form_is_refused_to_viewers_strangers_and_other_sites(web: Web) -> None:
    viewer = token(web.app, "viewer")
    for route in API_ROUTES:
        if not route.changes:
            continue
        before = "/do/delete" if route.method == "DELETE" else "/do"
        path = before + re.sub(r"{\w+(:path)?}", "none", route.path)
        cookie = {"cookie": f"{cookie_name()}={web.token}"}

        assert (await form(web, path, token=viewer)).status == 403, path
        assert (await form(web, path, token=None)).headers["location"] == "/login", path
        cross = await form(web, path, token=None, **cookie, sec_fetch_site="cross-site")
        assert cross.status == 403, path
        assert (await page(web, path)).status in (404, 405), path


async def test_a_viewer_is_offered_no_action(web: Web) -> None:
    ids = await seeded(web)
    viewer = token(web.app, "viewer")

    for one in PAGES:
        if one.permission is not Permission.AUDIT_VIEW:
            got = await page(web, path_of(one.path, ids), token=viewer)
            assert not [path for path in Tags(got).of("form", "action") if "/do/" in path]


async def test_signing_in_sets_a_cookie_that_no_script_and_no_other_site_can_use(web: Web) -> None:
    wrong = await form(web, "/login", "token=ph_wrong", token=None, **SAME)
    cross = await form(
        web, "/login", f"token={web.token}", token=None, origin="http://evil.example"
    )
    right = await form(web, "/login", f"token={web.token}", token=None, **SAME)

    assert (wrong.status, cross.status, right.status) == (401, 403, 303)
    cookie = right.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    given = {"cookie": cookie.split(";")[0]}
    assert (await page(web, "/jobs", token=None, **given)).status == 200
    out = await form(web, "/logout", token=None, **given, **SAME)
    assert (out.status, out.headers["location"]) == (303, "/login")


async def test_it_works_below_a_path(web: Web) -> None:
    ids = await seeded(web)
    below = Web(web.app, token=web.token, root_path="/ops")

    got = await below.ask("GET", "/jobs")

    links = Tags(got).of("a", "href")
    assert f"/ops/jobs/{ids['jobs']}" in links
    assert all(link.startswith(("/ops/", "?", "#")) for link in links)
    assert (await below.ask("GET", "/static/style.css", token=None)).status == 200
    moved = await form(below, "/do/queues/default/pause", referer="http://jobs.example/ops/queues")
    assert moved.headers["location"].startswith("/ops/queues?done=")


async def test_it_works_where_it_is_mounted_in_another_application(web: Web) -> None:
    ids = await seeded(web)
    web.served = Starlette(routes=[Mount("/ops", web.served)])

    got = await page(web, "/ops/jobs")
    api = await page(web, f"/ops/api/v1/jobs/{ids['done']}")
    moved = await form(
        web, "/ops/do/queues/default/pause", referer="http://jobs.example/ops/queues"
    )

    assert f"/ops/jobs/{ids['jobs']}" in Tags(got).of("a", "href")
    assert api.json["id"] == ids["done"]
    assert moved.headers["location"].startswith("/ops/queues?done=")


def test_failures_are_grouped_by_task_error_and_place() -> None:
    def dead(task: str, error: str, at: str) -> dict[str, str]:
        return {"id": at, "task": task, "error": error, "place": "p", "message": "m", "at": at}

    groups = failure_groups([dead("a", "E", "3"), dead("b", "E", "2"), dead("a", "E", "1")])

    assert [(one.task, one.count, one.first, one.last) for one in groups] == [
        ("a", 2, "1", "3"),
        ("b", 1, "2", "2"),
    ]


async def test_long_waits_are_told_in_minutes_and_hours(web: Web) -> None:
    app = web.app
    assert isinstance(app, TestApp)
    job = await app.tasks["fail"].using(delay="2h").aenqueue()
    await app.arun_for("3h")
    await app.tasks["add"].using(queue="idle").aenqueue(1, 2)
    app.clock.advance(3_720)

    shown = (await page(web, f"/jobs/{job.id}")).body.decode()
    queues = (await page(web, "/queues")).body.decode()

    assert "waited 2h, " in shown
    assert "(failures: 1, crashes: 0, snoozes: 0)" in shown
    assert "<td>1h 2m</td>" in queues


async def test_the_health_sentence_says_what_is_wrong(web: Web) -> None:
    insights = web.app.insights
    assert health_sentence((), ()) == "All is well: 0 queues, 0 workers."
    await web.app.store.arun(web.app.store.leases.renew(Renewal("w1", 10**9)))
    assert health_sentence((), await insights.aworkers()) == "All is well: 0 queues, 1 worker."

    await web.app.tasks["add"].aenqueue(1, 2)
    assert health_sentence(await insights.aqueues(), ()) == "default has no worker."
    await web.app.apause("default")
    assert health_sentence(await insights.aqueues(), ()) == "default is paused."
