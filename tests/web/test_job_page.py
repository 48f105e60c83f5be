# SPDX-License-Identifier: MIT
"""The page of one job: what it belongs to and left behind, its trace, and its call again."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlencode

import pytest

from packhorse import ConfigError, Context, Packhorse
from packhorse.client.worker_signals import HandlerStack, WorkerStacks, stacks_put
from packhorse.stores.requests import Renewal
from packhorse.testing import TestApp
from packhorse.web import web_app
from tests.web.support import SECRET, Web, groups, token
from tests.web.test_pages import Tags, form, page


def app_of(web: Web) -> TestApp:
    assert isinstance(web.app, TestApp)
    return web.app


async def test_a_call_is_submitted_again_with_other_arguments_and_masked_ones_as_they_were(
    web: Web,
) -> None:
    app = app_of(web)
    seen: list[tuple[str, str]] = []

    @app.task
    def sign(user: str, password: str) -> None:
        seen.append((user, password))

    options = sign.using(tags=["t"], tenant="mine", priority="high", idempotency_key="k")
    job = await options.aenqueue("ada", SECRET)
    shown = (await web.get(f"/jobs/{job.id}")).json["payload"]
    text = urlencode({"args": f'{{"user": "bob", "password": "{shown["password"]}"}}'})

    same = await web.post(f"/jobs/{job.id}/again")
    edited = await form(web, f"/do/jobs/{job.id}/again", text)
    wrong = await web.post(f"/jobs/{job.id}/again", {"args": {"user": 1, "password": "x"}})
    broken = await form(web, f"/do/jobs/{job.id}/again", "args=%7B")
    number = await web.post(f"/jobs/{job.id}/again", {"args": "1"})
    await app.arun_jobs()

    assert SECRET not in str(shown)
    assert sorted(seen) == [("ada", SECRET), ("ada", SECRET), ("bob", SECRET)]
    assert (same.status, edited.status) == (201, 303)
    assert edited.headers["location"].startswith("/jobs/")
    assert [wrong.status, broken.status, number.status] == [422, 422, 422]
    again = await app.job(same.json["id"]).ainfo()
    assert (again.tags, again.tenant, again.priority) == (("t",), "mine", "high")
    assert again.idempotency_key is None


async def test_its_batch_its_workflow_and_the_nodes_next_to_it_are_linked(web: Web) -> None:
    app = app_of(web)
    _batch, workflow = await groups(app)
    await app.arun_jobs()
    nodes = (await web.get(f"/workflows/{workflow}")).json["nodes"]
    ids = {node["name"]: node["jobId"] for node in nodes}
    found = (await app.insights.ajobs(limit=100)).jobs
    [member, *_] = [job.id for job in found if job.id not in ids.values()]

    links = Tags(await page(web, f"/jobs/{ids['first']}")).of("a", "href")
    after = Tags(await page(web, f"/jobs/{ids['second']}")).of("a", "href")
    of_batch = Tags(await page(web, f"/jobs/{member}")).of("a", "href")

    assert any(link.startswith("/workflows/") for link in links)
    assert {f"/jobs/{ids['second']}", f"/jobs/{ids['bad']}"} <= set(links)
    assert f"/jobs/{ids['first']}" in after
    assert "/batches/-import" in of_batch


async def test_steps_artifacts_attempts_and_the_trace_are_shown(web: Web) -> None:
    app = app_of(web)

    @app.task
    def report(ctx: Context) -> str:
        ctx.step("read", lambda: 17)
        ctx.artifacts.put("sums.csv", b"1,2")
        if ctx.job.attempt == 1:
            raise ValueError("not yet")
        return "made"

    job = await report.aenqueue()
    await app.arun_jobs()
    traced = Web(app, {"trace_url": "https://traces.example/t/{trace_id}?x=1"}, token=web.token)

    got = await page(traced, f"/jobs/{job.id}")

    text = got.body.decode()
    trace = (await job.ainfo()).trace_id
    assert f"https://traces.example/t/{trace}?x=1" in Tags(got).of("a", "href")
    for part in ("read: done", "sums.csv: 3 bytes", "ValueError", "not yet", "Edit and submit"):
        assert part in text, part
    assert text.count("<progress") == 2
    viewed = await page(traced, f"/jobs/{job.id}", token=token(app, "viewer"))
    assert "Edit and submit" not in viewed.body.decode()


@pytest.mark.parametrize("url", ["javascript:{trace_id}", "https://x.example/", "{trace_id}"])
def test_what_is_no_place_for_traces_is_refused(url: str) -> None:
    options: dict[str, Any] = {"trace_url": url}
    with pytest.raises(ConfigError, match="trace_url"):
        web_app(Packhorse("memory://"), **options)


async def test_a_worker_is_asked_what_it_does_and_its_answer_is_shown_to_operators_alone(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.web.fleet._STACKS_S", 0.1)
    store = app_of(web).store
    await store.arun(store.leases.renew(Renewal("w1", 10**9)))
    silent = (await web.post("/workers/w1/stacks")).json
    waits = await page(web, "/workers/w1")
    one = HandlerStack(job_id="j", task="add", seconds=1.5, kind="thread", stack="in <add>")
    told = WorkerStacks(worker="w1", answered=True, stacks=(one,))

    await store.arun(store.records.change((stacks_put(told),)))

    assert (silent["answered"], silent["stacks"]) == (False, [])
    assert b"has not answered yet" in waits.body
    assert b"in &lt;add&gt;" in (await page(web, "/workers/w1")).body
    viewer = await page(web, "/workers/w1", token=token(web.app, "viewer"))
    assert (viewer.status, b"&lt;add&gt;" in viewer.body) == (200, False)
    assert (await web.post("/workers/none/stacks")).code == "WORKER_GONE"


async def test_what_a_job_logged_is_told_masked_and_to_its_tenant_alone(web: Web) -> None:
    app = app_of(web)
    quiet = app.task(name="quiet")(lambda: None)

    @app.task
    def sign() -> None:
        logging.getLogger("shop").warning("<b>for ada</b> password=%s", SECRET)

    job, other = await sign.using(tenant="mine").aenqueue(), await quiet.aenqueue()
    await app.arun_jobs()
    mine, theirs = (token(app, "viewer", tenant=tenant) for tenant in ("mine", "theirs"))

    [line] = (await web.get(f"/jobs/{job.id}/logs", token=mine)).json["lines"]
    shown = (await page(web, f"/jobs/{job.id}", token=mine)).body.decode()
    empty = (await page(web, f"/jobs/{other.id}")).body.decode()

    assert (line["level"], line["logger"], line["attempt"]) == ("warning", "shop", 1)
    assert line["message"] == "<b>for ada</b> password=[redacted]"
    assert line["at"].endswith("Z")
    assert "&lt;b&gt;for ada&lt;/b&gt; password=[redacted]" in shown
    assert SECRET not in shown
    assert "No line is kept." in empty
    assert (await web.get(f"/jobs/{other.id}/logs")).json == {"lines": []}
    assert (await web.get(f"/jobs/{job.id}/logs", token=theirs)).status == 404
    assert (await web.get("/jobs/none/logs")).status == 404
