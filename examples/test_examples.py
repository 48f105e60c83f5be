# SPDX-License-Identifier: MIT
"""The examples run, and show what their READMEs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHOWN = {
    "payments": [
        "the bank is down: breaker open, 3 calls, nothing charged",
        "job of order 2: breaker_open",
        "orders [(1,), (2,)], payments [(1, 'receipt-card-1'), (2, 'receipt-card-2')]",
        "the bank has charged 2 cards; order 2 took",
    ],
    "ai_worker": [
        "report: pending, needs_human, 830 tokens",
        "approved by ada: What is known:",
        "searched 1 time, asked the model 1 time",
        "wander: dead, BUDGET_EXCEEDED",
        "delete_everything: dead, TOOL_NOT_ALLOWED",
    ],
    "order_workflow": [
        "order 1: pay completed, reserve completed, pick pending, ship waiting, tell_customer",
        "its parcel: it waits for 1 of 3 nodes: pick (pending)",
        "order 1: completed, order 1 is on its way: receipt 1 over 500 cents, from shelf 1, picked",
        "order 2: failed, pay completed, reserve dead, pick completed, ship cancelled, tell_c",
        "its customer: order 2 is late, and we are sorry",
        "order 2: completed, receipt 2 over 900 cents, from shelf 2, picked by bob",
    ],
    "penguiflow_host": [
        "penguins: completed, They swim. (zoo asked), 1 attempts",
        "mules: completed, They carry. (zoo asked), 1 attempts",
        "dragons: dead, exception:LookupError, 2 attempts",
        "glaciers: dead, job_timeout, 2 attempts",
        'packhorse_flow_node_seconds_count{node="answer"} 2',
    ],
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if "PACKHORSE" not in name}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}.demo"],
        check=False,
        cwd=tmp_path,
        env=known | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[: len(wanted)] for line, wanted in zip(lines, SHOWN[name], strict=True)] == SHOWN[
        name
    ]


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_explained_in_few_lines(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text("utf-8")

    assert f"python -m examples.{name}.demo" in readme
    assert len(readme.splitlines()) <= 15
