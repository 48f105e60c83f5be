# SPDX-License-Identifier: MIT
"""Workflows from the command line: listed, drawn, cancelled, tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.cli.exits import ExitCode
from tests.cli.project import Project

SHOP = """
from packhorse import Packhorse, RetryPolicy

app = Packhorse("sqlite:///jobs.db")

@app.task(retry=RetryPolicy(max_retries=0))
def charge(order: int) -> int:
    raise ValueError(order)

@app.task
def send(receipt: int) -> int:
    return receipt
"""


@pytest.fixture
def shop(folder: Path) -> Project:
    """A project with a workflow whose first node is dead."""
    made = Project(folder)
    made.write("jobs.py", SHOP)
    app = made.app()
    flow = app.workflow("order-17")
    paid = flow.add(app.tasks["charge"].call(17))
    flow.add(app.tasks["send"].call(paid.result))
    flow.start()
    app.run(burst=True)
    app.close()
    return made


def test_a_workflow_is_listed_drawn_and_tried_again(shop: Project) -> None:
    listed = shop.run("workflows", "list").stdout
    drawn = shop.run("workflows", "show", "order-17").stdout.splitlines()

    assert "failed" in listed
    assert drawn[-2] == "[dead] charge (poison_message); behind it: send"
    assert drawn[-1] == "  [cancelled] send <- charge"
    assert '"charge" -> "send";' in shop.run("workflows", "show", "order-17", "--dot").stdout
    assert "n1 --> n2" in shop.run("workflows", "show", "order-17", "--mermaid").stdout
    run = listed.splitlines()[-1].split()[1]  # as the table shows it
    assert "1 nodes" in shop.run("workflows", "retry", run).stdout
    asked = shop.run("workflows", "cancel", "order-17")
    assert (asked.exit_code, "add --yes to do it" in asked.stderr) == (ExitCode.USAGE, True)
    assert "running" in shop.run("workflows", "list").stdout
    assert "is cancelled" in shop.run("workflows", "cancel", "order-17", "--yes").stdout
    assert "it is cancelled" in shop.run("workflows", "cancel", "order-17", "--yes").stdout
    assert shop.run("workflows", "show", "order-18").exit_code == ExitCode.NOTHING_MATCHED
