# SPDX-License-Identifier: MIT
"""A healthy job runs once however long it takes; a worker that was away is told so."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from packhorse import JobStatus
from tests.end_to_end.support import World, until
from tests.support.twins import ordinarily_on

LEASE_S: Final = 2
#: Longer than the lease twice over, as 70 seconds are under the default of 30.
LONG_S: Final = 5.0


@pytest.mark.req("S1-43", "S2-8", "X-7")
@pytest.mark.parametrize("task", ["nap", "doze", "block_loop"])
@pytest.mark.parametrize("store", ordinarily_on("postgres"))
def test_a_job_longer_than_the_lease_runs_once(world: World, task: str) -> None:
    # `block_loop` lets nothing else of the event loop run: the heartbeat must not need it.
    with world.app() as app:
        job = app.tasks[task].enqueue(LONG_S)
        world.worker("--lease", f"{LEASE_S}s")
        world.heard("start", job.id)
        world.worker("--lease", f"{LEASE_S}s")

        result = job.result(timeout=40)

        (run,) = world.lines("start", job.id)
        info = job.info()
        assert (result["pid"], result["fence"]) == (run.pid, info.fence)
        assert (info.attempts, info.crashes, info.releases) == (1, 0, 0)
        assert world.lines("stale") == []


@pytest.mark.req("S1-44", "S2-8")
@pytest.mark.parametrize("store", ordinarily_on("postgres"))
def test_a_worker_stopped_beyond_its_lease_cannot_complete_its_job_any_more(world: World) -> None:
    gate = world.folder / "gate"
    with world.app() as app:
        job = app.tasks["wait_for_file"].enqueue(str(gate))
        zombie = world.worker("--lease", "1s")
        world.heard("start", job.id)
        first = job.info().fence
        successor = world.worker("--lease", "1s")

        zombie.send_signal(signal.SIGSTOP)
        world.heard("start", job.id, times=2)
        zombie.send_signal(signal.SIGCONT)
        (world.folder / f"gate.{zombie.pid}").touch()
        (refused,) = world.heard("stale", job.id)
        meanwhile = job.info()
        (world.folder / f"gate.{successor.pid}").touch()
        result = job.result(timeout=20)

        assert refused.pid == zombie.pid
        assert meanwhile.status is JobStatus.PROCESSING
        assert meanwhile.fence > first
        assert (result["pid"], result["fence"]) == (successor.pid, meanwhile.fence)
        assert [line.pid for line in world.heard("completed", job.id)] == [successor.pid]
        until("the zombie's log", lambda: '"job.stale"' in world.output(zombie))


@pytest.mark.req("S1-44")
@pytest.mark.parametrize("store", ordinarily_on("postgres"))
def test_a_worker_stopped_beyond_its_lease_works_on_when_it_is_back(world: World) -> None:
    with world.app() as app:
        first = app.tasks["nap"].enqueue(0.3)
        worker = world.worker("--lease", "1s")
        world.heard("start", first.id)

        worker.send_signal(signal.SIGSTOP)
        until("the lease to run out", lambda: not any(one.live for one in app.insights.workers()))
        worker.send_signal(signal.SIGCONT)
        later = app.tasks["quick"].enqueue(7)

        # No worker took the job away meanwhile, so its end still counts.
        assert first.result(timeout=20)["pid"] == worker.pid
        assert later.result(timeout=20) == 7
        assert len(world.lines("start", first.id)) == 1
