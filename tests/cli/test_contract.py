# SPDX-License-Identifier: MIT
"""`packhorse contract`: what tasks promise, shown, written down, checked and compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from packhorse.cli.exits import ExitCode
from tests.cli.project import Project
from tests.unit.contract_support import QUEUE_BASED

OLD = """
worker_id: adder
inputs:
  - a: integer
  - c?: string
"""

APP = """
from packhorse import Contract, Packhorse

app = Packhorse("memory://")

@app.task(contract=Contract(worker_id="adder", version="1.10", timeout=60, tools_allowed=["sum"]))
def add(a: int, b: int = 0) -> int:
    "Add two numbers."
    return a + b

@app.task
def greet(name: str) -> dict[str, str]:
    return {"hello": name}
"""


@pytest.fixture
def shop(folder: Path) -> Project:
    made = Project(folder)
    made.write("jobs.py", APP)
    return made


@pytest.mark.req("S0-7")
def test_a_contract_is_shown_as_yaml_and_as_json(shop: Project) -> None:
    shown, document = shop.run("contract", "show", "add"), shop.document("contract", "show", "add")

    assert yaml.safe_load(shown.stdout) == document
    assert document["worker_id"] == "adder"
    assert document["version"] == "1.10"
    assert document["inputs"] == [{"a": "integer"}, {"b?": "integer"}]
    assert document["constraints"] == {"timeout_seconds": 60, "tools_allowed": ["sum"]}


def test_an_unknown_task_exits_with_a_suggestion(shop: Project) -> None:
    result = shop.run("contract", "show", "ad")

    assert result.exit_code == 7
    assert "did you mean 'add'?" in result.stderr


def test_all_contracts_are_exported_and_compare_as_the_same(shop: Project) -> None:
    printed = shop.run("contract", "export")
    assert [one["worker_id"] for one in yaml.safe_load_all(printed.stdout)] == ["adder", "greet"]
    assert len(shop.document("contract", "export")) == 2

    assert shop.run("contract", "export", "--output", "kept").exit_code == 0
    assert shop.run("contract", "export", "greet", "--json", "--output", "kept").exit_code == 0

    assert sorted(path.name for path in (shop.folder / "kept").iterdir()) == [
        *("add.yaml", "greet.json", "greet.yaml")
    ]
    for name in ("add.yaml", "greet.yaml", "greet.json"):
        same = shop.document("contract", "diff", f"kept/{name}")
        assert same == {"callers": True, "jobs": True, "changes": []}
    assert shop.run("contract", "diff", "kept").exit_code == 0


def test_a_folder_of_contracts_is_compared_with_all_tasks(shop: Project) -> None:
    shop.write("kept/greet.yaml", "worker_id: greet\nversion: '1.0'\ninputs: {type: string}\n")
    shop.write("kept/left.json", '{"worker_id": "left"}')

    found = shop.document("contract", "diff", "kept", code=1)

    assert (found["callers"], found["jobs"]) == (False, False)
    places = [one["place"] for one in found["changes"]]
    assert {"greet: inputs", "left: task"} <= set(places), places
    assert shop.run("contract", "diff", "kept", "--task", "greet").exit_code == 2
    (shop.folder / "none").mkdir()
    assert shop.run("contract", "diff", "none").exit_code == ExitCode.NOTHING_MATCHED


def test_a_file_and_an_app_are_checked(shop: Project) -> None:
    shop.write("good.yaml", QUEUE_BASED)
    shop.write("bad.yaml", "inputs: {type: thing}\n")

    assert shop.run("contract", "check", "good.yaml").exit_code == 0
    bad = shop.run("contract", "check", "good.yaml", "bad.yaml")
    assert bad.exit_code == 1
    assert "bad.yaml: inputs is no JSON Schema" in bad.stdout
    [problem] = shop.document("contract", "check", code=1)
    assert problem["contract"] == "add"
    assert "the tool 'sum' is not registered" in problem["problem"]


def test_a_change_is_told_to_be_safe_or_not(shop: Project) -> None:
    shop.write("old.yaml", OLD)
    shop.write("new.yaml", OLD.replace("integer", "number"))

    wider = shop.run("contract", "diff", "old.yaml", "new.yaml")
    assert (wider.exit_code, "For callers: safe" in wider.stderr) == (0, True)
    against = shop.document("contract", "diff", "old.yaml", code=1)  # the task of that id
    assert (against["callers"], against["jobs"]) == (False, False)
    assert {"place": "inputs.c", "text": "is not taken any more"}.items() <= next(
        one for one in against["changes"] if one["place"] == "inputs.c"
    ).items()
    table = shop.run("contract", "diff", "old.yaml", "--task", "greet")
    assert (table.exit_code, "not safe" in table.stdout) == (1, True)
    assert shop.run("contract", "diff", "old.yaml", "new.yaml", "--task", "add").exit_code == 2
    assert msgspec.json.decode(
        shop.run("contract", "diff", "old.yaml", "new.yaml", "--json").stdout
    )["jobs"]


MOVED = """
from packhorse import Contract, Packhorse

app = Packhorse("memory://")

@app.task(contract=Contract(worker_id="adder", version="2"))
def add(a: int, b: int) -> int:
    return a + b

@add.upcast("1", "2")
def with_b(payload):
    return {**payload, "b": 0}
"""


GIVEN = "inputs:\n  - a: integer\nretries: {max_attempts: 4}\n"


def test_upcasters_make_a_change_safe_for_jobs_that_wait(shop: Project) -> None:
    shop.write("moved.py", MOVED)
    shop.write("one.yaml", "worker_id: adder\nversion: 1.0\n" + GIVEN)
    shop.write("none.yaml", "worker_id: adder\nversion: 0.9\n" + GIVEN)

    moved = shop.document("contract", "diff", "one.yaml", "-A", "moved:app", code=1)
    stuck = shop.document("contract", "diff", "none.yaml", "-A", "moved:app", code=1)

    assert (moved["callers"], moved["jobs"]) == (False, True)
    assert (stuck["callers"], stuck["jobs"]) == (False, False)
    assert (
        "upcasters move waiting jobs"
        in shop.run("contract", "diff", "one.yaml", "-A", "moved:app").stdout
    )
    same = shop.document("contract", "show", "add", "-A", "moved:app")
    assert same["version"] == "2"
