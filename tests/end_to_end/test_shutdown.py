# SPDX-License-Identifier: MIT
"""TERM and INT: nothing new, what runs may finish, the rest goes back once, doors closed last."""

from __future__ import annotations

import signal
import subprocess
from typing import Final

import pytest

from packhorse import JobHandle, JobStatus
from packhorse.runtime.worker import EXIT_ABANDONED
from tests.end_to_end.support import World, ended, until
from tests.support.twins import ordinarily_on

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: How soon a worker that is hurried must have left.
HURRIED_S: Final = 15.0
#: How soon one that is sent away must have left: before the grace of a deaf handler is over.
LEAVES_S: Final = 4.0
STOPPING: Final = '"worker.stopping"'


def told_to_stop(world: World, worker: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send the signal, and wait until the worker says that it has heard."""
    worker.send_signal(number)
    until("the worker to hear", lambda: STOPPING in world.output(worker))


def store_files(world: World) -> set[str]:
    """What lies beside the store; SQLite removes its log when the last connection is closed."""
    return {path.name for path in world.file.parent.iterdir() if path.is_file()}


@pytest.mark.req("S4-9", "S4-10", "S4-11", "S4-13", "S1-52")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("store", ordinarily_on("sqlite", "redis"))
def test_after_a_signal_nothing_is_begun_and_what_runs_may_finish(
    world: World, number: signal.Signals
) -> None:
    gate = world.folder / "gate"
    with world.app() as app:
        running = app.tasks["wait_for_file"].enqueue(str(gate))
        worker = world.worker("--concurrency", "2")
        world.heard("start", running.id)

        told_to_stop(world, worker, number)
        late: JobHandle[int] = app.tasks["quick"].enqueue(1)
    gate.touch()
    code = ended(worker)

    # Before the test opens it again: the worker closed its connections, after its last write.
    assert not world.file.exists() or store_files(world) == {"jobs.db"}
    jobs = world.jobs()
    assert code == 0
    assert jobs[running.id].status is JobStatus.COMPLETED
    assert jobs[running.id].counters.attempts == 1
    assert jobs[late.id].status is JobStatus.QUEUED
    assert world.lines("start", late.id) == []


@pytest.mark.req("S4-12", "S1-52", "S4-14")
@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_what_does_not_finish_in_time_goes_back_once_and_costs_nothing(world: World) -> None:
    gate = world.folder / "gate"
    with world.app() as app:
        jobs = [app.tasks["wait_for_file"].enqueue(str(gate)) for _ in range(3)]
        worker = world.worker("--shutdown-timeout", "0.2s")
        world.heard("start", times=3)

        told_to_stop(world, worker, signal.SIGTERM)
        code = ended(worker, HURRIED_S)
        released = [job.info() for job in jobs]
        gate.touch()
        world.worker("--burst")
        results = [job.result(timeout=20) for job in jobs]

        assert code == 0
        assert {line.pid for line in world.lines("cancelled")} == {worker.pid}
        for info in released:
            assert info.status is JobStatus.QUEUED
            assert (info.attempts, info.releases) == (1, 1)
            assert (info.failures, info.crashes) == (0, 0)
        fences = zip(results, released, strict=True)
        assert all(result["fence"] > info.fence for result, info in fences)
        assert len(world.lines("start")) == 6


@pytest.mark.req("S4-14", "S4-12")
@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_a_second_signal_hurries(world: World) -> None:
    with world.app() as app:
        job = app.tasks["wait_for_file"].enqueue(str(world.folder / "never"))
        worker = world.worker("--shutdown-timeout", "600s")
        world.heard("start", job.id)

        told_to_stop(world, worker, signal.SIGTERM)
        running_on = job.status()
        worker.send_signal(signal.SIGTERM)
        code = ended(worker, HURRIED_S)

        info = job.info()
        assert running_on is JobStatus.PROCESSING
        assert code == 128 + signal.SIGTERM  # it was forced, and nothing had to be abandoned
        assert (info.status, info.attempts, info.releases) == (JobStatus.QUEUED, 1, 1)


@pytest.mark.req("S4-14", "S4-12")
@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_a_third_signal_leaves_a_deaf_handler_behind_and_says_so(world: World) -> None:
    with world.app() as app:
        job = app.tasks["stay"].enqueue()
        worker = world.worker("--shutdown-timeout", "600s")
        world.heard("start", job.id)

        told_to_stop(world, worker, signal.SIGINT)
        worker.send_signal(signal.SIGINT)
        world.heard("told", job.id)
        worker.send_signal(signal.SIGINT)
        code = ended(worker, LEAVES_S)

        info = job.info()
        assert code == EXIT_ABANDONED
        assert (info.status, info.releases, info.failures) == (JobStatus.QUEUED, 1, 0)
        assert world.lines("end", job.id) == []


@pytest.mark.req("S4-12", "S4-14")
@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_a_deaf_handler_is_abandoned_when_its_time_is_over(world: World) -> None:
    with world.app() as app:
        job = app.tasks["stay"].enqueue()
        worker = world.worker("--shutdown-timeout", "0.1s")
        world.heard("start", job.id)

        told_to_stop(world, worker, signal.SIGTERM)
        code = ended(worker, HURRIED_S)

        info = job.info()
        assert code == EXIT_ABANDONED
        assert (info.status, info.attempts, info.releases) == (JobStatus.QUEUED, 1, 1)


@pytest.mark.req("S4-9", "S4-4")
@pytest.mark.parametrize("store", ordinarily_on("redis"))
def test_an_idle_worker_leaves_at_once(world: World) -> None:
    with world.app() as app:
        worker = world.worker()
        until("the worker", lambda: any(one.live for one in app.insights.workers()))
        until("its first look", lambda: '"worker.started"' in world.output(worker))

        worker.send_signal(signal.SIGTERM)

        assert ended(worker, HURRIED_S) == 0
        assert [one for one in app.insights.workers() if one.live] == []
