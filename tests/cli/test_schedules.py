# SPDX-License-Identifier: MIT
"""Schedules from the command line: shown, run, paused, changed."""

from __future__ import annotations

import zoneinfo
from collections.abc import AsyncIterator
from pathlib import Path
from zoneinfo import ZoneInfoNotFoundError

import pytest

from packhorse import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.ticker import Ticker
from tests.cli.project import Project

SCHEDULED = """
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")

@app.task
def report(what: str) -> str:
    return what

app.schedule("nightly", report.call("all"), cron="0 3 * * *", timezone="Europe/Berlin")
app.schedule("often", report.call("some"), every="15m", at_start=True)
"""


PAST = (
    SCHEDULED
    + """
from datetime import UTC, datetime

app.schedule("launch", report.call("old"), at=datetime(2020, 1, 1, tzinfo=UTC))
"""
)


@pytest.fixture
def scheduled(folder: Path) -> Project:
    """A project with schedules."""
    made = Project(folder)
    made.write("jobs.py", SCHEDULED)
    return made


@pytest.fixture
async def app(scheduled: Project) -> AsyncIterator[Packhorse]:
    """The project's app, after a worker of it has looked at its schedules once."""
    opened = scheduled.app()
    await _looked_at(opened)
    yield opened
    opened.close()


async def _looked_at(app: Packhorse) -> None:
    ticker = Ticker(
        ServiceContext(app.store, SystemClock(), SystemChance(), app.bus, "worker"),
        schedules=app._declared_schedules(),
    )
    await ticker.run_once()


async def test_list_says_of_an_instant_that_has_passed_that_it_did_not_fire(
    scheduled: Project,
) -> None:
    scheduled.write("jobs.py", PAST)
    app = scheduled.app()
    await _looked_at(app)
    app.close()

    result = scheduled.run("schedules", "list")

    assert "launch    over, did not fire  -" in result.stdout
    assert result.stdout.count("did not fire") == 1


@pytest.mark.usefixtures("app")
def test_list_shows_when_each_fires_next(scheduled: Project) -> None:
    result = scheduled.run("schedules", "list")

    assert result.exit_code == 0
    head, nightly, often = result.stdout.splitlines()
    assert head.split() == ["SCHEDULE", "STATE", "NEXT", "TASK", "LAST", "WHEN"]
    assert nightly.startswith("nightly   active")
    assert nightly.endswith("at 03:00 every day, Europe/Berlin")
    assert often.endswith("every 15m")


@pytest.mark.usefixtures("app")
def test_show_tells_all_of_one(scheduled: Project) -> None:
    result = scheduled.run("schedules", "show", "often")
    document = scheduled.document("schedules", "show", "often")

    assert "every 15m" in result.stdout
    assert "queued" in result.stdout  # the job of the fire at the start
    assert document["state"] == "active"
    assert document["task"] == "report"
    assert len(document["fires"]) == 1


@pytest.mark.usefixtures("app")
def test_a_schedule_whose_time_zone_is_not_known_here_is_shown_with_the_others(
    scheduled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = scheduled.run("schedules", "list")

    def unknown(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", unknown)
    listed = scheduled.run("schedules", "list", "--url", "sqlite:///jobs.db")
    shown = scheduled.run("schedules", "show", "nightly", "--url", "sqlite:///jobs.db")

    assert listed.stdout == known.stdout
    assert "there is no time zone 'Europe/Berlin'" in shown.stdout


@pytest.mark.usefixtures("app")
def test_next_lists_ten_fires_in_both_times(scheduled: Project) -> None:
    result = scheduled.run("schedules", "next", "nightly")

    lines = result.stdout.splitlines()
    assert lines[0].split() == ["UTC", "Europe/Berlin"]
    assert len(lines) == 11
    assert all(" 03:00:00 CE" in line for line in lines[1:])


@pytest.mark.usefixtures("app")
def test_history_shows_lateness_and_outcome(scheduled: Project) -> None:
    [fire] = scheduled.document("schedules", "history", "often")["fires"]
    empty = scheduled.run("schedules", "history", "nightly")

    assert fire["outcome"] == "queued"
    assert fire["lateMs"] >= 0
    assert "has not fired yet" in empty.stderr


def test_run_submits_a_job_now(scheduled: Project, app: Packhorse) -> None:
    document = scheduled.document("schedules", "run", "nightly")

    info = app.job(document["jobId"]).info()

    assert (info.task, info.status) == ("report", "queued")
    assert scheduled.document("schedules", "show", "nightly")["fires"][0]["byHand"] is True


@pytest.mark.usefixtures("app")
def test_a_schedule_is_paused_and_resumed(scheduled: Project) -> None:
    paused = scheduled.run("schedules", "pause", "nightly")
    none = scheduled.run("schedules", "next", "nightly")
    resumed = scheduled.run("schedules", "resume", "nightly")

    assert "nightly is paused" in paused.stdout
    assert "does not fire" in none.stderr
    assert "nightly is active: at 03:00 every day, Europe/Berlin; next at" in resumed.stdout


@pytest.mark.usefixtures("app")
def test_a_schedule_is_changed_and_given_back_to_code(scheduled: Project) -> None:
    changed = scheduled.run("schedules", "edit", "nightly", "--cron", "30 4 * * *")
    listed = scheduled.run("schedules", "list")
    back = scheduled.run("schedules", "edit", "nightly", "--declared")

    assert "at 04:30 every day" in changed.stdout
    assert "(changed by hand)" in listed.stdout
    assert "at 03:00 every day" in back.stdout


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cron", "61 * * * *"], "61"),
        (["--every", "soon"], "soon"),
        ([], "give what to change"),
        (["--declared", "--every", "5m"], "not both"),
    ],
)
def test_an_edit_that_cannot_work_is_refused(
    scheduled: Project, arguments: list[str], said: str
) -> None:
    result = scheduled.run("schedules", "edit", "nightly", *arguments)

    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr


@pytest.mark.usefixtures("app")
def test_an_unknown_name_matches_nothing(scheduled: Project) -> None:
    result = scheduled.run("schedules", "pause", "nothing")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "SCHEDULE_NOT_FOUND" in result.stderr


def test_a_store_without_schedules_says_where_they_come_from(scheduled: Project) -> None:
    scheduled.run("migrate")

    result = scheduled.run("schedules", "list")

    assert "write them down when they start" in result.stderr
