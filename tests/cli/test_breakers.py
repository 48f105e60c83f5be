# SPDX-License-Identifier: MIT
"""`packhorse breakers` and `packhorse stats`: circuit breakers, seen and reset by an operator."""

from __future__ import annotations

import re

import pytest

from packhorse import Context, Packhorse, RetryPolicy
from tests.cli.project import Project


@pytest.fixture
def tripped(project: Project, app: Packhorse) -> None:
    """A store with an open breaker, and one of a tenant that has counted one failure."""

    @app.task(retry=RetryPolicy(max_retries=0))
    def charge(ctx: Context) -> None:
        with ctx.breaker("mail", tenant="acme"), ctx.breaker("stripe", failures=1):
            raise OSError("down")

    charge.enqueue()
    app.run(burst=True)


@pytest.mark.usefixtures("tripped")
def test_breakers_are_listed_and_shown_in_stats(project: Project) -> None:
    listed = project.document("breakers", "list")["breakers"]

    assert [(one["name"], one["tenant"], one["state"], one["failures"]) for one in listed] == [
        ("stripe", "", "open", 1),
        ("mail", "acme", "closed", 1),
    ]
    assert listed[0]["retryAt"] > listed[0]["openedAt"]
    assert project.document("stats")["breakers"] == listed
    for shown in (project.run("breakers", "list").stdout, project.run("stats").stdout):
        assert "stripe" in shown
        assert "open" in shown
        assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", shown)


@pytest.mark.usefixtures("tripped")
def test_a_reset_closes_one_and_no_other(project: Project) -> None:
    assert project.run("breakers", "reset", "stripe").exit_code == 2  # it asks
    assert len(project.document("breakers", "list")["breakers"]) == 2

    assert project.run("breakers", "reset", "stripe", "--yes").exit_code == 0

    assert [one["name"] for one in project.document("breakers", "list")["breakers"]] == ["mail"]
    assert project.run("breakers", "reset", "mail", "--yes").exit_code == 7
    assert project.run("breakers", "reset", "mail", "--tenant", "acme", "--yes").exit_code == 0
    assert project.document("breakers", "list")["breakers"] == []
