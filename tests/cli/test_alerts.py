# SPDX-License-Identifier: MIT
"""`packhorse alerts`: seen, tried and silenced by an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.cli.exits import ExitCode
from tests.cli.project import Project

SOURCE = """
from packhorse import Packhorse
from packhorse.alerts import depth

app = Packhorse("sqlite:///jobs.db")
app.alert("behind", depth > 5, queue="mail", to=[print])
"""


@pytest.fixture
def watched(project: Project) -> Project:
    Path("watched.py").write_text(SOURCE, encoding="utf-8")
    return project


def test_alerts_are_listed_tried_and_silenced(watched: Project) -> None:
    named = ("-A", "watched:app")
    assert watched.run("migrate", *named).exit_code == 0
    (alert,) = watched.document("alerts", "list", *named)["alerts"]
    assert (alert["name"], alert["state"], alert["condition"]) == ("behind", "unknown", "depth > 5")

    assert watched.run("alerts", "silence", "behind", "2h", *named).exit_code == 0
    assert watched.run("alerts", "test", "behind", *named).exit_code == 0

    (alert,) = watched.document("alerts", "list", *named)["alerts"]
    assert alert["silencedUntil"] is not None
    (job,) = watched.document("jobs", "list", *named)["jobs"]
    assert (job["task"], job["queue"]) == ("packhorse.deliver_alert", "alerts")
    assert "behind" in watched.run("alerts", "list", *named).stdout


def test_rules_are_written_down_shown_as_such_and_removed(watched: Project) -> None:
    named = ("-A", "watched:app")
    assert watched.run("migrate", *named).exit_code == 0
    rule = ("alerts", "add", "late", "oldest_ready > 5m", "--queue", "mail")
    assert watched.run(*rule, "--to", "https://pager.example/x", *named).exit_code == 0
    assert watched.run(*rule, "--to", "slack:https://chat.example/y", *named).exit_code == 0

    found = watched.document("alerts", "list", *named)["alerts"]
    shown = [(each["name"], each["source"], each["condition"]) for each in found]
    assert shown == [("behind", "code", "depth > 5"), ("late", "store", "oldest_ready > 300 s")]
    assert "chat.example" not in watched.run("alerts", "list", *named).output
    for wrong in (
        ("add", "behind", "depth > 1"),
        ("add", "x", "depth is big"),
        ("add", "x", "width > 1"),
        ("add", "x", "depth > 1", "--to", "fax:123"),
        ("remove", "behind"),
    ):
        assert watched.run("alerts", *wrong, *named).exit_code == 2, wrong

    assert watched.run("alerts", "remove", "late", *named).exit_code == 0
    assert len(watched.document("alerts", "list", *named)["alerts"]) == 1


def test_a_rule_about_all_queues_needs_no_queue(watched: Project) -> None:
    named = ("-A", "watched:app")
    assert watched.run("migrate", *named).exit_code == 0

    added = watched.run("alerts", "add", "late", "oldest_ready > 5m", *named)

    assert added.exit_code == 0, added.output
    (_, alert) = watched.document("alerts", "list", *named)["alerts"]
    assert (alert["name"], alert["queue"]) == ("late", "")


@pytest.mark.parametrize("verb", [("test", "gone"), ("remove", "gone"), ("silence", "gone", "2h")])
def test_an_alert_that_is_not_there_is_not_found_as_other_names(
    watched: Project, verb: tuple[str, ...]
) -> None:
    named = ("-A", "watched:app")
    assert watched.run("migrate", *named).exit_code == 0

    told = watched.run("alerts", *verb, *named)

    assert told.exit_code == ExitCode.NOTHING_MATCHED
    assert "there is no alert 'gone'" in told.output
