# SPDX-License-Identifier: MIT
"""What the API does: submit, look, wait, steer, and never twice for one Idempotency-Key."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from packhorse import Encryption, NeedsHuman, Packhorse
from packhorse.client.encryption import new_key
from packhorse.core.policies.records import Remove
from packhorse.testing import TestApp
from tests.web.support import SECRET, Web, declare, token


def app_of(web: Web) -> TestApp:
    assert isinstance(web.app, TestApp)
    return web.app


async def submitted(web: Web, task: str = "add", args: Any = (1, 2), **more: Any) -> str:
    got = await web.post("/jobs", {"task": task, "args": args, **more})
    assert got.status == 201, got.json
    assert got.headers["location"] == f"/api/v1/jobs/{got.json['id']}"
    return str(got.json["id"])


async def test_a_job_is_submitted_run_and_read(web: Web) -> None:
    job_id = await submitted(web, args={"a": 1, "b": 2}, tags=["t"], priority="high")
    await app_of(web).arun_jobs()

    got = await web.get(f"/jobs/{job_id}")

    job = got.json
    assert (job["status"], job["payload"], job["result"]) == ("completed", {"a": 1, "b": 2}, 3)
    assert (job["tags"], job["priority"], job["attempts"]) == (["t"], "high", 1)
    assert job["createdBy"].startswith("test (")
    assert [line["status"] for line in job["history"]] == ["completed"]


async def test_arguments_that_break_the_contract_are_refused_with_their_name(web: Web) -> None:
    wrong = await web.post("/jobs", {"task": "add", "args": {"a": 1, "b": "two"}})
    missing = await web.post("/jobs", {"task": "add", "args": {"a": 1}})
    unknown = await web.post("/jobs", {"task": "nothing"})
    option = await web.post("/jobs", {"task": "add", "args": [1, 2], "delay": "soon"})

    assert (wrong.status, wrong.json["field"]) == (422, "b")
    assert [missing.status, unknown.status, option.status] == [422, 422, 422]
    assert wrong.headers["content-type"] == "application/problem+json"
    assert (await web.get("/jobs")).json["jobs"] == []


async def test_a_submit_with_a_key_stores_one_job(web: Web) -> None:
    order = {"task": "add", "args": [1, 2]}

    first = await web.post("/jobs", order, idempotency_key="order-17")
    again = await web.post("/jobs", order, idempotency_key="order-17")
    other = await web.post("/jobs", {"task": "add", "args": [3, 4]}, idempotency_key="order-17")

    assert (first.status, again.status, other.status) == (201, 200, 422)
    assert again.json == {"id": first.json["id"], "deduplicated": True}
    assert other.code == "IDEMPOTENCY_MISMATCH"


async def test_a_change_with_a_key_is_done_once_and_answered_again(web: Web) -> None:
    await web.post("/jobs", {"task": "add", "args": [1, 2]})

    first = await web.post("/queues/default/pause", {}, idempotency_key="p1")
    again = await web.post("/queues/default/pause", {}, idempotency_key="p1")
    other = await web.post("/queues/default/resume", {}, idempotency_key="p1")

    assert (first.json["changed"], again.json["changed"]) == (True, True)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["etag"] == first.headers["etag"]
    assert (other.status, other.code) == (422, "IDEMPOTENCY_MISMATCH")


async def test_with_encryption_no_guess_of_what_was_asked_can_be_checked_in_the_store() -> None:
    app = Packhorse("memory://", encryption=Encryption({"k1": new_key()}))
    declare(app)
    web = Web(app, token=token(app, "admin"))
    job = (await web.post("/jobs", {"task": "add", "args": [1, 2]})).json["id"]

    for value, status in ((17, 200), (17, 200), (18, 422)):
        order = {"name": "go", "value": value}
        got = await web.post(f"/jobs/{job}/signals", order, idempotency_key="s1")
        assert got.status == status

    [kept] = app.store.run(app.store.records.records("kept_answer", limit=2)).records
    assert msgspec.json.decode(kept.document)["request"].startswith(".k1:")
    app.close()


async def test_a_signal_with_a_key_is_one_even_if_the_answer_was_not_kept(web: Web) -> None:
    job_id, store = await submitted(web), web.app.store
    order = {"name": "go", "value": 17}

    await web.post(f"/jobs/{job_id}/signals", order, idempotency_key="s1")
    [kept] = store.run(store.records.records("kept_answer", limit=2)).records
    store.run(store.records.change([Remove(kept.id)]))  # as if its server had gone before
    again = await web.post(f"/jobs/{job_id}/signals", order, idempotency_key="s1")
    await web.post(f"/jobs/{job_id}/signals", order, idempotency_key="s2")

    assert again.status == 200
    assert "idempotency-replayed" not in again.headers
    found = store.run(store.attachments.attachments(job_id))
    assert found is not None
    assert found.signals == {"go": (b"17", b"17")}


async def test_pages_follow_each_other_without_gap_or_repeat(web: Web) -> None:
    made = [await submitted(web, args=[number, 0]) for number in range(7)]

    seen: list[str] = []
    after = ""
    while True:
        page = (await web.get(f"/jobs?limit=3{after}")).json
        seen += [job["id"] for job in page["jobs"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"

    assert seen == made[::-1]


async def test_filters_narrow_and_bad_ones_are_refused(web: Web) -> None:
    kept = await submitted(web, tags=["x"])
    await submitted(web)

    both = (await web.get("/jobs?status=queued&status=dead&tag=x&task=add")).json["jobs"]
    bad = [
        (await web.get(f"/jobs?{query}")).status
        for query in ("status=odd", "limit=0", "limit=many", "limit=9999", "tag=a&tag=b")
    ]

    assert [job["id"] for job in both] == [kept]
    assert bad == [422, 422, 422, 422, 400]


async def test_secrets_are_masked_unless_the_permission_is_there(web: Web) -> None:
    job_id = await submitted(web, "fail", {"password": SECRET})
    await app_of(web).arun_jobs()
    operator = token(web.app, "operator")

    shown = await web.get(f"/jobs/{job_id}")
    listed = await web.get("/dead-letters")
    refused = await web.get(f"/jobs/{job_id}?values=true", token=operator)
    whole = await web.get(f"/jobs/{job_id}?values=true")

    assert SECRET.encode() not in shown.body + listed.body
    assert refused.status == 403
    assert whole.json["payload"] == {"password": SECRET}
    assert SECRET.encode() not in (await web.get("/audit")).body


async def test_waiting_answers_when_the_job_has_finished_or_the_time_is_up(web: Web) -> None:
    job_id = await submitted(web)

    early = await web.get(f"/jobs/{job_id}/wait?timeout=0")
    waiting = asyncio.create_task(web.get(f"/jobs/{job_id}/wait?timeout=30"))
    await app_of(web).arun_jobs()
    late = await waiting

    assert (early.json["finished"], early.json["job"]["status"]) == (False, "queued")
    assert (late.json["finished"], late.json["job"]["result"]) == (True, 3)
    assert (await web.get(f"/jobs/{job_id}/wait?timeout=61")).status == 422


async def test_a_job_is_cancelled_and_run_again(web: Web) -> None:
    job_id = await submitted(web)

    assert (await web.get(f"/jobs/{job_id}/explain")).json["reasons"]
    assert (await web.post(f"/jobs/{job_id}/cancel")).json["status"] == "cancelled"
    assert (await web.post(f"/jobs/{job_id}/cancel")).code == "JOB_CONFLICT"
    assert (await web.post(f"/jobs/{job_id}/redrive")).code == "JOB_CONFLICT"
    assert (await web.post(f"/jobs/{job_id}/retry")).json["status"] == "queued"
    assert (await web.post("/jobs/none/retry")).status == 404


async def test_a_signal_and_a_decision_reach_their_job(web: Web) -> None:
    @web.app.task
    def asks() -> None:
        raise NeedsHuman("may I?")

    waits, asked = await submitted(web, "waits", []), await submitted(web, "asks", [])
    await app_of(web).arun_jobs()

    sent = await web.post(f"/jobs/{waits}/signals", {"name": "go", "value": {"n": 1}})
    declined = await web.post(f"/jobs/{asked}/decline", {"note": "not today"})
    await app_of(web).arun_jobs()

    assert (sent.status, declined.json["waited"]) == (200, True)
    assert (await web.get(f"/jobs/{waits}")).json["result"] == {"n": 1}
    job = (await web.get(f"/jobs/{asked}")).json
    assert (job["status"], job["approvals"][0]["note"]) == ("dead", "not today")
    assert job["approvals"][0]["by"].startswith("test (")
    assert (await web.post(f"/jobs/{asked}/approve")).code == "JOB_CONFLICT"


async def test_dead_letters_are_redriven_by_filter_in_parts(web: Web) -> None:
    for _ in range(3):
        await submitted(web, "fail", {})
    await app_of(web).arun_jobs()

    look = await web.post("/dead-letters/redrive", {"task": "fail", "dryRun": True})
    none = await web.post("/dead-letters/redrive", {"task": "other"})
    first = await web.post("/dead-letters/redrive", {"task": "fail", "limit": 2})
    rest = await web.post(
        "/dead-letters/redrive", {"task": "fail", "limit": 2, "after": first.json["after"]}
    )

    assert (look.json["matched"], look.json["redriven"]) == (3, 0)
    assert none.json["matched"] == 0
    assert (first.json["redriven"], rest.json["redriven"]) == (2, 1)
    assert (await web.get("/dead-letters")).json["jobs"] == []


async def test_a_queue_is_paused_and_limited_only_as_it_was_seen(web: Web) -> None:
    await submitted(web)
    seen = (await web.get("/queues/default")).headers["etag"]

    paused = await web.post("/queues/default/pause", {}, if_match=seen)
    late = await web.ask(
        "PATCH", "/api/v1/queues/default/limits", {"concurrency": 2}, if_match=seen
    )
    limited = await web.ask(
        "PATCH",
        "/api/v1/queues/default/limits",
        {"concurrency": 2, "rateLimit": "10/min"},
        if_match=paused.headers["etag"],
    )
    undone = await web.ask("DELETE", "/api/v1/queues/default/limits")

    assert paused.json["paused"]
    assert (late.status, late.code) == (412, "CHANGED_MEANWHILE")
    assert limited.json["limits"]["concurrency"] == 2
    assert limited.json["limits"]["rateLimit"] == {"max": 10, "windowMs": 60_000}
    assert undone.json["limits"]["concurrency"] is None
    assert (await web.get("/queues/nothing")).code == "QUEUE_NOT_FOUND"
    wrong = await web.ask("PATCH", "/api/v1/queues/default/limits", {"concurrency": -1})
    assert wrong.status == 422


async def test_a_schedule_is_shown_run_paused_and_changed(web: Web) -> None:
    await app_of(web).arun_for("1h")  # which declares it
    seen = await web.get("/schedules/nightly")

    fires = (await web.get("/schedules/nightly/fires?count=2")).json["fires"]
    ran = await web.post("/schedules/nightly/run")
    changed = await web.ask(
        "PATCH", "/api/v1/schedules/nightly", {"cron": "30 4 * * *"}, if_match=seen.headers["etag"]
    )
    late = await web.post("/schedules/nightly/pause", if_match=seen.headers["etag"])
    paused = await web.post("/schedules/nightly/pause")
    back = await web.ask("DELETE", "/api/v1/schedules/nightly/changes")

    assert len(fires) == 2
    assert (await web.get(f"/jobs/{ran.json['jobId']}")).json["task"] == "add"
    assert (changed.json["changed"], late.status) == (["cron", "every", "at"], 412)
    assert (paused.json["state"], back.json["changed"]) == ("paused", [])
    assert (await web.get("/schedules/none")).code == "SCHEDULE_NOT_FOUND"
    wrong = await web.ask("PATCH", "/api/v1/schedules/nightly", {"cron": "never"})
    assert wrong.status == 422


async def test_every_change_is_noted_with_who_what_where_before_and_after(web: Web) -> None:
    job_id = await submitted(web)
    await web.post(f"/jobs/{job_id}/cancel")
    await web.post(f"/jobs/{job_id}/cancel", token=token(web.app, "viewer"))

    refused, done, made = (await web.get("/audit")).json["notes"]

    assert (done["action"], done["status"]) == ("POST /jobs/{id:path}/cancel", 200)
    assert (done["target"], done["source"]) == (f"/api/v1/jobs/{job_id}/cancel", web.address)
    assert (done["before"], done["after"]) == ({"status": "queued"}, {"status": "cancelled"})
    assert done["who"].startswith("test (")
    assert (refused["status"], made["after"]["id"]) == (403, job_id)


@pytest.mark.parametrize("name", ["a/b", "a.b", "a b", "a?b#c", "ü"])
async def test_names_with_any_character_survive_urls(web: Web, name: str) -> None:
    await submitted(web, queue=name)

    got = await web.ask("GET", f"/api/v1/queues/{quote(name, safe='')}")
    paused = await web.ask("POST", f"/api/v1/queues/{quote(name, safe='')}/pause", {})

    assert (got.json["name"], paused.json["name"]) == (name, name)


async def test_the_fleet_is_told(web: Web) -> None:
    await submitted(web)

    assert (await web.get("/scale/default")).json["demand"] == 1
    assert (await web.get("/scale")).json["queues"][0]["queue"] == "default"
    assert (await web.get("/stats")).json["queues"]["default"]["pending"] == 1
    metrics = await web.get("/metrics")
    assert b'packhorse_store_jobs{queue="default",status="queued"} 1' in metrics.body
    tasks = (await web.get("/tasks")).json["tasks"]
    assert [task["name"] for task in tasks] == ["add", "fail", "packhorse.deliver_alert", "waits"]
    assert (await web.get("/tasks/add")).json["contract"]["worker_id"] == "add"
    assert (await web.get("/workers")).json == {"workers": []}
    assert (await web.post("/workers/none/quiet")).code == "WORKER_GONE"
    assert (await web.get("/breakers")).json == {"breakers": []}
