# SPDX-License-Identifier: MIT
"""Operations: who may begin, see and stop them, what they do, and their pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from packhorse.core.access import Permission
from packhorse.testing import TestApp
from tests.web.support import Web, token
from tests.web.test_operations import begun, died, ended, steps
from tests.web.test_pages import Tags, form, page


def app_of(web: Web) -> TestApp:
    assert isinstance(web.app, TestApp)
    return web.app


async def test_each_action_needs_the_permission_of_doing_it_to_one_job(web: Web) -> None:
    needed = {"cancel": "jobs.cancel", "retry": "jobs.retry", "redrive": "jobs.retry"}
    for action, permission in {**needed, "purge": "jobs.purge"}.items():
        others = [each for each in Permission if each != permission]
        given = token(web.app, *others)
        running = await begun(web, action=action, queue="none")

        answers = [
            await web.post("/operations", {"action": action}, token=given),
            await web.post(f"/operations/{running}/stop", token=given),
            await web.post(f"/operations/{running}/resume", token=given),
        ]

        assert [(got.status, got.code) for got in answers] == [(403, "FORBIDDEN")] * 3


async def test_a_tenant_begins_and_sees_its_own_and_touches_no_other(web: Web) -> None:
    app = app_of(web)
    await died(app, 2, tenant="mine")
    theirs = await died(app, 1, tenant="theirs")
    mine: dict[str, Any] = {"token": token(web.app, "admin", tenant="mine")}
    all_of_them = await begun(web, action="redrive", queue="none")
    own = (await web.post("/operations", {"action": "redrive"}, **mine)).json
    selected = (await web.post("/operations", {"action": "retry", "job": theirs}, **mine)).json
    refused = await web.post("/operations", {"action": "redrive", "tenant": "theirs"}, **mine)

    shown = [(await ended(app, web, one["id"]))["done"] for one in (own, selected)]

    assert (shown, refused.code) == ([2, 0], "OTHER_TENANT")
    assert await app.job(theirs[0]).astatus() == "dead"
    listed = (await web.get("/operations", **mine)).json["operations"]
    assert {one["id"] for one in listed} == {own["id"], selected["id"]}
    assert len((await web.get("/operations")).json["operations"]) == 3
    assert (await web.get(f"/operations/{all_of_them}", **mine)).code == "OPERATION_NOT_FOUND"


async def test_what_cannot_be_done_is_refused(web: Web) -> None:
    wrong: list[dict[str, Any]] = [
        {"action": "cancel", "status": ["dead"]},
        {"action": "redrive", "status": ["completed"]},
        {"action": "purge", "status": ["queued"]},
        {"action": "purge", "job": ["a"]},
        {"action": "redrive", "rate": "fast"},
        {"action": "redrive", "job": ["a"] * 501},
        {"action": "dance"},
        {},
    ]

    answers = [await web.post("/operations", order) for order in wrong]

    assert {got.status for got in answers} == {422}
    assert (await web.get("/operations")).json["operations"] == []


async def test_an_operation_is_begun_looked_at_and_stopped_on_pages(web: Web) -> None:
    app = app_of(web)
    ids = await died(app, 2)
    await app.tasks["add"].using(queue="mail").aenqueue(1, 2)
    app.clock.advance(1)

    jobs = Tags(await page(web, "/jobs?queue=mail"))
    preview = await page(web, "/operations/new?action=redrive&task=fail&status=")
    made = await form(web, "/do/operations", f"action=retry&job={ids[0]}&job={ids[1]}")
    shown = await page(web, made.headers["location"])
    stopped = await form(web, f"/do{made.headers['location'].split('?')[0]}/stop")

    assert "/operations/new?action=cancel&queue=mail" in jobs.of("a", "href")
    assert len([name for name in jobs.of("input", "name") if name == "job"]) == 1
    assert b"2 jobs match" in preview.body
    assert (made.status, stopped.status) == (303, 303)
    assert made.headers["location"].startswith("/operations/")
    assert b"No worker is live" in shown.body
    assert b"/resume" in (await page(web, "/operations")).body
    audited = (await web.get("/audit?limit=2")).json["notes"]
    assert [note["action"] for note in audited] == [
        "POST /operations/{id}/stop",
        "POST /operations",
    ]


async def test_finished_jobs_are_purged_and_selected_ones_run_again(web: Web) -> None:
    app = app_of(web)
    ids = await died(app, 3)
    kept = await app.tasks["add"].aenqueue(1, 2)
    await app.arun_jobs()
    app.clock.advance(1)

    again = await ended(app, web, await begun(web, action="retry", job=[ids[0], kept.id, "none"]))
    purged = await ended(app, web, await begun(web, action="purge", status=["dead"]))

    assert (again["done"], again["refused"]) == (1, 2)  # a completed one was not asked for
    assert purged["done"] == 2
    assert [job.id for job in (await app.insights.ajobs()).jobs] == [kept.id, ids[0]]


async def test_it_keeps_its_rate_and_can_be_stopped_and_resumed(web: Web) -> None:
    app = app_of(web)
    await died(app, 5)
    operation = await begun(web, action="redrive", rate="2/60s")
    service = steps(app)
    await service.run_once()  # finds them
    began = app.clock.now_us()
    await service.run_once()
    assert await service.run_once() > 0
    early = (await web.get(f"/operations/{operation}")).json["done"]
    stopped = (await web.post(f"/operations/{operation}/stop")).json
    app.clock.advance(600)
    await service.run_once()
    still = (await web.get(f"/operations/{operation}")).json
    resumed = (await web.post(f"/operations/{operation}/resume")).json

    shown = await ended(app, web, operation)

    assert (early, stopped["state"], stopped["stoppedBy"] is not None) == (1, "stopped", True)
    assert (still["done"], resumed["state"], shown["done"]) == (1, "running", 5)
    assert shown["rate"] == "2/60s"
    assert app.clock.now_us() - began >= (600 + 3 * 30) * 1_000_000


async def test_the_end_of_a_group_of_failures_narrows_it(web: Web) -> None:
    app = app_of(web)
    await died(app, 2)
    group = (await web.get("/operations/matching?action=redrive&error=ValueError")).json
    none = (await web.get("/operations/matching?action=redrive&error=KeyError")).json

    shown = await ended(app, web, await begun(web, action="redrive", error="KeyError"))

    assert (group["matched"], none["matched"], shown["done"]) == (2, 0, 0)


async def test_a_group_of_failures_is_silenced_and_shown_again(web: Web) -> None:
    app = app_of(web)
    await died(app, 2)
    await died(app, 1, tenant="mine")
    [group] = (await web.get("/failures")).json["groups"]
    named = {name: group[name] for name in ("task", "error", "place")}
    mine: dict[str, Any] = {"token": token(web.app, "operator", tenant="mine")}

    silenced = (await web.post("/failures/silence", {**named, "span": "1h"})).json
    hidden = (await web.get("/failures")).json
    asked = (await web.get("/failures?silenced=true")).json["groups"]
    own = (await web.get("/failures", **mine)).json["groups"]
    text = (await page(web, "/failures?silenced=true")).body.decode()
    app.clock.advance(3_700)
    later = (await web.get("/failures")).json["groups"]
    again = await web.post("/failures/silence", named)
    await form(web, "/do/failures/unsilence", urlencode(named))

    assert (group["count"], group["lastHour"], group["silenced"]) == (3, 3, False)
    assert (silenced["silenced"], silenced["until"] is not None) == (True, True)
    assert (hidden["groups"], hidden["hidden"]) == ([], 1)
    assert [(one["silenced"], one["count"]) for one in asked] == [(True, 3)]
    assert [(one["silenced"], one["count"]) for one in own] == [(False, 1)]
    assert "/operations/new?action=redrive&amp;task=fail&amp;error=ValueError" in text
    assert [(one["silenced"], one["lastHour"]) for one in later] == [(False, 0)]
    assert again.json["until"] is None
    assert len((await web.get("/failures")).json["groups"]) == 1
    assert (await web.post("/failures/silence", {**named, "span": "-1s"})).status == 422
