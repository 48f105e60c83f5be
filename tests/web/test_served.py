# SPDX-License-Identifier: MIT
"""A real server: the examples of the page run, streams flow, and it starts only with a way in."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.client.tokens import Tokens
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "how-to" / "api.md").read_text(encoding="utf-8")
PATIENCE_S = 30.0


class Server:
    """`packhorse dashboard` in a folder, with the app of the page."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "jobs.py").write_text(next(blocks(PAGE)).code, encoding="utf-8")
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = Packhorse(f"sqlite:///{folder}/jobs.db")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "packhorse", "dashboard", "jobs:app"),
                *("--port", str(self.port), *options),
            ],
            cwd=folder,
            env={name: each for name, each in os.environ.items() if "PACKHORSE" not in name},
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            assert self.process.poll() is None, self.process.communicate()[1]
            try:
                urllib.request.urlopen(f"{self.url}/api/v1/openapi.json", timeout=5).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server did not answer")

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)
        self.app.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    try:
        started.wait()
        yield started
    finally:
        started.end()


def test_the_examples_of_the_page_run_against_a_real_server(server: Server) -> None:
    token = Tokens(server.app.store).create("shop", scopes=["operator"]).text
    shown = [block.code for block in blocks(PAGE) if block.language == "console"]
    lines = [
        line.removeprefix("$ ")
        for code in shown
        for line in re.split(r"\n(?=\$ )", code.strip())
        if line.startswith("$ curl")
    ]
    script = "\n".join(line.replace("curl -sS", "curl -sS --fail-with-body") for line in lines)

    ran = subprocess.run(
        ["bash", "-e", "-c", script],
        env={**os.environ, "API": f"{server.url}/api/v1", "TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr
    assert len(lines) >= 15
    assert '{"id":"order-17","deduplicated":false}' in ran.stdout
    assert "event: fleet" in ran.stdout


def test_this_machine_needs_no_token_and_others_do(server: Server) -> None:
    asked = urllib.request.Request(f"{server.url}/api/v1/jobs")
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        assert answer.status == 200

    asked.add_header("X-Forwarded-For", "203.0.113.9")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(asked, timeout=PATIENCE_S)


def test_a_port_that_is_taken_is_told_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(f"{__name__}._free_port", lambda: taken.getsockname()[1])
        started = Server(tmp_path)

        _, told = started.process.communicate(timeout=PATIENCE_S)

    assert started.process.returncode == 2
    assert "address already in use" in told.lower()
    assert "Serving" not in told
    started.app.close()


def test_beyond_this_machine_it_does_not_start_without_a_way_in(tmp_path: Path) -> None:
    started = Server(tmp_path, "--host", "0.0.0.0")

    _, told = started.process.communicate(timeout=PATIENCE_S)

    assert started.process.returncode == 2
    assert "packhorse tokens create" in told
    started.app.close()
