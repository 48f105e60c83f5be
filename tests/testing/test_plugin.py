# SPDX-License-Identifier: MIT
"""The plugin as pytest loads it in a user's project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from packhorse import Packhorse
app = Packhorse("sqlite:///production.db")

@app.task
def send(to: str) -> str:
    return to
"""
CONFTEST = """
import pytest
from shop import app

@pytest.fixture
def packhorse_target():
    return app
"""
TEST = """
import pytest
from shop import app, send

@pytest.mark.parametrize("turn", [1, 2])
def test_it(packhorse_app, turn):
    send.enqueue("ada")
    assert packhorse_app.run_jobs() == 1
    packhorse_app.assert_enqueued(send, {"to": "ada"}, count=1)
    assert STORE in packhorse_app.store.label
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=50
    )


@pytest.mark.parametrize(
    ("settings", "store"), [("", "memory:"), ("packhorse_url = sqlite://", "sqlite:")]
)
def test_a_project_tests_its_own_app_on_the_store_it_chose(
    tmp_path: Path, settings: str, store: str
) -> None:
    files = {"shop.py": SHOP, "conftest.py": CONFTEST, "test_it.py": f"STORE = {store!r}\n{TEST}"}
    for name, text in {**files, "pytest.ini": f"[pytest]\n{settings}\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    result = run(tmp_path)

    assert (result.returncode, "2 passed" in result.stdout) == (0, True), result.stdout
    assert not (tmp_path / "production.db").exists()


def test_a_project_that_does_not_use_it_imports_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('packhorse')\n"
        "    ours = {name for name in sys.modules if name.startswith('packhorse')}\n"
        "    assert ours == {'packhorse', 'packhorse.testing', 'packhorse.testing.plugin'}\n"
        "    assert 'msgspec' not in sys.modules\n",
        encoding="utf-8",
    )

    result = run(tmp_path)

    assert result.returncode == 0, result.stdout
