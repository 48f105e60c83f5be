# SPDX-License-Identifier: MIT
"""A worker that is told to stop before it has begun: it leaves at once, and in an orderly way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S = 40.0
SLOW_APP = """
import pathlib, time

pathlib.Path("importing").touch()
time.sleep(60)  # user code that takes its time
from packhorse import Packhorse

app = Packhorse("sqlite:///jobs.db")
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("options", [["--in-process"], []], ids=["alone", "supervised"])
def test_sigterm_while_the_app_is_imported_ends_the_worker_with_zero(
    folder: Path, options: list[str]
) -> None:
    (folder / "slow.py").write_text(SLOW_APP, "utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse", "worker", "slow:app", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: (folder / "importing").exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0, said
    assert "Told to stop before the worker had begun." in said
    assert not (folder / "jobs.db").exists()
