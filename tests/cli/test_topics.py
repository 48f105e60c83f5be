# SPDX-License-Identifier: MIT
"""Topics from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packhorse.cli.exits import ExitCode
from tests.cli.project import Project

SUBSCRIBED = """
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")

@app.topic("order.paid").subscribe
def ship(order: int) -> int:
    return order
"""


@pytest.fixture
def shop(folder: Path) -> Project:
    """A project with a topic, whose worker has run once."""
    made = Project(folder)
    made.write("jobs.py", SUBSCRIBED)
    app = made.app()
    app.run(burst=True)
    app.close()
    return made


def test_topics_are_listed_shown_and_published_on(shop: Project) -> None:
    listed = shop.run("topics", "list")
    shown = shop.run("topics", "show", "order.paid")
    first = shop.run("topics", "publish", "order.paid", '{"order": 17}', "--key", "o-17")
    again = shop.run("topics", "publish", "order.paid", '{"order": 17}', "--key", "o-17", "--json")

    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["TOPIC", "SUBSCRIBERS"],
        ["order.paid", "ship"],
    ]
    head, row = shown.stdout.splitlines()
    assert head.split() == ["SUBSCRIBER", "QUEUE", "STATE", "DECLARED", "LAST", "SEEN"]
    assert row.split()[:3] == ["ship", "default", "active"]
    assert first.stdout.startswith("The event of order.paid is 1 job:")
    assert "ship" in first.stdout
    assert json.loads(again.stdout)["jobs"][0]["deduplicated"] is True


def test_documents_have_every_subscriber(shop: Project) -> None:
    listed = json.loads(shop.run("topics", "list", "--json").stdout)
    shown = json.loads(shop.run("topics", "show", "order.paid", "--json").stdout)

    assert listed == {"topics": [shown]}
    assert shown["name"] == "order.paid"
    assert [each["task"] for each in shown["subscribers"]] == ["ship"]


def test_what_is_not_there_and_what_is_not_json_are_said(shop: Project) -> None:
    assert "has no subscribers" in shop.run("topics", "show", "none").stderr
    assert "reached no task" in shop.run("topics", "publish", "none", "1").stderr
    wrong = shop.run("topics", "publish", "order.paid", "{order: 17}")
    assert wrong.exit_code == ExitCode.USAGE
    assert "is not JSON" in wrong.stderr


def test_a_store_without_topics_says_so(folder: Path) -> None:
    project = Project(folder)
    project.write("jobs.py", SUBSCRIBED)
    project.run("migrate")

    assert "No topics." in project.run("topics", "list").stderr
