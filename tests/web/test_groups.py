# SPDX-License-Identifier: MIT
"""Batches, workflows, topics and alerts through the API: looked at, ended, tried again, noted."""

from __future__ import annotations

from urllib.parse import urlencode

from packhorse.testing import TestApp
from tests.web.support import SECRET, Web, groups, token


async def test_a_batch_is_shown_and_its_failures_without_secrets(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    items = [{"password": f"{SECRET}-{number}"} for number in range(3)]
    await web.app.abatch(web.app.tasks["fail"], items, id="logins", batch_size=2)

    begun = (await web.get("/batches/logins")).json
    await web.app.arun_for("1h")
    ended = (await web.get("/batches/logins")).json
    failures = await web.get("/batches/logins/failures")

    assert (begun["total"], begun["processed"], begun["status"]) == (3, 0, "pending")
    assert (ended["failed"], ended["percentage"], ended["jobs"]) == (3, 100.0, 2)
    assert [one["index"] for one in failures.json["failures"]] == [0, 1, 2]
    assert SECRET.encode() not in failures.body
    assert failures.json["after"] is None


async def test_failures_and_lists_come_in_pages(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    task = web.app.tasks["fail"]
    await web.app.abatch(task, ["x"] * 101, id="many", batch_size=1)
    for number in range(3):
        await web.app.abatch(task, ["x"], id=f"one-{number}")
        await web.app.workflow(f"flow-{number}", None).astart()
    await web.app.arun_for("1h")

    first = (await web.get("/batches/many/failures")).json
    rest = (await web.get(f"/batches/many/failures?after={first['after']}")).json
    seen: dict[str, list[str]] = {"batches": [], "workflows": []}
    for kind, found in seen.items():
        more: dict[str, str] = {}
        while True:
            page = (await web.get(f"/{kind}?{urlencode({'limit': 2, **more})}")).json
            found += [one["id"].partition("#")[0] for one in page[kind]]
            if page["after"] is None:
                break
            more = {"after": page["after"]}

    assert (len(first["failures"]), len(rest["failures"]), rest["after"]) == (100, 1, None)
    assert seen["batches"] == ["many", "one-0", "one-1", "one-2"]
    assert seen["workflows"] == ["flow-0", "flow-1", "flow-2"]


async def test_a_batch_is_cancelled_once_and_retried_only_if_it_was_not(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    batch, _ = await groups(web.app)

    done = (await web.post(f"/batches/{batch}/cancel")).json
    await web.app.arun_for("1h")
    again = await web.post(f"/batches/{batch}/cancel")
    retried = await web.post(f"/batches/{batch}/retry")

    assert done["done"]
    assert (again.status, again.code) == (409, "BATCH_CONFLICT")
    assert (retried.status, retried.code) == (409, "BATCH_CONFLICT")
    note = (await web.get("/audit")).json["notes"][-1]
    assert (note["before"], note["after"]["done"]) == ({"status": "pending"}, True)


async def test_items_that_failed_are_tried_again(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    await web.app.abatch(web.app.tasks["fail"], ["x", "y"], id="logins", batch_size=1)
    await web.app.arun_for("1h")

    got = (await web.post("/batches/logins/retry")).json

    assert got["retried"] == 2
    queued = (await web.get("/jobs?status=queued&queue=batch")).json["jobs"]
    assert len(queued) == 2


async def test_a_workflow_is_shown_with_its_nodes_retried_and_cancelled(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    _, name = await groups(web.app)
    await web.app.arun_for("1h")

    shown = (await web.get(f"/workflows/{name}")).json
    same = (await web.get(f"/workflows/{shown['workflow']['id'].replace('#', '%23')}")).json
    late = await web.post(f"/workflows/{name}/cancel")
    retried = (await web.post(f"/workflows/{name}/retry")).json
    nodes = {node["name"]: node for node in shown["nodes"]}
    bad = (await web.get(f"/jobs/{nodes['bad']['jobId']}")).json
    cancelled = await web.post(f"/workflows/{name}/cancel")

    assert {one: node["state"] for one, node in nodes.items()} == {
        "first": "completed",
        "second": "completed",
        "bad": "dead",
        "worse": "dead",
        "behind": "cancelled",
    }
    assert nodes["second"]["parents"] == ["first"]
    assert nodes["behind"]["jobId"] is None
    assert bad["status"] == "queued"
    assert same == shown
    assert (late.status, late.code) == (409, "WORKFLOW_CONFLICT")
    assert (retried["state"], retried["retried"]) == ("running", 2)
    assert cancelled.status == 200


async def test_workflows_of_one_name_are_those_of_their_tenants(web: Web) -> None:
    for tenant in ("mine", "theirs"):
        await web.app.tenant(tenant).workflow("order").astart()
    mine = token(web.app, "admin", tenant="mine")

    own = (await web.get("/workflows/order", token=mine)).json
    asked = (await web.get("/workflows/order?tenant=theirs")).json
    refused = await web.get("/workflows/order?tenant=theirs", token=mine)

    assert [own["workflow"]["tenant"], asked["workflow"]["tenant"]] == ["mine", "theirs"]
    assert (refused.status, refused.code) == (403, "OTHER_TENANT")
    assert (await web.get("/workflows/order")).code == "WORKFLOW_NOT_FOUND"


async def test_an_event_gives_each_subscriber_a_job_of_the_tenant(web: Web) -> None:
    mine = token(web.app, "operator", tenant="mine")
    event = {"payload": {"a": 1, "b": 2}}

    published = await web.post("/topics/paid/events", event, token=mine, idempotency_key="e-1")
    again = await web.post("/topics/paid/events", event, token=mine, idempotency_key="e-1")
    other = await web.post("/topics/paid/events", {**event, "tenant": "theirs"}, token=mine)

    [job_id] = published.json["jobs"]
    assert (published.status, again.json) == (201, published.json)
    assert (await web.get(f"/jobs/{job_id}")).json["tenant"] == "mine"
    assert (other.status, other.code) == (403, "OTHER_TENANT")


async def test_a_rule_is_written_down_changed_and_removed(web: Web) -> None:
    rule = {"condition": "depth > 5", "queue": "mail", "to": ["https://pager.example/secret"]}
    added = await web.post("/alerts/late", rule)
    changed = await web.post("/alerts/late", {"condition": "oldest_ready > 5m", "hold": "1m"})
    removed = await web.post("/alerts/late/remove", {})

    assert (added.status, added.json["source"], added.json["condition"]) == (
        200,
        "store",
        "depth > 5",
    )
    assert b"pager.example" not in added.body
    assert changed.json["condition"] == "oldest_ready > 300 s"
    assert removed.status == 200
    assert [one["name"] for one in (await web.get("/alerts")).json["alerts"]] == ["behind"]
    assert (await web.post("/alerts/late/remove", {})).status == 404
    assert (await web.post("/alerts/behind/remove", {})).status == 422
    assert (await web.post("/alerts/behind", rule)).status == 422
    assert (await web.post("/alerts/late", {"condition": "width > 1"})).status == 422


async def test_an_alert_is_silenced_and_told_again(web: Web) -> None:
    silent = (await web.post("/alerts/behind/silence", {"span": "2h"})).json
    told = (await web.post("/alerts/behind/silence", {"span": 0})).json
    unknown = await web.post("/alerts/nothing/silence", {"span": "2h"})
    wrong = await web.post("/alerts/behind/silence", {"span": "soon"})

    assert silent["silencedUntil"] is not None
    assert told["silencedUntil"] is None
    assert (unknown.status, unknown.code) == (404, "ALERT_NOT_FOUND")
    assert wrong.status == 422
    assert [one["name"] for one in (await web.get("/alerts")).json["alerts"]] == ["behind"]
