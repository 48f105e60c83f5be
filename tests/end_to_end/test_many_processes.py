# SPDX-License-Identifier: MIT
"""Several producers, workers and readers on one file: each job once, results everywhere."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import subprocess
from collections import Counter
from typing import Final

import pytest

from packhorse import JobStatus
from packhorse.core.clock import SECOND_US, from_datetime
from tests.end_to_end.programs import CHILDREN, JOBS_EACH, THREADS
from tests.end_to_end.support import World, ended, until
from tests.support.twins import ordinarily_on

#: Far below the second after which a waiter looks by itself, far above what a wake-up takes.
WOKEN_S: Final = 0.25


def program(world: World, *arguments: str) -> subprocess.Popen[str]:
    # Forking with threads about is what the fork program is about.
    quiet = ("-W", "ignore::DeprecationWarning")
    return world.start(*quiet, "-m", "tests.end_to_end.programs", *arguments)


def finished(world: World, process: subprocess.Popen[str]) -> list[str]:
    """The lines a program printed, once it has ended well."""
    code = ended(process)
    assert code == 0, world.output(process)
    return world.output(process).split()


@pytest.mark.req("S2-23", "S4-1")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_two_producers_and_three_workers_run_each_job_once(world: World) -> None:
    for _ in range(3):
        world.worker("--concurrency", "2")
    with world.app() as app:
        until("three workers", lambda: len(app.insights.workers()) == 3)
    producers = [program(world, "submit", "150") for _ in range(2)]

    ids = [job_id for producer in producers for job_id in finished(world, producer)]
    world.heard("completed", times=300)

    starts = world.lines("start")
    assert len(set(ids)) == 300
    assert Counter(line.job_id for line in starts) == dict.fromkeys(ids, 1)
    assert len({line.pid for line in starts}) > 1
    assert {record.status for record in world.jobs().values()} == {JobStatus.COMPLETED}


@pytest.mark.req("S2-25")
def test_a_third_process_hears_of_results_by_wake_up(world: World) -> None:
    gates = [world.folder / f"gate-{number}" for number in range(7)]
    with world.app() as app:
        jobs = [app.tasks["wait_for_file"].enqueue(str(gate)) for gate in gates]
        world.worker()
        world.heard("start", times=len(jobs))
        reader = program(world, "wait", *(job.id for job in jobs))

        for job, gate in zip(jobs, gates, strict=True):
            world.heard("waiting", job.id)
            until("the reader to wait", lambda: a_reader_waits(world))
            gate.touch()
        finished(world, reader)

        waits = []
        for job in jobs:
            (answered,) = world.lines("answered", job.id)
            finished_at = job.info().finished_at
            assert finished_at is not None
            waits.append((answered.at_us - from_datetime(finished_at)) / SECOND_US)
        assert statistics.median(waits) < WOKEN_S, waits


@pytest.mark.req("S2-25")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_an_app_used_before_a_fork_works_in_parent_and_children(world: World) -> None:
    world.worker()

    finished(world, program(world, "fork"))

    jobs = world.jobs()
    assert len(jobs) == 2 + (CHILDREN + 1) * JOBS_EACH
    assert {record.status for record in jobs.values()} == {JobStatus.COMPLETED}


@pytest.mark.req("S2-22")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_many_threads_submit_at_once_and_nothing_is_lost(world: World) -> None:
    ids = finished(world, program(world, "threads", "20"))

    code = ended(world.worker("--burst"))

    assert len(set(ids)) == THREADS * 20
    assert code == 0
    assert Counter(line.job_id for line in world.lines("end")) == dict.fromkeys(ids, 1)


@pytest.mark.req("S2-22")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_a_burst_larger_than_all_slots_is_absorbed_and_drained_later(world: World) -> None:
    with world.app() as app:
        quick = app.tasks["quick"]
        jobs = app.enqueue_many([quick.call(number) for number in range(1_500)])
        depth_before = app.depth("default")
        workers = [world.worker("--burst", "--concurrency", "2") for _ in range(2)]

        codes = [ended(worker) for worker in workers]

        ids = [job.id for job in jobs]
        assert depth_before == 1_500
        assert codes == [0, 0]
        assert app.depth("default") == 0
        assert Counter(line.job_id for line in world.lines("end")) == dict.fromkeys(ids, 1)


def a_reader_waits(world: World) -> bool:
    """Whether a reader has written down that it waits for a job."""
    with contextlib.closing(sqlite3.connect(world.file)) as connection:
        (count,) = connection.execute("select count(*) from packhorse_interests").fetchone()
    return bool(count)
