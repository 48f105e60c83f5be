# SPDX-License-Identifier: MIT
"""mypy and pyright see the signatures of tasks through every way of calling and submitting them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MARK = re.compile(r"  # type: ignore\[[a-z, -]+\]")

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("typing")]

Checker = Callable[[Path], set[int]]


def mypy_lines(file: Path) -> set[int]:
    """The lines of `file` in which mypy finds an error."""
    arguments = ["--strict", "--no-error-summary", "--config-file="]
    # A cache of its own: a shared one tells errors of an unchanged case at its former place.
    found, trouble, _ = api.run([*arguments, f"--cache-dir={file.parent}/cache", str(file)])
    assert not trouble
    errors = re.findall(rf"^{re.escape(str(file))}:(\d+): error", found, re.MULTILINE)
    assert len(errors) == len(re.findall(": error:", found)), found
    return {int(line) for line in errors}


def pyright_lines(file: Path) -> set[int]:
    """The lines of `file` in which pyright finds an error."""
    settings = {
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    project = file.parent / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *("--project", str(project), "--pythonpath", sys.executable, str(file)),
        ],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    report = json.loads(finished.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return {
        finding["range"]["start"]["line"] + 1
        for finding in report["generalDiagnostics"]
        if finding["severity"] == "error"
    }


CHECKERS = pytest.mark.parametrize("lines_with_errors", [mypy_lines, pyright_lines])


@pytest.fixture(autouse=True)
def _package_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))


def copied(name: str, folder: Path) -> Path:
    """The case without its marks, so that the checkers speak."""
    text = (HERE / name).read_text(encoding="utf-8")
    copy = folder / name
    copy.write_text(MARK.sub("", text), encoding="utf-8")
    return copy


def marked_lines(name: str) -> set[int]:
    text = (HERE / name).read_text(encoding="utf-8")
    return {number for number, line in enumerate(text.splitlines(), 1) if MARK.search(line)}


@CHECKERS
def test_right_uses_are_accepted(lines_with_errors: Checker, tmp_path: Path) -> None:
    assert lines_with_errors(copied("right_use.py", tmp_path)) == set()


@CHECKERS
def test_each_wrong_use_is_refused_and_nothing_else(
    lines_with_errors: Checker, tmp_path: Path
) -> None:
    expected = marked_lines("wrong_use.py")

    assert len(expected) > 20
    assert lines_with_errors(copied("wrong_use.py", tmp_path)) == expected
