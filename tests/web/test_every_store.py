# SPDX-License-Identifier: MIT
"""One story on every store: tokens, keys, changes and what is noted of them."""

from __future__ import annotations

from packhorse.testing import TestApp
from tests.web.support import Web, declare, groups, token
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


async def test_a_job_is_submitted_steered_and_noted(packhorse_app: TestApp) -> None:
    app = packhorse_app
    declare(app)
    web = Web(app, token=token(app, "admin"))

    job_id = (await web.post("/jobs", {"task": "add", "args": [1, 2]})).json["id"]
    dead_id = (await web.post("/jobs", {"task": "fail"})).json["id"]
    paused = await web.post("/queues/default/pause", {}, idempotency_key="k")
    again = await web.post("/queues/default/pause", {}, idempotency_key="k")
    resumed = await web.post("/queues/default/resume", {}, if_match=paused.headers["etag"])
    await app.arun_jobs()
    redriven = await web.post("/dead-letters/redrive", {"task": "fail"})

    assert (await web.get(f"/jobs/{job_id}")).json["result"] == 3
    assert again.json == paused.json
    assert not resumed.json["paused"]
    assert redriven.json["redriven"] == 1
    assert (await web.get(f"/jobs/{dead_id}")).json["status"] == "queued"
    actions = [note["action"] for note in (await web.get("/audit?limit=2")).json["notes"]]
    assert actions == ["POST /dead-letters/redrive", "POST /queues/{name:path}/resume"]
    assert (await web.get("/jobs", token="ph_wrong")).status == 401


async def test_groups_are_shown_and_counted_on_pages(packhorse_app: TestApp) -> None:
    app = packhorse_app
    declare(app)
    web = Web(app, token=token(app, "admin"))
    batch, workflow = await groups(app)
    await app.arun_jobs()

    shown = (await web.get(f"/batches/{batch}")).json
    retried = (await web.post(f"/workflows/{workflow}/retry")).json
    pages = ("/", "/queues", "/failures", f"/batches/{batch}", f"/workflows/{workflow}")
    statuses = [(await web.ask("GET", path)).status for path in pages]

    assert (shown["succeeded"], shown["jobs"]) == (2, 2)
    assert retried["retried"] == 2
    assert statuses == [200] * 5
