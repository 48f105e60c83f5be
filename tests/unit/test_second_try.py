# SPDX-License-Identifier: MIT
"""`scripts.second_try`: what a neighbour disturbed passes alone, what is broken stays red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.second_try import FAILURES_MAX, main

ROOT = Path(__file__).resolve().parents[2]

#: Fails the first time it is run, and never again.
DISTURBED = """
from pathlib import Path
import pytest

@pytest.mark.xdist_group("apart")
def test_disturbed():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.write_text("") != 0
"""


def tried(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(source)
    program = f"import sys; sys.path.append({str(ROOT)!r}); from scripts.second_try import main; "
    return subprocess.run(
        [sys.executable, "-c", program + f"sys.exit(main({['test_it.py', *options]!r}))"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_a_disturbed_test_passes_alone_and_is_named(tmp_path: Path) -> None:
    run = tried(tmp_path, DISTURBED, "-n", "1", "--dist", "loadgroup")

    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "  test_it.py::test_disturbed"
    assert "1 failed" in run.stdout
    assert "1 passed" in run.stdout


def test_a_test_that_fails_alone_too_is_red(tmp_path: Path) -> None:
    run = tried(tmp_path, "def test_broken():\n    assert False\n\ndef test_good(): ...\n")

    assert run.returncode == 1
    assert "once more, alone" in run.stdout
    assert "PASSED ALONE" not in run.stdout


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    marks = f"import pytest\n@pytest.mark.parametrize('each', range({FAILURES_MAX + 1}))\n"

    run = tried(tmp_path, DISTURBED + marks + "def test_many(each):\n    assert False\n")

    assert run.returncode == 1
    assert "once more" not in run.stdout


def test_no_test_at_all_is_not_a_pass(tmp_path: Path) -> None:
    assert tried(tmp_path, "").returncode == 5


def test_it_is_what_make_test_runs() -> None:
    assert main.__module__ == "scripts.second_try"
    assert "python -m scripts.second_try -n" in (ROOT / "Makefile").read_text()
