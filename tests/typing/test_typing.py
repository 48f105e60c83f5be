# SPDX-License-Identifier: MIT
"""mypy and pyright see the signatures of tasks through every way of calling and submitting them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MARK = re.compile(r"  # type: ignore\[[a-z, -]+\]")

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("typing")]

RIGHT, WRONG = "right_use.py", "wrong_use.py"

#: The name of a file, and a line in which there is an error.
Found = set[tuple[str, int]]


def mypy_errors(folder: Path, files: list[Path]) -> Found:
    """Where mypy finds errors."""
    arguments = ["--strict", "--no-error-summary", "--config-file="]
    # A cache of its own: a shared one tells errors of an unchanged case at its former place.
    found, trouble, _ = api.run([*arguments, f"--cache-dir={folder}/cache", *map(str, files)])
    assert not trouble
    errors = re.findall(rf"^{re.escape(str(folder))}/(\w+\.py):(\d+): error", found, re.MULTILINE)
    assert len(errors) == len(re.findall(": error:", found)), found
    return {(name, int(line)) for name, line in errors}


def pyright_errors(folder: Path, files: list[Path]) -> Found:
    """Where pyright finds errors."""
    settings = {
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *("--project", str(project), "--pythonpath", sys.executable, *map(str, files)),
        ],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    report = json.loads(finished.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    return {
        (Path(finding["file"]).name, finding["range"]["start"]["line"] + 1)
        for finding in report["generalDiagnostics"]
        if finding["severity"] == "error"
    }


@pytest.fixture(params=[mypy_errors, pyright_errors])
def found(request: pytest.FixtureRequest) -> Found:
    return errors_by(request.param)


@cache
def errors_by(checker: Callable[[Path, list[Path]], Found]) -> Found:
    """Where a checker finds errors in the cases without their marks, so that it speaks."""
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
        folder = Path(place).resolve()
        for name in (RIGHT, WRONG):
            text = (HERE / name).read_text(encoding="utf-8")
            (folder / name).write_text(MARK.sub("", text), encoding="utf-8")
        patched.setenv("MYPYPATH", str(ROOT / "src"))
        return checker(folder, [folder / RIGHT, folder / WRONG])


def test_right_uses_are_accepted(found: Found) -> None:
    assert {error for error in found if error[0] == RIGHT} == set()


def test_each_wrong_use_is_refused_and_nothing_else(found: Found) -> None:
    text = (HERE / WRONG).read_text(encoding="utf-8")
    expected = {
        (WRONG, number) for number, line in enumerate(text.splitlines(), 1) if MARK.search(line)
    }

    assert len(expected) > 20
    assert {error for error in found if error[0] == WRONG} == expected
