# SPDX-License-Identifier: MIT
"""A week of history on the pages and through the API: what curves, tables and tenants show."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from packhorse.core.policies.history import RANGES
from packhorse.testing import TestApp
from packhorse.web.charts import age_chart, flow_chart
from tests.web.support import Web, declare, token
from tests.web.test_policy import Offences
from tests.worker.test_history import Hand

_PAGES = ("/", "/queues", "/tasks")


@pytest.fixture
def packhorse_url() -> str:
    """In memory, where a week takes no time."""
    return "memory://"


@pytest.fixture
async def week(packhorse_app: TestApp) -> Web:
    """Eleven attempts an hour for a week, one of which failed; one job waits all the time."""
    declare(packhorse_app)
    await packhorse_app.tasks["add"].aenqueue(1, 2)
    for hour in range(7 * 24):
        worker = Hand(packhorse_app, f"worker-{hour % 2}-{hour}")
        worker.does("add", success=10)
        worker.does("fail", success=0, dead=1)
        await worker.keeper.run_once()
        packhorse_app.clock.advance(3_600)
    await Hand(packhorse_app, "last").keeper.run_once()
    return Web(packhorse_app, token=token(packhorse_app, "admin"))


async def test_a_week_is_browsed_at_every_range_and_on_every_page(week: Web) -> None:
    for name in RANGES:
        for path in _PAGES:
            got = await week.ask("GET", f"{path}?range={name}")

            text = got.body.decode()
            assert got.status == 200, text
            assert Offences(text).found == []
            assert f'?range={name}" aria-current="true">' in text
            assert path == "/tasks" or '<table><thead><tr><th scope="col">From (UTC)' in text
            for svg in re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL):
                ET.fromstring(svg)
                assert "nan" not in svg
                assert "aria-hidden" in svg or svg.count("<title") == svg.count("<desc") == 1
    assert (await week.ask("GET", "/?range=2h")).status == 422


async def test_the_api_tells_steps_queues_and_tasks(week: Web) -> None:
    found = (await week.get("/history?range=7d")).json

    assert (found["range"], found["stepMs"], len(found["points"])) == ("7d", 3_600_000, 168)
    # The first hour of the eight days that the steps touch is out of the range.
    assert sum(point["succeeded"] for point in found["points"]) == 167 * 10
    assert sum(point["dead"] for point in found["points"]) == 167
    tasks = {one["task"]: one for one in found["tasks"]}
    assert (tasks["fail"]["dead"], tasks["add"]["succeeded"]) == (167, 1_670)
    assert tasks["add"]["runP95Ms"] == pytest.approx(40, rel=0.5)
    assert tasks["add"]["waitP50Ms"] == pytest.approx(300, rel=0.5)
    assert tasks["add"]["perMinute"] == pytest.approx(10 / 60, rel=0.02)
    (queue,) = found["queues"]
    assert (queue["waitingMax"], queue["attempts"], queue["failed"]) == (1, 167 * 11, 167)
    assert queue["oldestReadyMsMax"] == 7 * 24 * 3_600_000
    none = (await week.get("/history?range=7d&queue=other")).json
    assert (none["queues"], none["tasks"]) == ([], [])
    assert (await week.get("/history?range=30d")).json["tasks"][0]["succeeded"] == 1_680


async def test_any_dashboard_shows_what_fails_and_is_slow_but_not_to_one_tenant(week: Web) -> None:
    text = (await week.ask("GET", "/?range=24h")).body.decode()

    assert "fail</a>: 24 of 24 attempts (100.0 %), 24 dead" in text
    assert "Slowest in 24h" in text
    assert 'queues?range=24h&amp;queue=default">1</a>' in text
    tasks = (await week.ask("GET", "/tasks?range=24h")).body.decode()
    assert "<td>24 (100.0 %)</td>" in tasks
    other = Web(week.app, token=week.token)  # as after the first was killed
    assert (await other.ask("GET", "/tasks?range=24h")).body.decode() == tasks
    mine = token(week.app, "admin", tenant="mine")
    assert (await week.get("/history", token=mine)).code == "OTHER_TENANT"
    assert (await week.ask("GET", "/queues", token=mine)).status == 403
    theirs = await week.ask("GET", "/tasks?range=7d", token=mine)
    assert (theirs.status, b"p95" in theirs.body) == (200, False)

    history = await week.app.insights.ahistory("1h")
    age = age_chart(history)
    assert [row[1] for row in age.rows].count("-") > 50  # where no one looked
    flow = flow_chart(await week.app.insights.ahistory("24h"))
    ended, running, waiting = (float(each.replace(",", "")) for each in flow.rows[0][1:])
    assert (ended, running, waiting) == (23 * 11, 0, 1)
