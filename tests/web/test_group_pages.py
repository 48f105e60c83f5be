# SPDX-License-Identifier: MIT
"""The pages of batches and workflows, and of failures that are redriven as a group."""

from __future__ import annotations

from typing import Any

from packhorse import RetryPolicy
from packhorse.testing import TestApp
from packhorse.web.graphs import DRAWN_MAX, drawn
from tests.web.support import Web, groups
from tests.web.test_pages import Tags, form, page


async def test_a_batch_shows_how_far_it_is_and_is_cancelled_by_a_form(web: Web) -> None:
    batch, _ = await groups(web.app)

    listed = Tags(await page(web, "/batches"))
    done = await form(web, f"/do/batches/{batch}/cancel")
    assert isinstance(web.app, TestApp)
    await web.app.arun_for("1h")
    ended = Tags(await page(web, f"/batches/{batch}"))

    bars = [given for tag, given in listed.found if tag == "progress"]
    assert (bars[0]["max"], bars[0]["value"]) == ("2", "0")
    assert f"/do/batches/{batch}/cancel" in listed.of("form", "action")
    assert done.status == 303
    assert not [path for path in ended.of("form", "action") if "/do/" in path]


async def test_a_batch_shows_its_failures_and_offers_to_try_them_again(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    await web.app.abatch(web.app.tasks["fail"], ["x", "y"], id="logins", batch_size=1)
    await web.app.arun_for("1h")

    shown = Tags(await page(web, "/batches/logins"))

    assert "/do/batches/logins/retry" in shown.of("form", "action")
    assert len([link for link in shown.of("a", "href") if link.startswith("/jobs/")]) == 2


async def test_a_workflow_is_drawn_with_links_to_its_jobs(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    _, name = await groups(web.app)
    await web.app.arun_for("1h")
    nodes = (await web.get(f"/workflows/{name}")).json["nodes"]

    got = await page(web, f"/workflows/{name}")
    again = await form(web, f"/do/workflows/{name}/retry")

    tags = Tags(got)
    assert len(tags.of("rect", "x")) == len(nodes) == 5
    assert len(tags.of("path", "d")) == 3
    links = tags.of("a", "href")
    assert all(f"/jobs/{node['jobId']}" in links for node in nodes if node["jobId"])
    assert again.status == 303
    assert b"running" in (await page(web, f"/workflows/{name}")).body


async def test_a_workflow_of_a_tenant_is_found_and_steered_from_its_page(web: Web) -> None:
    await groups(web.app, "a&b")

    [link] = [
        one for one in Tags(await page(web, "/workflows")).of("a", "href") if "tenant=" in one
    ]
    actions = Tags(await page(web, link)).of("form", "action")
    done = await form(web, actions[0])

    assert link.endswith("?tenant=a%26b")
    assert done.status == 303
    assert await (await web.app.tenant("a&b").workflows.aget("a&b-order-17")).astatus() != "running"


def test_a_node_stands_to_the_right_of_all_it_waits_for() -> None:
    def node(name: str, *parents: str) -> dict[str, Any]:
        return {"name": name, "parents": parents, "state": "waiting", "task": "t", "jobId": None}

    # A child may be listed before its parent, and a node may have been added by a running one.
    nodes = [node("d", "b", "c"), node("a"), node("b", "a"), node("c", "b"), node("a/x")]
    picture = drawn(nodes)
    x = {box.name: box.x for box in picture.boxes}

    assert x["a"] < x["b"] < x["c"] < x["d"]
    assert x["a"] < x["a/x"]
    assert len(picture.lines) == 5
    assert len({(box.x, box.y) for box in picture.boxes}) == len(nodes)
    assert len(drawn([node(str(each)) for each in range(500)]).boxes) == DRAWN_MAX


async def test_failures_are_redriven_as_a_group(web: Web) -> None:
    assert isinstance(web.app, TestApp)

    @web.app.task(retry=RetryPolicy(max_retries=0))
    def either(kind: str) -> None:
        if kind == "key":
            raise KeyError(kind)
        raise ValueError(kind)

    keys = [await either.aenqueue("key") for _ in range(2)]
    value = await either.aenqueue("value")
    await web.app.arun_for("1h")
    got = await page(web, "/failures")
    hidden = [given for tag, given in Tags(got).found if given.get("type") == "hidden"]
    places = {one["value"] for one in hidden if one["name"] == "place"}

    order = {"task": "either", "error": "KeyError", "limit": 1000}
    elsewhere = (await web.post("/dead-letters/redrive", {**order, "place": "x.py:1 in f"})).json
    [place] = {each for each in places if each and await matched(web, {**order, "place": each})}
    sent = f"task=either&error=KeyError&place={place}&limit=1000".replace(" ", "+")
    done = await form(web, "/do/dead-letters/redrive", sent)

    assert elsewhere["matched"] == 0
    assert done.status == 303
    assert [await job.astatus() for job in (*keys, value)] == ["queued", "queued", "dead"]


async def matched(web: Web, order: dict[str, Any]) -> int:
    got = await web.post("/dead-letters/redrive", {**order, "dryRun": True})
    return int(got.json["matched"])
