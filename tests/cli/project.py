# SPDX-License-Identifier: MIT
"""A folder with an app in it, and ways to run the command there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from packhorse import Packhorse
from packhorse.cli.main import root

SOURCE = Path(__file__).resolve().parents[2] / "src"
#: How long a started process may take to say something, or to end.
PATIENCE_S = 30

JOBS = """
import asyncio, os, time
from packhorse import Context, Packhorse, RetryPolicy

app = Packhorse("sqlite:///jobs.db")
app.queue("mail")

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

@app.task(queue="mail", retry=RetryPolicy(max_retries=0))
def explode(why: str = "no reason") -> None:
    raise ValueError(why)

@app.task
async def linger() -> None:
    print("lingering\\n", end="", flush=True)  # at once, since several processes write here
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)

@app.task
def publish(ctx: Context) -> str:
    ctx.step("draft", lambda: "text")
    return ctx.wait_for("approved")["by"]

@app.task
def doze(seconds: float) -> None:
    print("dozing", flush=True)
    time.sleep(seconds)
"""


def heard(stream: IO[str] | None, word: str) -> None:
    """Wait until a process has written this."""
    assert stream is not None
    for line in stream:
        if word in line:
            return
    pytest.fail(f"it ended without saying {word}")


@dataclass(frozen=True)
class Project:
    """The folder the command is called in."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments: str, **settings: Any) -> Result:
        """Call the command in this process."""
        return CliRunner().invoke(root, list(arguments), prog_name="packhorse", **settings)

    def document(self, *arguments: str, code: int = 0) -> Any:
        """What `--json` prints, which is all there is on stdout."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == code, result.output
        return msgspec.json.decode(result.stdout)

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Call the command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "packhorse", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )

    def finish(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the command in a process of its own, and wait for it to end."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def app(self) -> Packhorse:
        """The app of jobs.py, for tests that submit and run by themselves."""
        sys.path.insert(0, str(self.folder))
        import jobs  # type: ignore[import-not-found]  # written by the fixture

        app: Packhorse = jobs.app
        return app
