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


UNTOLD = """
import pytest
from packhorse import UsageError
from packhorse.testing import use
from shop import app, send

def test_submit(packhorse_app):
    with pytest.raises(UsageError, match="def packhorse_target"):
        send.enqueue("ada")
    with pytest.raises(UsageError, match="def packhorse_target"):
        app.enqueue_many([send.call("ada")])
    assert send("ada") == "ada"  # a call is no submit

async def submit_on_a_loop():
    with pytest.raises(UsageError, match="def packhorse_target"):
        await send.aenqueue("ada")

def test_submit_on_a_loop(packhorse_app):
    import asyncio
    asyncio.run(submit_on_a_loop())

def test_map(packhorse_app):
    with pytest.raises(UsageError, match="def packhorse_target"):
        send.map(["ada"])

def test_expect(packhorse_app):
    with pytest.raises(AssertionError, match="def packhorse_target"):
        packhorse_app.assert_enqueued(send)

def test_several(packhorse_app):
    own = packhorse_app.task(mine)
    with use(app) as tested:
        send.enqueue("ada")
        own.enqueue()
        assert (tested.run_jobs(), packhorse_app.run_jobs()) == (1, 1)

def mine():
    return None
"""


def test_a_project_that_names_no_app_writes_into_no_real_store(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(UNTOLD, encoding="utf-8")
    (tmp_path / "test_later.py").write_text(
        "import shop\n\ndef test_later():\n    shop.send.enqueue('ada')\n", encoding="utf-8"
    )

    refused = run(tmp_path, "test_it.py")
    was_there = (tmp_path / "production.db").exists()
    later = run(tmp_path)

    assert (refused.returncode, "5 passed" in refused.stdout) == (0, True), refused.stdout
    assert not was_there
    assert "6 passed" in later.stdout  # without the fixture an app is as it is
    assert (tmp_path / "production.db").exists()


BESIDE = """
import pytest
from packhorse import Packhorse, UsageError

billing = Packhorse("sqlite:///billing.db")

@billing.task
def charge() -> None: ...

def test_it(packhorse_app):
    with pytest.raises(UsageError, match=r"packhorse.testing.use\\(app\\)"):
        charge.enqueue()
"""


def test_an_app_beside_the_one_that_a_project_names_writes_into_no_real_store(
    tmp_path: Path,
) -> None:
    files = {"shop.py": SHOP, "conftest.py": CONFTEST, "test_it.py": BESIDE}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    result = run(tmp_path)

    assert result.returncode == 0, result.stdout
    assert not (tmp_path / "billing.db").exists()


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
