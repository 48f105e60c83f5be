# SPDX-License-Identifier: MIT
"""Batches from the command line: listed, shown, watched, retried, cancelled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.stores.requests import ClaimRequest
from tests.cli.project import Project
from tests.cli.test_overview import hire

BATCHED = """
from packhorse import Packhorse, RetryPolicy

app = Packhorse("sqlite:///jobs.db")

@app.task(retry=RetryPolicy(max_retries=0))
def halve(number: int) -> int:
    if number == 3:
        raise ValueError("three is odd")
    return number // 2
"""


@pytest.fixture
def project(folder: Path) -> Project:
    """A project with a task for batches."""
    made = Project(folder)
    made.write("jobs.py", BATCHED)
    return made


@pytest.fixture
def app(project: Project) -> Iterator[Packhorse]:
    """The project's app."""
    opened = project.app()
    yield opened
    opened.close()


def test_a_batch_is_listed_shown_watched_and_retried(project: Project, app: Packhorse) -> None:
    halve = app.tasks["halve"]
    app.batch(halve, range(5), batch_size=2, id="five", on_complete=halve.call(4))
    app.run(burst=True)

    listed = project.run("batches", "list")
    shown = project.run("batches", "show", "five")
    told = json.loads(project.run("batches", "show", "five", "--json").stdout)
    watched = project.run("batches", "watch", "five")
    retried = project.run("batches", "retry", "five")

    assert listed.stdout.splitlines()[1].split() == ["five", "failed", "100", "%", "5", "1", "5"]
    assert "5 of 5, 1 failed" in shown.stdout
    assert "three is odd" in shown.stdout
    assert "on_complete completed" in shown.stdout
    assert told["callbacks"] == {"on_complete": "completed"}
    assert (told["batchId"], told["succeeded"], len(told["failures"])) == ("five", 4, 1)
    assert watched.stdout.strip() == "100.0 %  5 of 5, 1 failed, failed"
    assert retried.stdout.startswith("Batch five: 1 jobs run again")


def test_a_batch_is_cancelled_only_if_that_is_meant(project: Project, app: Packhorse) -> None:
    app.batch(app.tasks["halve"], range(5), batch_size=2, id="five")

    asked = project.run("batches", "cancel", "five")
    cancelled = project.run("batches", "cancel", "five", "--yes", "--json")
    unknown = project.run("batches", "show", "six")

    assert asked.exit_code == ExitCode.USAGE
    assert "Cancel batch five? There is no terminal to ask on: add --yes to do it." in asked.stderr
    assert json.loads(cancelled.stdout) == {
        "batchId": "five",
        "members": 3,
        "told": 3,
        "running": 0,
        "ended": False,
    }
    assert app.batches.get("five").progress().status in {"pending", "cancelled"}
    assert unknown.exit_code == ExitCode.NOTHING_MATCHED


def test_a_cancel_of_a_batch_that_has_ended_says_so_and_it_can_be_retried(
    project: Project, app: Packhorse
) -> None:
    batch = app.batch(app.tasks["halve"], range(5), batch_size=2, id="five")
    app.run(burst=True)

    cancelled = project.run("batches", "cancel", "five", "--yes")
    told = json.loads(project.run("batches", "cancel", "five", "--yes", "--json").stdout)

    assert cancelled.stdout.strip() == "Batch five had ended before, and stays failed."
    assert told == {"batchId": "five", "members": 3, "told": 0, "running": 0, "ended": True}
    assert batch.progress().status == "failed"
    assert batch.retry_failed() == 1


def test_a_batch_runs_from_its_first_job_on_and_a_cancel_says_how_many_workers_hold(
    project: Project, app: Packhorse
) -> None:
    batch = app.batch(app.tasks["halve"], range(5), batch_size=2, id="five")
    assert batch.progress().status == "pending"
    taken = ClaimRequest("anna", (batch.document().job.queue,), ("halve",), 2, 60_000_000)
    hire(app, "anna", "batch")

    app.store.run(app.store.jobs.claim(taken))

    assert batch.progress().status == "running"
    assert [each.status for each in app.batches.all()] == ["running"]
    shown = project.document("batches", "show", "five")
    assert (shown["status"], shown["completedAt"]) == ("running", None)
    assert project.document("batches", "list")["batches"][0]["completedAt"] is None
    cancelled = project.run("batches", "cancel", "five", "--yes").stdout
    assert cancelled == "Batch five: 3 jobs told, 2 of them held by workers.\n"


def test_a_part_of_its_id_names_a_batch(project: Project, app: Packhorse) -> None:
    batch = app.batch(app.tasks["halve"], [2])

    shown = project.run("batches", "show", batch.id[-8:])

    assert batch.id in shown.stdout
    assert batch.id[-8:] in project.run("batches", "list").stdout
