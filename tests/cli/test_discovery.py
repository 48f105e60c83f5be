# SPDX-License-Identifier: MIT
"""Which app is meant, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packhorse.cli.discovery import FoundApp, find_app
from packhorse.cli.exits import AppNotLoaded

APP = "from packhorse import Packhorse\napp = Packhorse('memory://')\n"


def found(
    given: str | None = None, folder: Path | None = None, variable: str | None = None
) -> FoundApp:
    environment = {} if variable is None else {"PACKHORSE_APP": variable}
    return find_app(given, folder=folder or Path.cwd(), environment=environment)


def refusal(given: str | None = None) -> str:
    with pytest.raises(AppNotLoaded) as raised:
        found(given)
    return str(raised.value)


def write(name: str, text: str = APP) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("shop.work:app", "shop.work:app"),
        ("shop.work:holder.inner", "shop.work:holder.inner"),
        ("shop.work:create", "shop.work:create"),
        ("shop.work", "shop.work:app"),
    ],
)
def test_an_app_is_named_by_attribute_by_factory_or_by_its_module(
    folder: Path, given: str, name: str
) -> None:
    write(
        "shop/work.py",
        f"{APP}class holder:\n    inner = app\ndef create():\n    return app\nsame = app\n",
    )

    result = found(given)

    assert str(result) == f"{name} (from the command line)"
    assert result.app is sys.modules["shop.work"].app


def test_the_argument_beats_the_variable_and_the_variable_beats_pyproject(folder: Path) -> None:
    for module in ("first", "second", "third"):
        write(f"{module}.py")
    write("pyproject.toml", '[tool.packhorse]\napp = "third:app"\n')

    assert str(found("first:app", variable="second:app")) == "first:app (from the command line)"
    assert str(found(variable="second:app")) == "second:app (from PACKHORSE_APP)"
    assert str(found()) == "third:app (from pyproject.toml)"


def test_the_nearest_pyproject_decides_and_its_src_is_importable(folder: Path) -> None:
    write("pyproject.toml", '[tool.packhorse]\napp = "shelved.work:app"\n')
    write("src/shelved/work.py")
    Path("deep/down").mkdir(parents=True)

    result = found(folder=folder / "deep" / "down")

    assert str(result) == f"shelved.work:app (from {folder / 'pyproject.toml'})"


@pytest.mark.parametrize("name", ["app.py", "main.py", "tasks.py", "jobs.py", "src/pack/jobs.py"])
def test_an_app_in_a_usual_file_is_found(folder: Path, name: str) -> None:
    write(name)

    result = found()

    assert result.source == f"found in {name}"


def test_a_usual_file_that_makes_no_app_is_not_imported(folder: Path) -> None:
    write("main.py", "import packhorse\nraise AssertionError('imported')\n")
    write("jobs.py")

    assert found().name == "jobs:app"


def test_one_app_seen_from_two_files_is_one_app(folder: Path) -> None:
    write("jobs.py")
    write("main.py", "from jobs import app\n# not Packhorse(...) again\n")

    assert found().app is sys.modules["jobs"].app


def test_two_apps_are_not_chosen_between(folder: Path) -> None:
    write("jobs.py")
    write("tasks.py")

    message = refusal()

    assert "several apps were found: tasks:app, jobs:app" in message


def test_two_apps_in_one_module_are_not_chosen_between(folder: Path) -> None:
    write("jobs.py", f"{APP}other = Packhorse('memory://')\n")

    assert "say which one: jobs:app, jobs:other" in refusal("jobs")


def test_without_any_app_all_that_was_tried_is_told(folder: Path) -> None:
    write("main.py", "print('hello')\n")
    write("pyproject.toml", "[project]\nname = 'shop'\n")

    message = refusal()

    for line in (
        "the command line: no app named there",
        "PACKHORSE_APP: not set",
        f"[tool.packhorse] app: not in {folder / 'pyproject.toml'}",
        "app.py: not there",
        "main.py: makes no Packhorse(...)",
        "'packhorse worker jobs:app'",
    ):
        assert line in message


def test_a_failing_import_shows_the_users_frames_and_no_others(folder: Path) -> None:
    write("jobs.py", "from helper import value\n")
    write("helper.py", "value = 1 / 0\n")

    message = refusal("jobs:app")

    assert "module jobs (from the command line) could not be imported" in message
    assert 'jobs.py", line 1' in message
    assert 'helper.py", line 1' in message
    assert "ZeroDivisionError: division by zero" in message
    assert "importlib" not in message
    assert "loading.py" not in message


def test_a_missing_dependency_of_the_users_code_is_no_missing_app(folder: Path) -> None:
    write("jobs.py", "import no_such_library\n")

    message = refusal("jobs:app")

    assert "No module named 'no_such_library'" in message
    assert 'jobs.py", line 1' in message


def test_a_module_that_ends_the_program_is_an_error_like_any_other(folder: Path) -> None:
    write("jobs.py", f"{APP}raise SystemExit(3)\n")

    assert "SystemExit: 3" in refusal("jobs:app")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("jbos:app", "there is no module 'jbos' (from the command line); did you mean 'jobs'?"),
        ("shop.wrok:app", "did you mean 'shop.work'?"),
        ("jobs:ap", "has no 'ap'; did you mean jobs:app?"),
        ("jobs:something.else", "did you mean jobs:app?"),
        ("jobs:task", "is of type FunctionTask (packhorse), not a Packhorse app"),
        ("jobs:broken", "RuntimeError: out of order"),
        ("jobs:wrong", "is of type int, not a Packhorse app"),
        ("jobs.py", "did you mean 'jobs'?"),
        ("./shop/work.py:app", "did you mean 'shop.work:app'?"),
        ("2fast:app", "write module:attribute, such as 'shop.jobs:app'"),
        ("web:web", "is of type FastAPI (fastapi), not a Packhorse app"),
        ("empty", "has no Packhorse app among its variables"),
    ],
)
def test_a_near_miss_gets_a_suggestion(folder: Path, given: str, hint: str) -> None:
    write("shop/work.py")
    write("empty.py", "")
    write(
        "fastapi.py",
        "class FastAPI:\n    def __call__(self, scope, receive, send): raise AssertionError\n",
    )
    write("web.py", "from fastapi import FastAPI\nweb = FastAPI()\n")
    write(
        "jobs.py",
        f"{APP}@app.task\ndef task() -> None:\n    raise AssertionError('ran')\n"
        "def broken():\n    raise RuntimeError('out of order')\ndef wrong():\n    return 3\n",
    )

    assert hint in refusal(given)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.packhorse]\nappp = 'jobs:app'\n", "no setting 'appp'; did you mean 'app'?"),
        ("[tool.packhorse]\nqueues = ['a']\n", "no setting 'queues'; there is only 'app'"),
        ("[tool.packhorse]\napp = 3\n", "app is 3; write 'module:attribute'"),
        ("[tool.packhorse\n", "cannot be read"),
    ],
)
def test_a_wrong_pyproject_is_refused(folder: Path, text: str, problem: str) -> None:
    write("jobs.py")
    write("pyproject.toml", text)

    assert problem in refusal()
