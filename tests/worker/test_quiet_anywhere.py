# SPDX-License-Identifier: MIT
"""A worker in another process is told through the store to be quiet, whatever its machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from packhorse import Packhorse
from packhorse.cli.main import root
from packhorse.client.worker_signals import quiet_put
from packhorse.insights import WorkerInfo
from tests.supervisor.yard import until
from tests.web.support import Got, Web, token
from tests.worker.test_stacks import url_of

APP = """
from packhorse import Packhorse

app = Packhorse()


@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def workers(app: Packhorse) -> list[WorkerInfo]:
    return [worker for worker in app.insights.workers() if worker.live]


@contextmanager
def working(url: str, folder: Path, *options: str) -> Iterator[Packhorse]:
    """An app of this process, and a worker for it in another one."""
    (folder / "jobs.py").write_text(APP, encoding="utf-8")
    command = [sys.executable, "-m", "packhorse", "worker", "jobs:app", *options]
    environment = {**os.environ, "PACKHORSE_URL": url}
    started = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    with closing(Packhorse(url)) as app:

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        try:
            until("a worker", lambda: workers(app))
            yield app
        finally:
            started.terminate()
            started.wait(30)


async def quieted(url: str, worker: str) -> Got:
    """What the API answers when a worker is to be quiet."""
    app = Packhorse(url)
    try:
        return await Web(app, token=token(app, "operator")).post(f"/workers/{worker}/quiet")
    finally:
        await app.aclose()


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_it_is_quiet_and_claims_again_on_every_store(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(store, tmp_path)
    with working(url, tmp_path) as app:
        [worker] = workers(app)

        told = asyncio.run(quieted(url, worker.id))
        until("quiet", lambda: workers(app)[0].quiet)
        held = app.tasks["add"].enqueue(1, 2)
        reasons = [reason.code for reason in held.explain().reasons]
        monkeypatch.setattr("socket.gethostname", lambda: "another machine")
        resumed = CliRunner().invoke(root, ["workers", "resume", worker.id, "--url", url])

        assert held.result(timeout="30s") == 3
        assert reasons == ["workers_quiet"]
        assert (told.status, told.json) == (202, {"id": worker.id, "quiet": True})
        assert resumed.exit_code == 0, resumed.output
        assert f"worker {worker.id} on {worker.host} was told through the store" in resumed.output


def test_the_process_that_takes_the_place_of_a_quiet_one_is_quiet(tmp_path: Path) -> None:
    with working(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--processes", "1") as app:
        [worker] = workers(app)
        order = quiet_put(worker.id, quiet=True, by="test")
        app.store.run(app.store.records.change((order,)))
        until("quiet", lambda: workers(app)[0].quiet)

        os.kill(worker.pid, signal.SIGKILL)
        held = app.tasks["add"].enqueue(1, 2)
        until(
            "another that is quiet",
            lambda: any(one.quiet for one in workers(app) if one.pid != worker.pid),
        )

        assert held.status() == "queued"
