# SPDX-License-Identifier: MIT
"""A store that is away restarts no child: the supervisor answers for its processes without it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers.redis import RedisServer
from tests.supervisor.yard import PATIENCE_S, Yard, asked, probe_address, status, until

#: How long a call to the store may take, which stands still; `/livez` answers sooner.
CALL_S: Final = 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one's own, to do anything to."""
    made = RedisServer(tmp_path / "redis")
    yield made
    made.stop()


@pytest.fixture
def store_url(server: RedisServer) -> str:
    """The jobs are on that server."""
    return f"{server.url}?timeout={CALL_S}"


@pytest.mark.req("S3-28", "S3-43")
def test_while_the_store_stands_still_the_worker_is_alive_and_says_that_it_is_not_ready(
    yard: Yard, server: RedisServer
) -> None:
    parent = yard.worker("--http", "127.0.0.1:0", "--lease", "2s")
    address = probe_address(yard, parent)
    until("the worker to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    running = yard.app.tasks["linger"].enqueue()
    child = yard.begun(running)

    server.pause()
    until("it to be told", lambda: asked(f"{address}/readyz")[0] == 503)
    took_s = []
    for _ in range(3):  # a busy machine may be slow once
        began = time.monotonic()
        assert asked(f"{address}/livez") == (200, "ok\n")
        took_s.append(time.monotonic() - began)
    (process,) = status(address)["processes"]
    server.resume()
    until("the worker to be ready", lambda: asked(f"{address}/readyz")[0] == 200)
    yard.go()

    assert min(took_s) < CALL_S / 2
    assert (process["pid"], process["running"][0]["jobId"]) == (child, running.id)
    assert running.result(timeout=PATIENCE_S) == child  # no process was restarted
    assert yard.stop(parent) == 0
